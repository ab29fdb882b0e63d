"""python -m tests.mutations [--only WORDS] [-n 2] [--long]: exit code 1 if a mutation survived.

Each is made in a copy of the tree, where the test files run that the table names for it. A test that fails counts only
if it passes without the mutation, and fails once more with it. One MariaDB and one PostgreSQL serve all runs.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tests.mutations.table import Mutation, mutations
from tests.support.deployment import ROOT
from tests.support.postgresql import PostgreSQL
from tests.support.servers import MariaDB

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".servers", "__pycache__", ".*_cache", ".hypothesis", "dist", "build", "var"
)
MAX_SECONDS = 900
"""A run that takes longer counts as one that failed: a mutation may make tests wait for ever."""
MAX_FALSE = 5
"""So many tests that fail without the mutation, too, are passed over."""


class Copy:
    """A copy of the tree, in which one mutation at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self._root = shutil.copytree(ROOT, folder / "tree", ignore=LEFT_OUT)
        self._cache, self._files = folder / "cache", folder / "files"
        for name in (".venv", ".servers"):
            if (ROOT / name).exists():
                (self._root / name).symlink_to(ROOT / name)

    def killer(self, mutation: Mutation, options: list[str]) -> str:
        """The first test that fails with the mutation, and passes without; empty if there is none."""
        found = [str(path) for name in mutation.tests for path in sorted(self._root.glob(f"tests/**/{name}.py"))]
        file = self._root / mutation.file
        before = file.read_text(encoding="utf-8")
        after = mutation.applied(before)
        try:
            for _ in range(MAX_FALSE if found else 0):
                file.write_text(after, encoding="utf-8")
                failed = self._failure([*found, *options])
                if not failed.startswith("tests/"):
                    return failed
                # Once more: a test that fails by chance must not count.
                is_again = self._failure([failed])
                file.write_text(before, encoding="utf-8")
                if is_again and not self._failure([failed]):
                    return failed
                print(f"fails without a mutation, or by chance: {failed}", flush=True)
                options = [*options, f"--deselect={failed}"]
        finally:
            file.write_text(before, encoding="utf-8")
        return ""

    def _failure(self, arguments: list[str]) -> str:
        """The first test that fails."""
        shutil.rmtree(self._cache, ignore_errors=True)
        own = ["-n", "0", f"--basetemp={self._files}", "-o", f"cache_dir={self._cache}"]
        words = [sys.executable, "-m", "pytest", "-q", "-x", *own, *arguments]
        running = subprocess.Popen(words, cwd=self._root, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            code = running.wait(MAX_SECONDS)
        except subprocess.TimeoutExpired:
            return "tests that did not end"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # and what they left
            running.wait()
        noted = self._cache / "v/cache/lastfailed"
        failed = [*json.loads(noted.read_text())] if noted.exists() else [f"pytest itself, which ended by code {code}"]
        return "" if code in (0, 5) else str(failed[0])  # 5: none were chosen


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--only", metavar="WORDS", default="", help="those whose name or file has these words")
    parser.add_argument("-n", type=int, default=2, metavar="N", help="so many at a time; default 2")
    parser.add_argument("--long", action="store_true", help="the long tests of these files, too")
    options = parser.parse_args(arguments)
    chosen = [] if options.long else ["-m", "not long"]
    wanted = [one for one in mutations() if options.only in one.name or options.only in one.file]
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()

    def is_killed(mutation: Mutation) -> bool:
        copy, began_at = copies.get(), time.monotonic()
        try:
            killer = copy.killer(mutation, chosen)
        finally:
            copies.put(copy)
        verdict = f"killed by {killer}" if killer else "SURVIVED"
        print(f"{verdict} ({time.monotonic() - began_at:.0f} s): {mutation.name}", flush=True)
        return bool(killer)

    with tempfile.TemporaryDirectory(prefix="mutations-") as folder, MariaDB() as mariadb, PostgreSQL() as postgresql:
        os.environ.setdefault("TASKSERVER_TEST_MYSQL", mariadb.dsn(""))
        os.environ.setdefault("TASKSERVER_TEST_POSTGRESQL", postgresql.dsn("postgres"))
        for number in range(options.n):
            copies.put(Copy(Path(folder, str(number))))
        with ThreadPoolExecutor(options.n) as pool:
            killed = sum(pool.map(is_killed, wanted))
    print(f"{killed} of {len(wanted)} mutations were killed")
    return int(killed < len(wanted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
