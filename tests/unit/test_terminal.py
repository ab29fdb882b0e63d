"""The terminal: errors of wrong command lines, tables, times and colours. No database is needed."""

from __future__ import annotations

import io
import shlex
import time
from contextlib import redirect_stdout
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from taskserver.cli import client, worker
from taskserver.cli.commands.add import MAX_LINE_BYTES, tasks_of
from taskserver.cli.terminal import output
from taskserver.cli.terminal.output import MAX_CELL, MAX_LAST_CELL, Word, headed, in_column, print_table
from taskserver.cli.worker_options import read_options
from taskserver.errors import InvalidTask
from taskserver.messages.text import exactly, in_sentence, utc
from taskserver.model.task import MAX_ID
from tests.support.deployment import run_here
from tests.support.printed import parsers_of_client
from tests.support.processes import assert_one_line

MAINS = {"worker.py": worker.main, "client.py": client.main}
COMMAS = "with commas and no spaces"
NAMES = "module.function, module.Class.method or module:Class.method"
IDS = f"write ids, each from 1 to {MAX_ID}"
JSON = """in single quotes, such as '{"to": "a@example.org"}'"""
SPAN = "nor a span such as 90s, 5m, 1h or 2d"
SECONDS = "is not a number of seconds from 0 on"
WHOLE = "a whole number from"
ODD = ("1_0", "٣")  # which Python's int() and float() take

WORKER = {
    "100 '3, 5, 6'": ("'3, 5, 6'", COMMAS, "3,5,6"),
    "100 3, 5, 6": ("'3,'", COMMAS, "3,5,6"),
    "100 3 5 6": ("5 6", f"{COMMAS}, such as 3,5,6"),
    "3,5,6": ("MAX_TASKS", "'3,5,6'", "worker.py 0 3,5,6"),
    "all": ("'all'", "0 is for all"),
    "-100": ("'-100'", "from 0 on"),
    "100 4294967295": ("4294967295", "from 0 to 4294967294"),
    "--mode=done": ("--mode", "'done'", "delete", "move", "mark"),
    "--slot=2": ("unrecognized arguments: --slot=2",),
    **{f"--max-time {wrong}": ("--max-time", f"'{wrong}'", "seconds", SPAN) for wrong in ("55sec", "0s")},
    "10 3,,5": ("GROUP_IDS", COMMAS),
    **{f"--batch='{wrong}'": ("--batch", WHOLE) for wrong in ("0", "1001", *ODD)},
    "--slots=1001": ("--slots", WHOLE),
    **{f"--max-memory={wrong}": ("--max-memory",) for wrong in ("0", "nan", *ODD)},
    "--linger=0": ("--linger",),
    "--processes=101": ("--processes",),
    "--evil\x1b[2J": (),
}
CLIENT = {
    "": ("COMMAND", "client.py --help"),
    "jobs": ("'jobs'", "'add'", "'status'", "'list'"),
    "statsu": ("'statsu'; did you mean 'stats'?",),
    "--json status": ("--json", "options follow their command"),
    "list --staus fatal": ("unrecognized arguments: --staus",),
    "stats --by hours": ("did you mean 'hour'?",),
    "schedule nightly": ("name a TASK", "--every or --cron; or --now"),
    "schedule nightly tasks.a --cron * * * * *": ("and EXPR too",),
    "schedule nightly tasks.a --now": ("--now takes only the name", "client.py schedule NAME --now"),
    "list --status failed": ("'failed'", "error", "fatal"),
    "list new,error": ("'new,error' is not a status", "several are written with spaces between them"),
    "list fatel": ("'fatel' is not a status; allowed: new", "fatal"),
    f"list --limit {2**63}": ("--limit", f"{WHOLE} 1 to {2**63 - 1}"),
    "list --group 3 5": ("5", COMMAS),
    "show tasks.a": ("ID", "'tasks.a'", WHOLE),
    **{
        f"stats --since={span}": ("--since", "is not a span of time such as 90s, 5m, 1h or 2d, at most 36500d")
        for span in ("24", "36501d")
    },
}
ADD = {
    "": ("TASK", "--bulk FILE"),
    "send_letter": ("'send_letter'", NAMES),
    "'tasks.send_letter()'": ("'tasks.send_letter()'", NAMES),
    "tasks.a [] []": ("[]",),
    "tasks.send_letter {to: a}": ("a}", "ARGS_JSON", JSON),
    """tasks.a "{'to': 'a'}" """: ("ARGS_JSON", JSON),
    "tasks.a a@example.org": ("ARGS_JSON", JSON),
    "tasks.a 5": ("a bare number", "[5]"),
    """tasks.a 'a:1:{s:2:"to";s:1:"a";}'""": ("ARGS_JSON", "json_encode()"),
    "tasks.a --group 4294967296": ("--group", WHOLE),
    **{f"tasks.a --delay '{wrong}'": (f"'{wrong}' {SECONDS}",) for wrong in ("-1", "soon", "nan", "5mm", *ODD)},
    "tasks.a --delay 6000d": ('allowed: seconds, a text such as "5m", or a timedelta, from 0 to 3660 days',),
    "tasks.a --then {}": ('stage 2: it has no "task"',),
    "tasks.a --depends-on ''": (f"{COMMAS}, such as 17,18",),
    **{f"tasks.a --depends-on {wrong}": (IDS,) for wrong in ("0", "'1, 2'", str(2**64))},
    "--bulk 'no\x1b[2J'": ("no\\x1b[2J cannot be read",),
    **{f"--bulk - {given}": ("--bulk", "give it alone") for given in ("tasks.a", "--delay 0")},
}
LINES = {
    **{f"worker.py {line}": words for line, words in WORKER.items()},
    **{f"client.py {line}": words for line, words in CLIENT.items()},
    **{f"client.py add {line}": words for line, words in ADD.items()},
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(line[:60]))
def test_a_wrong_command_line_is_answered_with_the_fix(tmp_path: Path, line: str) -> None:
    (tmp_path / ".env").write_text("TASKSERVER_DSN=sqlite:///q.db\n")
    script, *arguments = shlex.split(line)
    ended = run_here(MAINS[script], tmp_path, *arguments)
    assert_one_line(ended, 2, script.removesuffix(".py"), *LINES[line])
    assert "\x1b" not in ended.stderr
    assert len(ended.stderr) < 700
    assert not (tmp_path / "q.db").exists()


