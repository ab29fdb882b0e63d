"""PostgreSQL. Importing this raises ImportError without the driver, or with an old one."""

import psycopg

OLDEST_DRIVER = (3, 3)
"""Older ones cannot stop waiting for an answer."""

if tuple(map(int, psycopg.__version__.split(".")[:2])) < OLDEST_DRIVER:
    raise ImportError(f"this one is {psycopg.__version__}")
