"""client.py doctor: a line for each check of the deployment; the worst one is the exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from textwrap import wrap
from typing import Any

from ...health.acceptance import Accepted
from ...health.finding import CheckResult, Level
from ...messages.text import in_sentence, printable
from ..terminal.live_line import terminal_width
from ..terminal.output import accepted_report, as_json
from ..terminal.style import COLOURS, painted


class Health(IntEnum):
    """The exit codes of `doctor`, as monitoring programs have them."""

    OK = 0
    WARNING = 1
    BROKEN = 2
    USAGE = 3
    """Wrong usage."""


ACCEPTED = "accepted"
"""In the place of the level of a finding that a person has accepted."""
MIN_WIDTH_OF_COLUMNS = 60
"""On a narrower terminal wrapped lines begin near its edge."""
_HEALTH = {Level.WARNING: Health.WARNING, Level.BROKEN: Health.BROKEN}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="look for what is wrong here, why it matters, and the mend",
        epilog="Exit codes: 0 well, 1 warning, 2 broken, 3 wrong usage.",
    )
    parser.usage_exit = Health.USAGE
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run_in_folder=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    from ...health.examination import accepted_in, examine  # other commands do not need it

    acceptances, found, accepted = accepted_in(folder, env_file=options.env_file), [], []
    for finding in examine(folder, env_file=options.env_file):
        if finding.level is not Level.OK and finding.check in acceptances.by_name:
            accepted.append(finding)
            continue
        found.append(finding)
        if not options.json:
            print(_shown(finding, finding.level.value, _line(finding)), flush=True)
    health = max((_HEALTH.get(finding.level, Health.OK) for finding in found), default=Health.OK)
    if options.json:
        of_accepted = accepted_report({one.check: _report(one) for one in accepted}, acceptances)
        checks = [_report(finding) for finding in found]
        print(as_json({"health": health.name.lower(), "checks": checks, "accepted": of_accepted}))
    else:
        for finding in accepted:
            print(_shown(finding, ACCEPTED, _accepted_line(finding, acceptances.by_name[finding.check])))
        print(_verdict(found, len(accepted)))
    return health


def _shown(finding: CheckResult, level: str, line: str) -> str:
    """The line of a finding; on a terminal it is wrapped, and its level coloured."""
    if not sys.stdout.isatty():
        return line
    width = terminal_width(sys.stdout)
    indent = " " * (len(_line(finding._replace(found="", why="", mend=""))) if width >= MIN_WIDTH_OF_COLUMNS else 2)
    lines = wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join([painted(level, COLOURS.get(level, ""), sys.stdout) + lines[0][len(level) :], *lines[1:]])


def _line(finding: CheckResult) -> str:
    text = f"{finding.level.value:<8} {finding.check:<14} {finding.found}"
    parts = [text, finding.why and f"Why it matters: {finding.why}", finding.mend and f"Mend: {finding.mend}"]
    return printable(" ".join(part if part[-1] in "?!" else f"{part}." for part in parts if part)).removesuffix(".")


def _accepted_line(finding: CheckResult, accepted: Accepted) -> str:
    text = f"{ACCEPTED:<8} {finding.check:<14} {finding.found}"
    return printable(f"{text}. Accepted since {in_sentence(accepted.since)}: {accepted.reason}")


def _report(finding: CheckResult) -> dict[str, str]:
    return {**finding._asdict(), "level": finding.level.value}


def _verdict(found: Sequence[CheckResult], accepted: int) -> str:
    counts = {level: sum(finding.level is level for finding in found) for level in Level}
    if counts[Level.BROKEN] or counts[Level.WARNING]:
        verdict = f"{counts[Level.BROKEN]} broken, {counts[Level.WARNING]} warnings, of {len(found)} checks"
    else:
        verdict = f"all is well, in {len(found)} checks"
    return f"{verdict}, and {accepted} accepted" if accepted else verdict