# ---- help


def test_the_help_has_a_line_for_each_command_in_a_group(tmp_path: Path) -> None:
    ended = run_here(client.main, tmp_path, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    groups = [part for part in ended.stdout.split("\n\n") if part.splitlines()[0] in client.GROUPS]
    assert sorted(line.split()[0] for part in groups for line in part.splitlines()[1:]) == sorted(parsers_of_client())


def test_help_is_a_command_too(tmp_path: Path) -> None:
    asked = run_here(client.main, tmp_path, "help", "pause")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout == run_here(client.main, tmp_path, "pause", "--help").stdout
    assert "\n\nStop workers from taking tasks of some groups, or of all.\n\n" in asked.stdout


def test_the_examples_of_the_help_are_right() -> None:
    parser = client.make_parser()
    for line in client.EXAMPLES.strip().splitlines():
        script, *arguments = shlex.split(line)
        assert script == "client.py"
        parser.parse_args(arguments)


# ---- JSON lines

GOOD = b'{"task": "tasks.note"}'
BAD_LINES: list[tuple[bytes, str]] = [
    (GOOD[:-1], "it is not valid JSON"),
    (b"{'task': 'tasks.note'}", "json.dumps()"),
    (b'["tasks.note"]', "allowed: an object"),
    (b'{"task": "tasks.note", "\\u001b[2J": []}', "allowed: task, args"),
    (b'{"task": "tasks.note", "args": [NaN]}', "NaN is not a JSON number"),
    (b'{"task": "tasks.note", "args": %s}' % (b"[" * 200_000), "nested"),
    (b'{"task": "tasks.note", "args": ["%s"]}' % (b"x" * 1024 * 1024), "1048576"),
    (b'{"stages": ["tasks.note", "note"]}', "stage 2: "),
    (GOOD.decode().encode("utf-16"), "it is not UTF-8 text"),
    (GOOD + b" " * MAX_LINE_BYTES, f"it is longer than {MAX_LINE_BYTES} bytes"),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES, ids=lambda value: ascii(value[:50]))
def test_a_bad_json_line_is_named_by_its_number(line: bytes, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        tasks_of(io.BytesIO(GOOD + b"\n\n" + line + b"\n" + GOOD))
    told = str(caught.value)
    assert told.startswith("line 3: ")
    assert words in told
    assert told.endswith("; nothing was added")
    assert len(told) < 600


# ---- spans of time


def test_a_span_is_taken_wherever_an_option_has_seconds() -> None:
    assert read_options(["--max-time", "5m"]).max_time == 300
    parsers = parsers_of_client()
    assert parsers["add"].parse_args(["tasks.a", "--delay", "5m"]).delay == 300
    assert parsers["schedule"].parse_args(["name", "tasks.a", "--every", "5m"]).every == 300
    assert parsers["prune"].parse_args(["--older-than", "5m"]).older_than == 300
    assert parsers["stats"].parse_args(["--since", "5m"]).since == 300


# ---- tables, times and colours as people see them


class Screen(io.StringIO):
    """A terminal of some width, or none."""

    columns: int | None = None

    def isatty(self) -> bool:
        return self.columns is not None

    def show(self, *table: Any, **options: Any) -> list[str]:
        """The lines of a table on it."""
        self.seek(0)
        self.truncate()
        with redirect_stdout(self):
            print_table(*table, **options)
        return self.getvalue().splitlines()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setattr(output, "terminal_width", lambda stream: stream.columns)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    return Screen()


@pytest.mark.parametrize(("columns", "task", "error"), [(None, MAX_CELL, MAX_LAST_CELL), (100, 45, 46), (40, 20, 20)])
def test_long_cells_are_cut_until_a_row_is_one_line(screen: Screen, columns: int | None, task: int, error: int) -> None:
    screen.columns = columns
    head, first, second = screen.show(("id", "task", "error"), [(7, "t" * 100, "x" * 600), (12345, "tasks.a\n", None)])
    assert head == f"   id  {'task':<{task}}  error"
    assert first == f"    7  {'t' * (task - 1)}…  {'x' * (error - 1)}…"
    assert second == "12345  tasks.a\\n"


HEADS = ("id", "status", "group", "priority", "attempts", "created (UTC)", "ran", "due", "task", "arguments", "error")
ROW = (170_000, "running", 3, 0, 1, "2026-01-31 12:00:00", "2.5 h", "", "tasks.send_letter", "x" * 99, "e" * 99)


@pytest.mark.parametrize(("columns", "missing"), [(300, []), (80, ["priority", "ran", "created (UTC)", "arguments"])])
def test_a_narrow_terminal_leaves_out_columns(screen: Screen, columns: int, missing: list[str]) -> None:
    screen.columns = columns
    lines = screen.show(HEADS, [ROW], spare=("priority", "ran", "created (UTC)", "arguments", "attempts"))
    assert {head for head in HEADS if head not in lines[0]} == set(missing)
    assert max(map(len, lines)) <= columns
    assert lines[2:] == [f"a wider terminal also shows: {', '.join(missing)}"] * bool(missing)


def test_colours_are_only_for_terminals_that_want_them(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    table = (["status", "task"], [[Word("fatal"), "fatal"], [Word("new"), "tasks.a"]])
    screen.columns = 80
    plain = screen.show(*table)
    assert plain == ["status  task", "fatal   fatal", "new     tasks.a"]
    monkeypatch.delenv("NO_COLOR")
    # Of the status alone, not of a text that reads alike.
    assert screen.show(*table) == [
        "\x1b[1mstatus\x1b[0m  \x1b[1mtask\x1b[0m",
        "\x1b[31mfatal\x1b[0m   fatal",
        "new     tasks.a",
    ]
    monkeypatch.setenv("TERM", "dumb")
    assert screen.show(*table) == plain


# ---- times


def test_times_are_in_the_zone_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")  # a host may have no database of time zones
    time.tzset()
    monkeypatch.setattr(output, "zone", lambda: "CET")
    assert headed("created") == "created (CET)"
    winter = datetime(2026, 1, 31, 23, 30, tzinfo=timezone.utc)
    summer = datetime(2026, 7, 31, 12, 0, 0, 1, timezone.utc)
    assert in_column(winter) == "2026-02-01 00:30:00"
    assert in_column(summer) == "2026-07-31 14:00:00 CEST"
    assert in_sentence(winter) == "2026-02-01 00:30:00 CET"
    assert exactly(summer) == "2026-07-31 14:00:00.000001 CEST"
    assert exactly(utc("9999-12-31 23:59:59.999999")) == "9999-12-31 23:59:59.999999 UTC"
    assert utc("soon") is utc("0000-00-00 00:00:00.000000") is None
    monkeypatch.undo()
    time.tzset()
