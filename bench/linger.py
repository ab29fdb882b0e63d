"""What does a worker cost that waits for tasks, with its connection kept and with a new one for each look?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from taskserver import TaskServer

from .measure import Bound, Line, line_of
from .place import DATABASE, Place, launched

TABLE = "bench_linger"
_HUNDREDTH_MS = 10.0
"""One per cent of a core: milliseconds of a second."""


def linger(place: Place) -> Iterator[Line]:
    """`worker.py --linger` on an empty table, less what the same run costs without, against one per cent of a core."""
    seconds = place.size(20, 2)
    with TaskServer(place.dsn, table=TABLE) as server:
        server.create_tables()
    folders = {
        "connection kept": place.deployment("linger", table=TABLE),
        "connection given back": place.deployment("linger-few", table=TABLE, dsn=_dsn_of_few(place)),
    }
    for name, folder in folders.items():
        taken = [(_milliseconds_a_second(folder, seconds), _HUNDREDTH_MS) for _ in range(min(place.pairs, 3))]
        yield line_of(f"waiting worker, {name}, CPU", taken, unit="ms/s", bound=Bound("at most", 1))


def _milliseconds_a_second(folder: Path, seconds: int) -> float:
    without = launched(["worker.py", "--linger", "0.001"], folder)
    cost = launched(["worker.py", "--linger", str(seconds)], folder)
    return (cost.cpu_seconds - without.cpu_seconds) * 1000 / seconds


def _dsn_of_few(place: Place) -> str:
    """The database as an account that may have two connections."""
    password = os.environ["MYSQL_PWD"]
    place.sql(f"CREATE OR REPLACE USER few@127.0.0.1 IDENTIFIED BY '{password}' WITH MAX_USER_CONNECTIONS 2")
    place.sql(f"GRANT ALL ON {DATABASE}.* TO few@127.0.0.1")
    return place.dsn.replace("root:", "few:")
