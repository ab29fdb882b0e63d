"""How long does a task wait for its start under `worker.py --linger`, which a real cron starts? Needs root.

Five minutes, with all their hand-overs: of one line, of the line twice, and of one whose starts come some seconds late.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

from taskserver import TaskServer
from tests.support.cron import Cron, find_python, missing_programs, why_not
from tests.support.deployment import Deployment

from .measure import Rate
from .place import Place

LINGER = "worker.py 0 --linger 65 --slots 1"
LATE = r"sleep $(($(date +\%s) / 60 * 7 \% 5)); "
"""Between 0 and 4 seconds, another number each minute."""
TASKS = """
import time
from pathlib import Path


def note(added_at):
    with open(Path(__file__).with_name("waits"), "a") as file:
        file.write(f"{time.time() - added_at}\\n")
"""


def waiting(place: Place) -> Iterator[Rate]:
    """Seconds from the INSERT of a page to the first line of the task: median and 99th percentile."""
    if reason := why_not() or ", ".join(missing_programs()) or ("" if find_python() else "no Python for nobody"):
        raise SystemExit(f"waiting: no cron of our own: {reason}")
    minutes = place.size(5, 2)
    with Cron() as cron:
        sites = [Site(place, cron, name) for name in ("one line", "a line twice", "late starts")]
        one, twice, late = (f"* * * * * {{}}{site.command}" for site in sites)
        lines = [one.format(""), twice.format(""), twice.format(""), late.format(LATE)]
        cron.start("\n".join([*lines, ""]))
        cron.wait_until(lambda: all(site.has_begun() for site in sites))
        until = time.monotonic() + minutes * 60
        while time.monotonic() < until:
            for site in sites:
                site.add()
            time.sleep(random.uniform(0.1, 3.0))
        cron.start_nothing_more()
        cron.wait_until(lambda: all(site.is_done() for site in sites))
        waits_by_name = {site.name: site.waits() for site in sites}
    for site_name, waits in waits_by_name.items():
        last = quantiles(waits, n=100)[98]
        name = f"wait of {len(waits)} tasks, {site_name}, to 99 %"
        yield Rate(name, min(waits), median(waits), last, "ms")


class Site:
    """A deployment under cron, whose page adds tasks."""

    def __init__(self, place: Place, cron: Cron, name: str) -> None:
        self.name = name
        self._table = f"bench_{name.replace(' ', '_')}"
        deployment: Deployment = cron.deployment(name.replace(" ", "-"))
        deployment.write_tasks(TASKS)
        deployment.write_env(TASKSERVER_DSN=place.dsn, TASKSERVER_TABLE=self._table)
        with TaskServer(place.dsn, table=self._table) as server:
            server.create_tables()
        self.command = f"{deployment.python} {deployment.folder}/{LINGER}"
        self._waits = Path(deployment.folder, "waits")
        self._connection = place.connect()

    def has_begun(self) -> bool:
        """Whether its first worker has begun."""
        return bool(self._value(f"SELECT COUNT(*) FROM {self._table}_workers"))

    def add(self) -> None:
        """Add a task as a page does."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {self._table} (task, args) VALUES ('tasks.note', %s)", (f"[{time.time()!r}]",))

    def is_done(self) -> bool:
        """Whether no task is left."""
        return not self._value(f"SELECT COUNT(*) FROM {self._table}")

    def waits(self) -> list[float]:
        """Milliseconds that each task waited."""
        return [1000 * float(line) for line in self._waits.read_text().splitlines()]

    def _value(self, statement: str) -> object:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone()
        assert isinstance(row, tuple)
        return row[0]
