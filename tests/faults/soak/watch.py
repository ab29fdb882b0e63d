"""What a soak run measures each half minute: processes, the server, files, tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from taskserver.stores.words import HELPERS
from tests.faults.chaos.checks import Row
from tests.faults.chaos.run import read_rows
from tests.faults.chaos.stage import DRIVER_ERRORS
from tests.faults.soak.place import Place
from tests.support.rows import AFTER, SECONDS_BETWEEN, Rows

MB = 1_000_000
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CONNECTIONS = {
    "mysql": "SELECT COUNT(*) - 1 FROM information_schema.processlist",
    "postgresql": "SELECT COUNT(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'",
}
"""But the one that asks."""
TABLE_BYTES = {
    "mysql": "SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = DATABASE()",
    "postgresql": "SELECT SUM(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE relname LIKE 'jobs_queue%'",
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
}


class Watch:
    """Takes samples, and keeps the fatal rows, which are pruned."""

    def __init__(self, place: Place) -> None:
        self.fatal: dict[int, Row] = {}
        self.samples: list[dict[str, float]] = []
        self._place = place
        self._began = time.monotonic()

    def look(self) -> dict[str, float]:
        """One more sample."""
        place, sample = self._place, {"at": round(time.monotonic() - self._began, 1)}
        workers = [*place.workers()]
        sample["processes"] = len(workers)
        for worker in workers:
            if worker.is_long:
                kind = "worker" if worker.is_child else "supervisor"
                sample |= {f"{kind} {name} @{worker.pid}": value for name, value in _usage([worker.pid]).items()}
        if place.web is not None:
            sample |= {f"web {name}": value for name, value in _usage([place.web.pid]).items()}
        server = place.server
        if server is not None:
            with suppress(OSError, AssertionError):  # it was killed
                sample |= {f"server {name}": value for name, value in _usage(server.tree).items()}
        disk = [place.folder / "var", *([server.folder] if server else [])]
        log = [*_sizes([place.folder / "var"], "taskserver.log*")]
        sample["log MB"] = sum(log) / MB
        sample["disk MB"] = sum(_sizes(disk)) / MB - sample["log MB"]
        sample["var files"] = len([*_sizes([place.folder / "var"])])
        with suppress(*DRIVER_ERRORS), closing(Rows(place.dsn)) as rows:
            sample |= self._tables(rows)
        self.samples.append(sample)
        return sample

    def _tables(self, rows: Rows) -> Iterator[tuple[str, float]]:
        if rows.kind in CONNECTIONS:
            yield "connections", float(rows.execute(CONNECTIONS[rows.kind])[0][0])
        yield "table MB", float(rows.execute(TABLE_BYTES[rows.kind])[0][0] or 0) / MB
        counts = dict(rows.execute("SELECT status, COUNT(*) FROM jobs_queue GROUP BY status"))
        yield from ((f"status {status}", float(found)) for status, found in counts.items())
        yield "queue rows", float(sum(counts.values()))
        yield "done rows", float(_count(rows, "done"))
        yield "other rows", float(sum(_count(rows, name) for name in HELPERS if name != "done"))
        age = SECONDS_BETWEEN[rows.kind].format("MIN(updated_at)", AFTER[rows.kind].format(0))
        yield "oldest ready s", float(rows.execute(f"SELECT {age} FROM jobs_queue WHERE status = 0")[0][0] or 0)
        self.fatal |= {row.number: row for row in read_rows(rows, "status = 4")}


def _count(rows: Rows, name: str) -> int:
    return int(rows.execute(f"SELECT COUNT(*) FROM jobs_queue_{name}")[0][0])


def _usage(pids: Iterable[int]) -> dict[str, float]:
    """Resident memory and open files of these processes; what they share counts once for each."""
    memory = files = 0.0
    for pid in pids:
        with suppress(OSError):
            memory += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / MB
            files += len(os.listdir(f"/proc/{pid}/fd"))
    return {"MB": memory, "files": files}


def _sizes(folders: Iterable[Path], pattern: str = "*") -> Iterator[int]:
    for folder in folders:
        for path in folder.rglob(pattern):
            with suppress(OSError):  # it is gone
                if path.is_file():
                    yield path.stat().st_blocks * 512
