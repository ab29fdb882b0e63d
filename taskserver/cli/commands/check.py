"""client.py check: one line as monitoring plugins print it, or a mail where the state has changed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from math import isfinite
from pathlib import Path
from typing import Any

from ...errors import DatabaseError, SettingError
from ...health.acceptance import NAMES, accept, read_accepted, withdraw
from ...health.alarms import CRITICAL, Change, changed, name_of, seconds_between, take_back
from ...health.checking import Judgement, Limit, Limits, Problem, check, span
from ...host.once_an_hour import OVER, OnceAnHour, kind_of
from ...messages.programs import CLIENT, client_in
from ...messages.text import age, error_in_shell, in_sentence, printable
from ...server import TaskServer
from ...settings.load import load_settings, outages_in
from ..terminal.arguments import add_groups, whole_number, whole_seconds
from ..terminal.output import MAX_LAST_CELL, accepted_report, as_json, cut
from ..terminal.program import Exit, result_of


class CheckExit(IntEnum):
    """The exit codes of `check`, as monitoring programs have them."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3
    """Wrong usage or setting."""


ANSWER_SECONDS = 8.0
"""Monitoring programs wait for ten seconds, as a rule."""
HEAD = "TASKSERVER"
ERRORS_TOLD = 3
MAX_COLUMNS = 79
"""Of a line before its performance data: what a pager shows."""
MIN_COLUMNS = 20
"""Of the words in it."""
MAX_COUNT = 10**12
MAX_SECONDS = 36_500 * 86_400
ABOUT = """\
A limit N warns above N, and is critical above three times N (for fatal tasks
above 9 at least); N:M gives both. S also as 90s, 5m, 1h or 2d.
An alarm that does not nag is this line of a crontab whose MAILTO is you:
  */5 * * * * /usr/bin/python3 /home/you/taskserver/client.py check --mail
Exit codes: 0 OK, 1 warning, 2 critical, 3 wrong usage or setting."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "check", help="a line for monitoring, and its exit code: OK, warning, critical", epilog=ABOUT
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage_exit, parser.usage_head = CheckExit.UNKNOWN, f"{HEAD} {CheckExit.UNKNOWN.name}"
    count, seconds = whole_number(0, MAX_COUNT), whole_seconds(1, MAX_SECONDS)
    parser.add_argument("--max-ready", metavar="N", type=_limit(count), help="ready tasks; no limit unless given")
    parser.add_argument("--max-age", metavar="S", type=_limit(seconds), help="of the oldest ready task; default 1h")
    parser.add_argument("--max-fatal", metavar="N", type=_limit(count, 9), help="fatal tasks; default 0")
    parser.add_argument(
        "--max-silence", metavar="S", type=_limit(seconds), help="since the last run; default: by the rhythm of cron"
    )
    add_groups(parser)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--mail", action="store_true", help="print only what has changed since the last check --mail")
    ways.add_argument("--json", action="store_true", help="print JSON alone")
    ways.add_argument("--accept", metavar="NAME", type=_name, help="count this finding no more, here and in doctor")
    ways.add_argument("--withdraw", metavar="NAME", help="end that")
    parser.add_argument("--reason", metavar="TEXT", help="with --accept: why it stays as it is")
    parser.set_defaults(run_in_folder=run)


def _limit(parse: Callable[[str], int], least_critical: int = 0) -> Callable[[str], Limit]:
    """An argument's type: a limit as N, or both as N:M."""

    def parse_limit(text: str) -> Limit:
        warning, colon, critical = text.partition(":")
        limit = parse(warning)
        if not colon:
            return Limit(limit, max(3 * limit, least_critical))
        if parse(critical) < limit:
            raise argparse.ArgumentTypeError(f"{text!r}: the second limit, for critical, is below the first")
        return Limit(limit, parse(critical))

    return parse_limit


def _name(text: str) -> str:
    if text in NAMES:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is nothing that can be accepted; known are {', '.join(sorted(NAMES))}")


def _limits(options: argparse.Namespace) -> Limits:
    given = {name: getattr(options, f"max_{name}") for name in ("ready", "age", "fatal", "silence")}
    groups = tuple(sorted(set(options.groups)))
    return Limits(groups=groups, **{name: limit for name, limit in given.items() if limit is not None})


def run(folder: Path, options: argparse.Namespace) -> int:
    """Whatever is wrong is one line on standard output: of a plugin nothing else is read."""
    result = result_of(lambda: _run(folder, options))
    if not result.words:
        return result.code
    code = CheckExit.UNKNOWN if result.code == Exit.USAGE else CheckExit.CRITICAL
    if options.mail and result.error is not None:
        once = OnceAnHour(outages_in(folder), "check")
        _tell(once, result.error, lambda words: [f"{HEAD} {code.name}: {_plain(words)}"])
        return code
    line = f"{HEAD} {code.name}: {_plain(result.words)}"
    print(as_json({"state": code.name.lower(), "line": line}) if options.json else line)
    return code


