"""python -m tests.mutations [--only WORDS] [-n 2] [--long]: exit code 1 if a mutation survived.

Each is made in a copy of the tree. The test files that the table names run first; if they notice nothing, all tests but
the long ones and those of faults and documents (with --long these, too). A test that fails counts only if it passes
without the mutation, and fails once more with it. One MariaDB and one PostgreSQL serve all runs.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.mutations.table import Mutation, mutations
from tests.support.deployment import ROOT
from tests.support.postgresql import PostgreSQL
from tests.support.servers import MariaDB

LEFT_OUT = (".git", ".venv", ".servers", "__pycache__", ".*_cache", ".hypothesis", "dist", "build", "var")
MAX_SECONDS = 900
"""A run that takes longer counts as one that failed: a mutation may have tests wait for ever."""
MAX_FALSE = 5
"""So many tests that fail without the mutation, too, are passed over."""


class Copy:
    """A copy of the tree, in which one mutation at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self._root = shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*LEFT_OUT))
        self._cache, self._files = folder / "cache", folder / "files"
        (self._root / "tests/unit/test_mutations.py").unlink(missing_ok=True)  # it would notice each of them
        for name in (".venv", ".servers"):
            if (ROOT / name).exists():
                (self._root / name).symlink_to(ROOT / name)

    def files_of(self, mutation: Mutation) -> list[str]:
        """The test files that are there of those which the table names."""
        found = [path for name in mutation.tests for path in sorted(self._root.glob(f"tests/**/{name}.py"))]
        return [str(path.relative_to(self._root)) for path in found]

    def killer(self, mutation: Mutation, where: Sequence[str], chosen: Sequence[str]) -> str:
        """The first test that fails with the mutation, and passes without; empty without one."""
        passed_over: list[str] = []
        while len(passed_over) < MAX_FALSE:
            failed = self._with(mutation, [*where, *chosen, *(f"--deselect={one}" for one in passed_over)])
            if not failed.startswith("tests/"):
                return failed
            # Once more: a test that fails by chance must not count.
            if not self._first_failure([failed]) and self._with(mutation, [failed]):
                return failed
            passed_over.append(failed)
        print(f"these fail without a mutation, or by chance: {', '.join(passed_over)}", flush=True)
        return ""

    def _with(self, mutation: Mutation, arguments: Sequence[str]) -> str:
        file = self._root / mutation.file
        before = file.read_text(encoding="utf-8")
        file.write_text(mutation.applied(before), encoding="utf-8")
        try:
            return self._first_failure(arguments)
        finally:
            file.write_text(before, encoding="utf-8")

    def _first_failure(self, arguments: Sequence[str]) -> str:
        shutil.rmtree(self._cache, ignore_errors=True)
        own = [f"--basetemp={self._files}", "-o", f"cache_dir={self._cache}"]
        words = [sys.executable, "-m", "pytest", "-q", "-x", *own, *arguments]
        with subprocess.Popen(
            words, cwd=self._root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, text=True
        ) as running:
            try:
                output, _ = running.communicate(timeout=MAX_SECONDS)
            except subprocess.TimeoutExpired:
                return "tests that did not end"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)  # and what they left
        if running.returncode in (0, 5):  # 5: none were chosen
            return ""
        if running.returncode in (2, 4) and "usage:" in output:
            raise RuntimeError(output)
        noted = self._cache / "v/cache/lastfailed"
        failed = list(json.loads(noted.read_text())) if noted.exists() else []
        return str(failed[0]) if failed else f"the end of pytest itself, by code {running.returncode}"


@contextmanager
def servers() -> Iterator[None]:
    """In the `with`, the tests find a MariaDB and a PostgreSQL that run already."""
    with MariaDB() as mariadb, PostgreSQL() as postgresql:
        os.environ.setdefault("TASKSERVER_TEST_MYSQL", f"mysql://{mariadb.login}@127.0.0.1:{mariadb.port}/")
        os.environ.setdefault("TASKSERVER_TEST_POSTGRESQL", postgresql.dsn("postgres"))
        yield


def say(words: str, began_at: float, mutation: Mutation) -> None:
    print(f"{words} ({time.monotonic() - began_at:.0f} s): {mutation.name}", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--only", metavar="WORDS", default="", help="those whose name or file has these words")
    parser.add_argument("-n", type=int, default=2, metavar="N", help="so many processes; default 2")
    parser.add_argument("--long", action="store_true", help="the tests of faults and the long ones, too")
    options = parser.parse_args(arguments)
    wanted = [one for one in mutations() if options.only in one.name or options.only in one.file]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutations-")))
        stack.enter_context(servers())
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(options.n):
            (folder / str(number)).mkdir()
            copies.put(Copy(folder / str(number)))

        def look_first(mutation: Mutation) -> bool:
            """Whether the files that the table names notice it."""
            copy, began_at = copies.get(), time.monotonic()
            try:
                where = copy.files_of(mutation)
                killer = copy.killer(mutation, where, ("-n", "0", "-m", "not long")) if where else ""
            finally:
                copies.put(copy)
            if killer:
                say(f"killed by {killer}", began_at, mutation)
            return bool(killer)

        with ThreadPoolExecutor(options.n) as pool:
            left = [one for one, is_killed in zip(wanted, pool.map(look_first, wanted), strict=True) if not is_killed]
        copy, survivors = copies.get(), 0
        chosen = ["-n", str(options.n), "--dist", "loadgroup"]
        chosen += [] if options.long else ["--ignore=tests/faults", "--ignore=tests/docs", "-m", "not long"]
        for mutation in left:
            began_at = time.monotonic()
            killer = copy.killer(mutation, ["tests"], chosen)
            survivors += not killer
            say(f"killed by {killer}" if killer else "SURVIVED", began_at, mutation)
    print(f"{len(wanted) - survivors} of {len(wanted)} mutations were killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
