"""client.py check: one line as monitoring plugins print it, or a mail if something has changed.

It checks a queue against limits, and prints a line or JSON. With --mail it compares the findings with those reported
before, and prints only the changes. Or it accepts a finding.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from ...errors import DatabaseError, SettingError
from ...health.accepted import accept, read_accepted, withdraw
from ...health.alarm import Change, bad, changed, name_of, restore
from ...health.judge import LIMITS, Limit, Limits, judged, oldest_ready, silence_seconds, span
from ...health.status import QueueStatus
from ...host.once_an_hour import OVER, OnceAnHour
from ...messages.finding import Finding, Level
from ...messages.programs import client_in
from ...messages.text import age, error_in_shell, in_sentence, printable
from ...model.backoff import DAY_SECONDS
from ...server import TaskServer
from ...settings.table import MAX_DAYS
from ..terminal.arguments import Queue, add, look_at, whole_number, whole_seconds
from ..terminal.output import MAX_LAST_CELL, as_json, cut
from ..terminal.program import CommandResult, Exit, result_of

CHECK_ANSWER_SECONDS = 8.0
"""Monitoring programs usually wait for ten seconds."""
HEAD = "TASKSERVER"
WORST_LAST: list[int] = [Level.OK, Level.WARNING, Level.UNKNOWN, Level.CRITICAL]
"""Of several queues: a wrong setting of one must not hide what is critical in another."""
ERRORS_MAILED = 3
MAX_COLUMNS = 79
"""Of a line before its performance data: what a pager shows."""
MIN_COLUMNS = 20
"""Of the words in it."""
MAX_COUNT = 10**12
ABOUT = """\
More than N is a warning, and more than three times N critical (of fatal tasks
more than 9 at least); N:M gives both limits. S also 90s, 5m, 1h or 2d.
An alarm that does not nag is this line of a crontab whose MAILTO is you:
  */5 * * * * /usr/bin/python3 /home/you/taskserver/client.py check --mail
Exit codes: 0 OK, 1 warning, 2 critical, 3 wrong usage or setting; with --mail
0 whenever it could look."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "check", description="print one line for monitoring, or a mail of what has changed", epilog=ABOUT
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage_exit, parser.usage_head = Level.UNKNOWN, f"{HEAD} {Level.UNKNOWN.name}"
    count, seconds = whole_number(0, MAX_COUNT), whole_seconds(1, MAX_DAYS * DAY_SECONDS)
    for option, metavar, finding, kind, about in (
        ("--max-ready", "N", "ready", _limit(count), "how many tasks may be ready; default: any"),
        ("--max-age", "S", "waiting", _limit(seconds), "how long a ready task may wait; default 1h"),
        ("--max-fatal", "N", "fatal", _limit(count, 9), "how many tasks may be fatal; default 0"),
        (
            "--max-silence",
            "S",
            "cron",
            _limit(seconds),
            "how long ago the last run may have begun; default: cron's interval",
        ),
    ):
        parser.add_argument(option, metavar=metavar, dest=f"limit_{finding}", type=kind, help=about)
    add(parser, "--group")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--mail", action="store_true", help="print only what has changed since the last check --mail")
    add(ways, "--json")
    ways.add_argument("--accept", metavar="NAME", help="accept this finding: it no longer counts, here and in doctor")
    ways.add_argument("--withdraw", metavar="NAME", help="count this finding again")
    parser.add_argument("--reason", metavar="TEXT", help="with --accept: why it stays as it is")
    parser.set_defaults(run_on_queues=run)


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


def _limits(options: argparse.Namespace) -> Limits:
    """The limits by the names of their findings."""
    given = {name.removeprefix("limit_"): value for name, value in vars(options).items() if name.startswith("limit_")}
    return {**LIMITS, **{name: limit for name, limit in given.items() if limit is not None}}


class Seen(NamedTuple):
    """What is found of one queue."""

    level: Level
    line: str
    """With its name, if it is not the only one."""
    report: Mapping[str, Any]
    """For JSON."""
    performance: str = ""
    unseen: Sequence[str] = ()
    """What could not be checked."""


def run(queues: Sequence[Queue], options: argparse.Namespace) -> int:
    """Any error is one line on standard output, as monitoring reads nothing else."""
    result = result_of(lambda: _run(queues, options))
    return _print({"": _failed("", result)}, options.json) if result.words else result.code