def _run(folder: Path, options: argparse.Namespace) -> int:
    if (options.accept is None) != (options.reason is None):
        raise SettingError("--accept NAME and --reason TEXT go together: say why it stays as it is here")
    with TaskServer.from_settings(load_settings(folder, env_file=options.env_file)) as server:
        if options.mail:
            return _mail(server, _limits(options))
        if options.accept is not None or options.withdraw is not None:
            server.store.tables.check()
            print(_accept(server, options) if options.accept is not None else _withdraw(server, options.withdraw))
            return CheckExit.OK
        with server.store.database.tried_once(ANSWER_SECONDS):
            judgement = check(server, _limits(options))
    print(as_json(_report(judgement)) if options.json else _in_lines(judgement))
    return judgement.state


def _accept(server: TaskServer, options: argparse.Namespace) -> str:
    accept(server.store, options.accept, options.reason)
    return f"{options.accept} is accepted: check, status and doctor count it no more, and show it apart"


def _withdraw(server: TaskServer, name: str) -> str:
    if withdraw(server.store, name):
        return f"{printable(name)} counts again"
    accepted = ", ".join(read_accepted(server.store).by_name)
    return printable(f"{name} was not accepted; {f'accepted: {accepted}' if accepted else 'nothing is'}")


# ---- one line


def _in_lines(judgement: Judgement) -> str:
    """The line, and below it what a plugin says at length."""
    fault = judgement.acceptances.fault
    return f"{_line(judgement)} | {_performance(judgement)}" + (f"\n{_plain(fault)}" if fault else "")


def _line(judgement: Judgement) -> str:
    words = ", ".join(problem.short for problem in judgement.problems) or _all_is_well(judgement)
    names = ", ".join(problem.name for problem in judgement.accepted)
    accepted = f" (accepted: {names})" if names else ""
    head = f"{HEAD} {judgement.state.name}: "
    return f"{head}{cut(_plain(words), max(MAX_COLUMNS - len(head + accepted), MIN_COLUMNS))}{accepted}"


def _plain(words: str) -> str:
    """Words in one line, in which no performance data seem to begin: names in them may be anybody's."""
    return printable(words).replace("|", "/")


def _all_is_well(judgement: Judgement) -> str:
    measured = judgement.measured
    waits = f", the oldest for {span(measured.oldest_seconds)}" if measured.oldest_group is not None else ""
    silence = measured.silence_seconds
    run = f", last run {span(silence)} ago" if 0 < silence < float("inf") else ""
    return f"{measured.ready} ready{waits}{run}"


def _performance(judgement: Judgement) -> str:
    measured, limits = judgement.measured, judgement.limits
    silence = measured.silence_seconds
    values: dict[str, tuple[str, Limit | None]] = {
        "ready": (f"{measured.ready.rows}", limits.ready),
        "age": (f"{measured.oldest_seconds:.0f}s", limits.age),
        "fatal": (f"{measured.fatal.rows}", limits.fatal),
        "lapsed": (f"{measured.lapsed}", Limit(0)),
        "silence": (f"{silence:.0f}s", judgement.silence) if isfinite(silence) else ("U", limits.silence),
    }
    return " ".join(f"{name}={value};{_bounds(limit)};0" for name, (value, limit) in values.items())


def _bounds(limit: Limit | None) -> str:
    return ";".join("" if bound is None else f"{bound:.0f}" for bound in limit or (None, None))


# ---- JSON


def _report(judgement: Judgement) -> dict[str, Any]:
    measured = judgement.measured
    silence = measured.silence_seconds
    return {
        "state": judgement.state.name.lower(),
        "line": _line(judgement),
        "problems": [_problem_report(problem) for problem in judgement.problems],
        "accepted": accepted_report(
            {problem.name: _problem_report(problem) for problem in judgement.accepted}, judgement.acceptances
        ),
        "ready": measured.ready.rows,
        "oldest_ready_seconds": None if measured.oldest_group is None else measured.oldest_seconds,
        "fatal": measured.fatal.rows,
        "lapsed": measured.lapsed,
        "silence_seconds": silence if isfinite(silence) else None,
    }


def _problem_report(problem: Problem) -> dict[str, Any]:
    return {
        "name": problem.name,
        "state": problem.state.name.lower(),
        "words": problem.words,
        "mend": problem.mend,
    }


# ---- a mail


