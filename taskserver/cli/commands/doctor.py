"""client.py doctor: a line for each check of the deployment; the worst one is the exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import Any

from ...health.accepted import Accepted
from ...messages.finding import Finding, Level, worst
from ...messages.text import count_of, in_sentence, printable
from ..terminal.arguments import Queue, add, note_error, try_queue
from ..terminal.output import COLOURS, as_json, painted, show_heading, terminal_width

USAGE = 3
"""The exit code of wrong usage; the others are levels of findings."""
ACCEPTED = "accepted"
"""Shown instead of the level of an accepted finding."""
MIN_WIDTH_OF_COLUMNS = 60
"""On a narrower terminal wrapped lines have a small indent."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        description="check the installation and explain how to fix problems",
        epilog="Exit codes: 0 ok, 1 warning, 2 critical, 3 wrong usage.",
    )
    parser.usage_exit = USAGE
    add(parser, "--json")
    parser.set_defaults(run_on_queues=run)


def run(queues: Sequence[Queue], options: argparse.Namespace) -> int:
    from ...worker.limits import check_system

    check_system()
    reports, levels = dict[str, Any](), list[Level]()
    for queue in queues:
        if not options.json:
            show_heading(queue.name)
        seen, result = try_queue(queue, partial(_examined, is_quiet=options.json))
        level, report = seen or (Level.CRITICAL, {"level": str(Level.CRITICAL), "words": result.words})
        note_error(queue, result)
        levels.append(level)
        reports[queue.name] = report
    if options.json:
        print(as_json(reports.get("", reports)))
    return max(levels)


def _examined(queue: Queue, is_quiet: bool) -> tuple[Level, Mapping[str, Any]]:
    """The worst level of a queue's findings, and all of them for JSON; they are printed if not `is_quiet`."""
    from ...health.doctor import accepted_in, examine  # other commands do not need it

    queue.check_environment()
    acceptances, _ = accepted_in(queue.folder, env_file=queue.env_file)
    found, accepted = list[Finding](), list[Accepted]()
    for finding in examine(queue.folder, env_file=queue.env_file):
        counted, apart = acceptances.split([finding])
        found += counted
        accepted += apart
        if counted and not is_quiet:
            print(_shown(finding, str(finding.level), _line(finding)), flush=True)
    level = worst(found)
    if not is_quiet:
        for one in accepted:
            print(_shown(one.finding, ACCEPTED, _accepted_line(one)))
        print(_verdict(found, len(accepted)))
    findings, apart_as_dicts = [one.as_dict() for one in found], [one.as_dict() for one in accepted]
    return level, {"level": str(level), "findings": findings, "accepted": apart_as_dicts}


def _shown(finding: Finding, level: str, line: str) -> str:
    """The line of a finding; on a terminal it is wrapped, and its level coloured."""
    if not sys.stdout.isatty():
        return line
    width = terminal_width(sys.stdout)
    indent = " " * (len(_line(finding._replace(words="", why="", fix=""))) if width >= MIN_WIDTH_OF_COLUMNS else 2)
    lines = wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join([painted(level, COLOURS.get(level, ""), sys.stdout) + lines[0][len(level) :], *lines[1:]])


def _line(finding: Finding) -> str:
    text = f"{finding.level:<8} {finding.name:<14} {finding.words}"
    parts = [text, finding.why and f"Why it matters: {finding.why}", finding.fix and f"Fix: {finding.fix}"]
    return printable(" ".join(part if part[-1] in "?!" else f"{part}." for part in parts if part)).removesuffix(".")


def _accepted_line(one: Accepted) -> str:
    text = f"{ACCEPTED:<8} {one.finding.name:<14} {one.finding.words}"
    return printable(f"{text}. Accepted since {in_sentence(one.since)}: {one.reason}")


def _verdict(found: Sequence[Finding], accepted: int) -> str:
    counts = {level: sum(finding.level is level for finding in found) for level in Level}
    if counts[Level.CRITICAL] or counts[Level.WARNING]:
        verdict = (
            f"{counts[Level.CRITICAL]} critical, {count_of(counts[Level.WARNING], 'warning')}, of {len(found)} checks"
        )
    else:
        verdict = f"all is well, in {len(found)} checks"
    return f"{verdict}, and {accepted} accepted" if accepted else verdict
