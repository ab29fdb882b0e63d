"""MySQL and MariaDB. Importing this raises ImportError without the driver, or with an old one."""

import pymysql

OLDEST_DRIVER = (1, 2)
"""Older ones connect without required TLS if the server says that it has none."""

if pymysql.VERSION[:2] < OLDEST_DRIVER:
    raise ImportError(f"this one is {'.'.join(map(str, pymysql.VERSION[:3]))}")