def _run(queues: Sequence[Queue], options: argparse.Namespace) -> int:
    if (options.accept is None) != (options.reason is None):
        raise SettingError("--accept NAME and --reason TEXT go together: say why it stays as it is here")
    if options.accept is not None or options.withdraw is not None:
        if len(queues) > 1:
            raise SettingError("--accept and --withdraw take one --env: what is accepted belongs to one queue")
        with queues[0].open() as server:
            if options.accept is not None:
                return _accept(server, options.accept, options.reason)
            return _withdraw(server, options.withdraw)
    limits, groups = _limits(options), tuple(sorted(set(options.groups)))
    if options.mail:
        unsent, levels = list[OSError](), list[int]()
        for queue in queues:
            if not unsent:  # else this mail would be lost, and its changes not mailed again
                levels.append(_mail_of(queue, limits, groups, unsent))
        return max(levels, key=WORST_LAST.index)

    def look(queue: Queue) -> Seen:
        with queue.open() as server:
            return _seen(_look(server, limits, groups), limits, queue.name)

    looks = look_at(queues, look)
    return _print({queue.name: seen or _failed(queue.name, result) for queue, seen, result in looks}, options.json)


def _print(by_name: Mapping[str, Seen], in_json: bool) -> int:
    """Print what is found of each queue, and return the worst level."""
    if in_json:
        reports = {name: seen.report for name, seen in by_name.items()}
        print(as_json(reports.get("", reports)))
    else:
        print(_in_lines(list(by_name.values())))
    return max((seen.level for seen in by_name.values()), key=WORST_LAST.index)


def _failed(name: str, result: CommandResult) -> Seen:
    level = _level_of(result)
    line = f"{_head(level, name)}{_plain(result.words)}"
    return Seen(level, line, {"level": str(level), "line": line})


def _level_of(result: CommandResult) -> Level:
    return Level.UNKNOWN if result.code == Exit.USAGE else Level.CRITICAL


def _look(server: TaskServer, limits: Limits, groups: tuple[int, ...]) -> QueueStatus:
    with server.store.database.without_retries(CHECK_ANSWER_SECONDS):
        return judged(server.store, server.settings, limits, groups)


# ---- what is accepted


def _accept(server: TaskServer, name: str, reason: str) -> int:
    from ...health.doctor import acceptable  # no other check needs it

    names = acceptable(server.store)
    if name not in names:
        raise SettingError(f"{name!r} cannot be accepted; choose from {', '.join(sorted(names))}")
    server.store.tables.check()
    accept(server.store, name, reason)
    print(f"{name} is accepted: check, status and doctor no longer count it, and show it separately")
    return Level.OK


def _withdraw(server: TaskServer, name: str) -> int:
    server.store.tables.check()
    if withdraw(server.store, name):
        print(printable(f"{name} counts again"))
    else:
        accepted = ", ".join(read_accepted(server.store).notes)
        print(printable(f"{name} was not accepted; {f'accepted: {accepted}' if accepted else 'nothing is'}"))
    return Level.OK


# ---- one line


def _in_lines(seen: Sequence[Seen]) -> str:
    """The line with its performance data, and below it what could not be checked: a plugin's long output.

    Of several queues the line has the worst first.
    """
    worst_first = sorted(seen, key=lambda one: -WORST_LAST.index(one.level))
    words = "; ".join(one.line.partition(": ")[2] for one in worst_first)
    performance = " ".join(filter(None, (one.performance for one in seen)))
    line = f"{_head(worst_first[0].level)}{words}"
    return "\n".join(
        [f"{line} | {performance}" if performance else line, *(more for one in seen for more in one.unseen)]
    )


def _head(level: Level, name: str = "") -> str:
    return f"{HEAD} {level.name}: {_plain(name)}{': ' if name else ''}"


def _seen(status: QueueStatus, limits: Limits, name: str = "") -> Seen:
    start = f"{_plain(name)}: " if name else ""
    unseen = [f"{start}{_plain(finding.words)}" for finding in status.findings if finding.level is Level.UNKNOWN]
    performance = _performance(status, limits, name)
    return Seen(status.level, _line(status, name), _as_dict(status, name), performance, unseen)


def _line(status: QueueStatus, name: str) -> str:
    words = ", ".join(finding.short or finding.words for finding in bad(status.findings)) or _all_is_well(status)
    names = ", ".join(one.finding.name for one in status.accepted)
    accepted = f" (accepted: {names})" if names else ""
    head = _head(status.level, name)
    return f"{head}{cut(_plain(words), max(MAX_COLUMNS - len(head + accepted), MIN_COLUMNS))}{accepted}"


def _plain(words: str) -> str:
    """Words in one line without a "|", which would begin performance data."""
    return printable(words).replace("|", "/")


def _all_is_well(status: QueueStatus) -> str:
    words = f"{status.ready} ready"
    group, seconds = oldest_ready(status)
    if group is not None:
        words += f", the oldest for {span(seconds)}"
    if 0 < (silence := silence_seconds(status)) < inf:
        words += f", last run {span(silence)} ago"
    return words


