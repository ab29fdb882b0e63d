"""What became of a server: the tests that ran on it, counted, and the lines of the table."""

from __future__ import annotations

import importlib.util
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
    """A server that runs.

    environment: what tells the tests of it
    """

    @property
    def version(self) -> str: ...

    @property
    def environment(self) -> Mapping[str, str]: ...


class Run(NamedTuple):
    """Some files of tests, and what they are called in the table."""

    what: str
    files: tuple[str, ...]
    processes: int = 2


CONTRACT = (
    "contract/add",
    "contract/claim",
    "contract/pause",
    "contract/start",
    "contract/wake",
    "contract/reclaim",
    "contract/finish",
    "contract/fences",
    "contract/depend",
    "contract/operate",
    "contract/schedule",
    "contract/prune",
    "contract/rerun",
    "contract/overview",
    "contract/stats",
    "contract/browse",
    "contract/notes",
    "contract/upgrades",
    "contract/mysql_claims",
)
CLIENT = ("cli/client", "cli/add", "cli/status", "cli/check", "web/api", "web/acting", "web/least_rights")
BESIDE_OTHERS = (
    "worker/retries",
    "contract/schema",
    "contract/fork",
    *CLIENT,
    "faults/held_rows",
    "worker/runs",
    "worker/linger",
    "process/processes",
)
KINDS = (
    "features/kinds",
    "features/reruns",
    "features/schedules",
    "features/pipelines",
    "features/dependencies",
    "faults/dependency_races",
    "worker/batches",
    "worker/shared_commits",
    "features/interventions",
)
TOLD = (
    "producers/callers_connection",
    "producers/callers_sessions",
    "producers/callers_errors",
    "producers/callers_django",
    "features/transactional",
    "features/transaction_ends",
    "features/complete",
    "faults/commits",
    "faults/transfers",
    "features/results",
    "features/progress",
)
SESSIONS = ("contract/connections", "contract/mysql_session", "contract/mysql_login")
ALONE = ("faults/races", "faults/crowded_claims", "worker/leases", "worker/heartbeat", *SESSIONS)
"""They count the server's deadlocks, statements and waiting transactions, or change its variables."""
RUNS = (
    Run("the store contract", CONTRACT),
    Run("retries, schema, forks, client, held_rows, runs", BESIDE_OTHERS),
    Run("the kinds of queues", KINDS),
    Run("exactly once, results, progress", TOLD),
    Run("races, crowded claims, leases, heartbeat, connections, sessions", ALONE, processes=0),
    Run("doctor, mistakes", ("cli/doctor", "cli/mistakes"), processes=0),
)
OK, TESTS_FAILED, NO_TESTS = 0, 1, 5
"""Exit codes of pytest."""
HEAD = """| server | version | date | what was run | passed | failed | skipped |
|---|---|---|---|---|---|---|
"""


def path_of(name: str) -> str:
    """The file of tests of this name: of worker/retries, tests/worker/test_retries.py."""
    folder, _, file = name.partition("/")
    return f"tests/{folder}/test_{file}.py"


@dataclass
class Counts:
    """One run of pytest: how many passed and were skipped, and which failed, each with the first line of why."""

    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Tried:
    """A server that ran, and its tests."""

    name: str
    version: str
    runs: Sequence[tuple[str, Counts]]

    def lines(self) -> Iterator[str]:
        today = datetime.now(timezone.utc).date()
        for what, counts in self.runs:
            cells = (self.name, self.version, today, what, counts.passed, len(counts.failed), counts.skipped)
            yield "| " + " | ".join(map(str, cells)) + " |\n"

    def passed(self) -> int:
        return sum(counts.passed for _, counts in self.runs)

    def failed(self) -> list[str]:
        return [test for _, counts in self.runs for test in counts.failed]


def try_server(recipe: Recipe, server: OtherServer, arguments: Sequence[str]) -> Tried:
    """Runs all on a server, the store contract first."""
    only = ["--only-on", recipe.kind, *arguments]
    runs = [(run.what, run_tests(server, run, only, narrowed=bool(arguments))) for run in RUNS]
    return Tried(recipe.name, server.version, runs)


def run_tests(server: OtherServer, run: Run, arguments: Sequence[str], narrowed: bool) -> Counts:
    """What pytest prints goes to standard error: standard output is the table's."""
    parallel = ["-n", str(run.processes), "--dist", "loadgroup"] if importlib.util.find_spec("xdist") else []
    with tempfile.TemporaryDirectory(prefix="taskserver-tests-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", *parallel]
        command += ["-p", "no:cacheprovider", "-p", "tests.contract.other_servers.selection", f"--junitxml={report}"]
        command += [f"--basetemp={folder}/tests"]  # pytest's own numbered folders may be tidied away by later runs
        command += [*arguments, *(path_of(name) for name in run.files)]
        env = {**os.environ, **server.environment}
        code = subprocess.run(command, cwd=ROOT, env=env, stdout=sys.stderr).returncode
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
