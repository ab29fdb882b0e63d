"""Three nodes of Galera against one server: both durable, with the same workers, on the cores of this one machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from taskserver import TaskServer
from tests.support.galera import DURABLE, Galera, missing_parts

from .measure import Line, compare
from .place import DATABASE, Place, rate
from .spread import TASKS

WORKERS = 3
ADD = """
from taskserver import TaskServer
with TaskServer.from_env("{folder}") as server:
    for n in range({tasks}):
        server.add_task("tasks.nothing", [n])
"""


def cluster(place: Place) -> Iterator[Line]:
    """Adding and draining by three processes: each at its own node, all at the first one, or all at one server."""
    if missing := missing_parts():
        print(f"cluster: {', '.join(missing)} not found; make test-galera installs Galera", file=sys.stderr)
        return
    tasks = place.size(3_000, 300)
    with Galera(*DURABLE) as galera:
        galera.nodes[0].create_database(DATABASE)
        alone = [_laid(place, "alone", place.dsn)] * WORKERS
        nodes = [_laid(place, f"node{node.number}", node.dsn(DATABASE)) for node in galera.nodes]

        def drained(folders: Sequence[Path], dsn: str, task: str = "tasks.nothing") -> Callable[[], float]:
            def measure() -> float:
                with TaskServer(dsn) as server:
                    server.add_tasks([{"task": task, "args": [n]} for n in range(tasks)])
                return rate(tasks, [["worker.py", "0", "--slots", "0"]] * WORKERS, folders)

            return measure

        def added(folders: Sequence[Path], dsn: str) -> Callable[[], float]:
            def measure() -> float:
                each = tasks // WORKERS
                programs = [["-c", ADD.format(folder=folder, tasks=each)] for folder in folders]
                found = rate(each * WORKERS, programs, folders)
                with TaskServer(dsn) as server:
                    server.store.database.change("DELETE FROM {table}")
                return found

            return measure

        one, dsn = place.dsn, galera.nodes[0].dsn(DATABASE)
        for name, ours, floor in (
            ("add: 3 nodes / 1 server", added(nodes, dsn), added(alone, one)),
            ("add: first of 3 nodes / 1 server", added(nodes[:1] * WORKERS, dsn), added(alone, one)),
            ("drain: 3 nodes / 1 server", drained(nodes, dsn), drained(alone, one)),
            ("drain: first of 3 nodes / 1 server", drained(nodes[:1] * WORKERS, dsn), drained(alone, one)),
            (
                "drain, commit_every=50: 3 nodes / 1 server",
                drained(nodes, dsn, "tasks.shared"),
                drained(alone, one, "tasks.shared"),
            ),
        ):
            yield compare(name, ours, floor, pairs=place.pairs, unit="tasks/s")


def _laid(place: Place, name: str, dsn: str) -> Path:
    """A deployment with our tasks at this address; its tables are there."""
    folder = place.deployment(f"cluster-{name}")
    (folder / "tasks.py").write_text(TASKS)
    (folder / ".env").write_text(f"TASKSERVER_DSN={dsn}\n")
    with TaskServer(dsn) as server:
        server.create_tables()
    return folder