def _mail(server: TaskServer, limits: Limits) -> int:
    client = client_in(server.settings.folder)
    # An alarm says it itself: the output of another line may go where nobody reads it.
    once = OnceAnHour(outages_in(server.settings.folder), name_of(limits), server.settings.queue)
    try:
        with server.store.database.tried_once(ANSWER_SECONDS):
            judgement = check(server, limits)
    except DatabaseError as error:  # which has no place for a note
        _tell(once, error, lambda words: [f"{HEAD} {CheckExit.CRITICAL.name}: {words}"])
        return CheckExit.CRITICAL
    try:
        change = changed(server.store, judgement)
    except DatabaseError as error:  # as where this account may not write notes: then it is told once an hour
        _tell(once, error, lambda words: [*_lines(judgement, client), "", f"This is told again in an hour: {words}"])
        return judgement.state
    if once.is_over():
        print(f"{HEAD} {judgement.state.name}: {OVER}")
    if change:
        try:
            print("\n".join(map(printable, _letter(judgement, change, client))), flush=True)
        except OSError:  # nobody has heard it
            with suppress(DatabaseError):
                take_back(server.store, judgement, change)
            raise
    return judgement.state


def _tell(once: OnceAnHour, error: Exception, letter: Callable[[str], list[str]]) -> None:
    """Tell of an error that leaves no place for a note, once an hour."""
    kind = kind_of(error)
    words = once.to_say(printable(str(error)), kind, sys.stdout.isatty(), isinstance(error, DatabaseError))
    if words:
        try:
            print("\n".join(map(printable, letter(words))), flush=True)
        except OSError:  # nobody has heard it
            once.forget(kind)
            raise


def _lines(judgement: Judgement, client: str = CLIENT) -> Iterator[str]:
    """What is wrong, without the instants of a note."""
    yield _line(judgement)
    for problem in judgement.problems:
        yield from _told(judgement, problem, problem.name, client)


def _told(judgement: Judgement, problem: Problem, name: str, client: str) -> Iterator[str]:
    errors = _errors(judgement, problem.name)
    yield ""
    yield f"{name}: {problem.words}"
    for rows, line in errors:
        yield f"  {rows} failed with: {cut(line or '(no words)', MAX_LAST_CELL)}"
    yield f"What to do: {problem.mend}"
    for chosen in [error_in_shell(line) for _, line in errors if problem.name == "fatal"]:
        if chosen:
            yield f"  {client} retry {chosen}"


def _errors(judgement: Judgement, name: str) -> list[tuple[int, str]]:
    """The most frequent errors of the fatal tasks, or of those in error."""
    if name not in ("fatal", "failing"):
        return []
    counted = [(one.fatal if name == "fatal" else one.rows - one.fatal, one.line) for one in judgement.errors]
    return sorted(filter(lambda one: one[0], counted), key=lambda one: -one[0])[:ERRORS_TOLD]


def _letter(judgement: Judgement, change: Change, client: str = CLIENT) -> Iterator[str]:
    before, after = change.before, change.after
    if not after.since:
        accepted = ", ".join(problem.name for problem in judgement.accepted)
        well = f"nothing else is wrong, but accepted: {accepted}" if accepted else "all is well again"
        yield f"{HEAD} OK: {well}"
        names = ", ".join(name for name in before.since if not name.endswith(CRITICAL))
        yield f"Something was wrong from {in_sentence(before.began)} on, in the end: {names}"
        yield from _over(judgement, change)
        return
    yield _line(judgement) if judgement.problems else f"{HEAD} OK: nothing is wrong now"
    for problem in judgement.problems:
        if (since := after.since.get(problem.name)) is not None:
            yield from _told(judgement, problem, f"{problem.name}, seen first at {in_sentence(since)}", client)
            if after.is_frequent(problem.name) and problem.name not in before.since:
                yield "It comes and goes: its end is told once it has been over for an hour."
    yield from _over(judgement, change)


def _over(judgement: Judgement, change: Change) -> Iterator[str]:
    """What is over, and what may come back."""
    before, after = change.before, change.after
    accepted = {problem.name for problem in judgement.accepted}
    for name, since in before.since.items():
        problem, is_critical = name.removesuffix(CRITICAL), name.endswith(CRITICAL)
        if name in after.since or (is_critical and problem not in after.since):
            continue
        yield ""
        if name in accepted:
            yield f"{name} is accepted, and told no more"
        else:
            over = "no longer critical" if is_critical else "over"
            yield f"{over}: {problem}{_after(since, before.away.get(name, judgement.now))}"
    for name in after.away:
        problem, is_critical = name.removesuffix(CRITICAL), name.endswith(CRITICAL)
        if is_critical and problem in after.away:
            continue
        comes = "is critical now and then, and not now" if is_critical else "comes and goes, and is not there now"
        yield ""
        yield f"{problem} {comes}: its end is told once it has been over for an hour or more"


def _after(since: str, now: str) -> str:
    """How long something lasted, where the note tells an instant."""
    seconds = seconds_between(since, now)
    return "" if seconds is None else f", after {age(seconds)}"