def _performance(status: QueueStatus, limits: Limits, name: str) -> str:
    silence = silence_seconds(status)
    start, end = ("'" + re.sub("['=]", "_", _plain(name)) + " ", "'") if name else ("", "")
    return " ".join(
        f"{start}{label}{end}={value};{_bounds(limits.get(finding))};0"
        for label, value, finding in (
            ("ready", status.ready.rows, "ready"),
            ("age", f"{oldest_ready(status)[1]:.0f}s", "waiting"),
            ("fatal", status.fatal.rows, "fatal"),
            ("lapsed", status.lapsed, "leases"),
            ("silence", f"{silence:.0f}s" if silence < inf else "U", "cron"),
        )
    )


def _bounds(limit: Limit | None) -> str:
    return ";".join("" if bound is None else f"{bound:.0f}" for bound in limit or (None, None))


def _as_dict(status: QueueStatus, name: str) -> dict[str, Any]:
    group, seconds = oldest_ready(status)
    silence = silence_seconds(status)
    return {
        "level": str(status.level),
        "line": _line(status, name),
        "findings": [finding.as_dict() for finding in status.findings],
        "accepted": [one.as_dict() for one in status.accepted],
        "ready": status.ready.rows,
        "oldest_ready_seconds": None if group is None else seconds,
        "fatal": status.fatal.rows,
        "lapsed": status.lapsed,
        "silence_seconds": silence if silence < inf else None,
    }


# ---- a mail


def _mail_of(queue: Queue, limits: Limits, groups: tuple[int, ...], unsent: list[OSError]) -> int:
    """Returns 0 if it could check, else cron's subject would report a failure.

    Adds an error to `unsent` if standard output cannot be written.
    """

    def mail() -> int:
        try:
            with queue.open() as server:
                return _mail(server, limits, groups, queue)
        except OSError as error:
            if error.filename is None:
                unsent.append(error)
            raise

    result = result_of(mail)
    if result.error is not None:
        once = OnceAnHour(queue.folder, "check", str(queue.env_file or ""))  # others may have the same wrong setting
        _report_once(once, result.error, _level_of(result), queue.name)
    return _level_of(result) if result.words else result.code


def _mail(server: TaskServer, limits: Limits, groups: tuple[int, ...], queue: Queue) -> int:
    """Print what has changed."""
    name = name_of(limits, groups)
    # Each alarm reports by itself: nobody may read the output of another line.
    once = OnceAnHour(server.settings.folder, name, server.settings.queue)
    try:
        status = _look(server, limits, groups)
    except DatabaseError as error:  # no note can be written
        _report_once(once, error, Level.CRITICAL, queue.name)
        return Level.CRITICAL
    lines = [f"{_head(Level.OK, queue.name)}{OVER}", ""] if once.end_outage() else []
    change = changed(server.store, name, status)
    if change:
        lines += _letter(status, change, client_in(queue.folder, queue.env_file), queue.name)
    if lines:
        lines += [""] if queue.name else []  # before the next one
        try:
            print("\n".join(map(printable, lines)), flush=True)
        except OSError:  # it was not sent
            if change:
                restore(server.store, name, change)
            raise
    return Level.OK


def _report_once(once: OnceAnHour, error: Exception, level: Level, name: str) -> None:
    once.report(error, lambda words: print(f"{_head(level, name)}{words}", flush=True))


def _letter(status: QueueStatus, change: Change, client: str, name: str = "") -> Iterator[str]:
    """The findings and since when, and those that are over."""
    findings, accepted = bad(status.findings), [one.finding.name for one in status.accepted]
    well = _head(Level.OK, name)
    if findings:
        yield _line(status, name)
    elif change.alarm:
        yield f"{well}nothing is wrong now"
    elif accepted:
        yield f"{well}nothing else is wrong, but accepted: {', '.join(accepted)}"
    else:
        yield f"{well}all is well again"
    for finding in findings:
        reported = change.alarm.get(finding.name)
        since = f", seen first at {in_sentence(reported.first)}" if reported else ""
        yield from ["", f"{finding.name}{since}: {finding.words}", *_what_to_do(finding, status, client)]
    for name, reported in change.over.items():
        over = f"over: {name}, after {age(reported.seconds)}"
        yield from ["", f"{name} is accepted, and no longer reported" if name in accepted else over]
    if change.fault:
        yield from ["", f"This is mailed each time, because it cannot be recorded: {change.fault}"]


def _what_to_do(finding: Finding, status: QueueStatus, client: str) -> Iterator[str]:
    """The fix; for failed tasks also their most frequent errors, for fatal ones the commands that retry them."""
    is_fatal = finding.name == "fatal"
    counts = [(one.fatal if is_fatal else one.rows - one.fatal, one.line) for one in status.errors]
    most = sorted((one for one in counts if one[0]), key=lambda one: -one[0])[:ERRORS_MAILED]
    if is_fatal or finding.name == "failing":
        yield from (f"  {count} failed with: {cut(line or '(no words)', MAX_LAST_CELL)}" for count, line in most)
    yield f"What to do: {finding.fix}"
    if is_fatal:
        yield from (f"  {client} retry {chosen}" for _, line in most if (chosen := error_in_shell(line)))
