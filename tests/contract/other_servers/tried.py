"""What became of a server: the tests that ran on it, counted, and the lines of the table."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, Protocol
from xml.etree import ElementTree

from tests.contract.other_servers.recipes import Recipe
from tests.support.deployment import ROOT


class OtherServer(Protocol):
    """A server that runs. `environment` tells the tests of it."""

    @property
    def version(self) -> str: ...

    @property
    def environment(self) -> Mapping[str, str]: ...


FOLDERS = ("contract", "worker", "cli", "features", "process", "producers", "faults", "web")
"""Of tests/, in this order; those that are there."""
OK, TESTS_FAILED, NO_TESTS = 0, 1, 5
"""Exit codes of pytest."""
HEAD = """| server | version | date | tests | passed | failed | skipped |
|---|---|---|---|---|---|---|
"""


@dataclass
class Counts:
    """One run of pytest: how many passed and were skipped, and which failed, each with the first line of why."""

    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)


class Tried(NamedTuple):
    """A server that ran, and its tests by their folder."""

    name: str
    version: str
    runs: Sequence[tuple[str, Counts]]

    def lines(self) -> Iterator[str]:
        today = datetime.now(timezone.utc).date()
        for folder, counts in self.runs:
            cells = (self.name, self.version, today, folder, counts.passed, len(counts.failed), counts.skipped)
            yield "| " + " | ".join(map(str, cells)) + " |\n"

    def passed(self) -> int:
        return sum(counts.passed for _, counts in self.runs)

    def failed(self) -> list[str]:
        return [test for _, counts in self.runs for test in counts.failed]


def try_server(recipe: Recipe, server: OtherServer, arguments: Sequence[str]) -> Tried:
    """Runs all on a server, the store's contract first."""
    folders = [folder for folder in FOLDERS if (ROOT / "tests" / folder).is_dir()]
    only = ["--on", recipe.kind, *arguments]
    runs = [(folder, run_tests(server, folder, only, narrowed=bool(arguments))) for folder in folders]
    return Tried(recipe.name, server.version, runs)


def run_tests(server: OtherServer, folder: str, arguments: Sequence[str], narrowed: bool) -> Counts:
    """In one process, as some tests count what the server does, or change its variables.

    What pytest prints goes to standard error: standard output is the table's.
    """
    with tempfile.TemporaryDirectory(prefix="taskserver-tests-") as temporary:
        report = Path(temporary) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider"]
        command += ["-p", "tests.contract.other_servers.selection", f"--junitxml={report}"]
        command += [f"--basetemp={temporary}/tests"]  # pytest's own numbered folders may be tidied away by later runs
        env = {**os.environ, **server.environment}
        code = subprocess.run(
            [*command, *arguments, f"tests/{folder}"], cwd=ROOT, env=env, stdout=sys.stderr
        ).returncode
        return judged(code, counted(report) if report.exists() else Counts(), narrowed)


def judged(code: int, counts: Counts, narrowed: bool) -> Counts:
    """With pytest's own word: it may have broken off, or found no test, which a narrower choice explains."""
    fine = {OK, TESTS_FAILED, NO_TESTS} if narrowed else {OK, TESTS_FAILED}
    if code not in fine or (code == TESTS_FAILED and not counts.failed):
        counts.failed.append(f"pytest ended with code {code}")
    return counts


def counted(report: Path) -> Counts:
    counts = Counts()
    for case in ElementTree.parse(report).iter("testcase"):
        verdicts = {child.tag: child.get("message", "") for child in case}
        if trouble := [verdicts[tag] for tag in ("failure", "error") if tag in verdicts]:
            lines = trouble[0].splitlines() or [""]
            counts.failed.append(f"{case.get('classname')}::{case.get('name')}: {lines[0]}")
        elif "skipped" in verdicts:
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def table(tried: Sequence[Tried], not_had: Sequence[tuple[str, str]]) -> str:
    """As Markdown: what was run, what failed, and what could not be had."""
    text = HEAD + "".join(line for one in tried for line in one.lines())
    failed = [f"- {one.name}: {test}\n" for one in tried for test in one.failed()]
    if failed:
        text += "\nFailed:\n\n" + "".join(failed)
    if not_had:
        text += "\nCould not be had:\n\n" + "".join(f"- {name}: {why}\n" for name, why in not_had)
    return text
