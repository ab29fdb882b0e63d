"""Wrong lines in a crontab or a shell: each is answered with one line that says what is meant, without a database."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

from taskserver.cli import client, worker
from taskserver.cli.commands.add import MAX_LINE_BYTES, tasks_of
from taskserver.cli.worker_options import read_options
from taskserver.errors import InvalidTask
from taskserver.model.task import MAX_ID
from tests.support.commands import parsers_of_client
from tests.support.deployment import run_here
from tests.support.processes import assert_one_line

MAINS = {"worker.py": worker.main, "client.py": client.main}
COMMAS = "with commas and no spaces"
NAMES = "module.function, module.Class.method or module:Class.method"
IDS = f"write ids, each from 1 to {MAX_ID}"
JSON = """in single quotes, such as '{"to": "a@example.org"}'"""
SPAN = "nor a span such as 90s, 5m, 1h or 2d"
SECONDS = "is not a number of seconds from 0 on"
WHOLE = "a whole number from"
ODD = ("1_0", " 5", "٣", "+5")  # which Python's int() and float() take

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
    **{
        f"--max-time {wrong}": ("--max-time", f"'{wrong}'", "seconds", SPAN)
        for wrong in ("55sec", "1h30m", "0s", "1.5h")
    },
    **{f"10 {wrong}": ("GROUP_IDS", COMMAS) for wrong in ("3,x", "''", "3,,5", "-3")},
    **{f"--batch='{wrong}'": ("--batch", WHOLE) for wrong in ("0", "1001", *ODD)},
    **{f"--slots={wrong}": ("--slots", WHOLE) for wrong in ("-1", "1001", "1.5", "''")},
    **{
        f"{one}='{wrong}'": (one,)
        for one in ("--max-time", "--max-memory")
        for wrong in ("0", "-1", "nan", "inf", "", *ODD)
    },
    **{f"--linger={wrong}": ("--linger",) for wrong in ("0", "1y")},
    **{f"--processes={wrong}": ("--processes",) for wrong in ("0", "101", "x")},
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
    "schedule nightly tasks.a --now": ("--now takes only the name", "client.py schedule NAME --now"),
    "init now": ("now",),
    "list --status failed": ("'failed'", "error", "fatal"),
    "list new,error": ("'new,error' is not a status", "several are written with spaces between them"),
    "list fatel": ("'fatel' is not a status; allowed: new", "fatal"),
    "list --since yesterday": ("--since", "is not a span of time"),
    f"list --limit {2**63}": ("--limit", f"{WHOLE} 1 to {2**63 - 1}"),
    "list --group all": ("--group", "'all'", "such as 3,5,6"),
    "list --group 3 5": ("5", COMMAS),
    "show tasks.a": ("ID", "'tasks.a'", WHOLE),
    f"show {2**64}": ("ID", WHOLE),
    **{
        f"stats --since={span}": ("--since", "is not a span of time such as 90s, 5m, 1h or 2d, at most 36500d")
        for span in ("''", "24", "1.5h", "-1h", "36501d")
    },
}
ADD = {
    "": ("TASK", "--bulk FILE"),
    "send_letter": ("'send_letter'", NAMES),
    "'tasks.send_letter()'": ("'tasks.send_letter()'", NAMES),
    "tasks.a [] []": ("[]",),
    "tasks.send_letter {to: a}": ("a}", "ARGS_JSON", JSON),
    "tasks.a '{to: a}'": ("ARGS_JSON", JSON),
    """tasks.a "{'to': 'a'}" """: ("ARGS_JSON", JSON),
    "tasks.a a@example.org": ("ARGS_JSON", JSON),
    """tasks.a '"a@example.org"'""": ("a bare string", '["text"]'),
    "tasks.a 5": ("a bare number", "[5]"),
    """tasks.a 'a:1:{s:2:"to";s:1:"a";}'""": ("ARGS_JSON", "json_encode()"),
    f"tasks.a {'[' * 50_000}": ("nested",),
    "tasks.a --groups 3": ("unrecognized arguments: --groups 3",),
    "tasks.a --group 4294967296": ("--group", WHOLE),
    "tasks.a --priority 2147483648": ("--priority", WHOLE),
    f"tasks.a --unique k --rerun --version {2**63}": ("--version", WHOLE),
    **{
        f"tasks.a --delay '{wrong}'": (f"'{wrong}' {SECONDS}",)
        for wrong in ("-1", "soon", "inf", "nan", "m", "5mm", "٣m", *ODD, "1e999", "9" * 400)
    },
    "tasks.a --delay 6000d": ('allowed: seconds, a text such as "5m", or a timedelta, from 0 to 3660 days',),
    "tasks.a --then {}": ('stage 2: it has no "task"',),
    """tasks.a --then '{"task": "tasks.b", "priority": NaN}'""": ("NaN is not a JSON number",),
    "tasks.a --depends-on ''": (f"{COMMAS}, such as 17,18",),
    **{f"tasks.a --depends-on {wrong}": (IDS,) for wrong in ("0", "1,", "'1, 2'", "one", str(2**64))},
    "--bulk not-there.jsonl": ("not-there.jsonl cannot be read",),
    "--bulk 'no\x1b[2J'": ("no\\x1b[2J cannot be read",),
    **{
        f"--bulk - {given}": ("--bulk", "give it alone")
        for given in ("tasks.a", "--group 3", "--delay 0", "--unique k", "--rerun", "--then tasks.a", "--depends-on 1")
    },
}
LINES = {
    **{f"worker.py {line}": words for line, words in WORKER.items()},
    **{f"client.py {line}": words for line, words in CLIENT.items()},
    **{f"client.py add {line}": words for line, words in ADD.items()},
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(line[:60]))
def test_a_wrong_line_is_answered_with_what_is_meant(tmp_path: Path, line: str) -> None:
    (tmp_path / ".env").write_text("TASKSERVER_DSN=sqlite:///q.db\n")
    script, *arguments = shlex.split(line)
    ended = run_here(MAINS[script], tmp_path, *arguments)
    assert_one_line(ended, 2, script.removesuffix(".py"), *LINES[line])
    assert "\x1b" not in ended.stderr
    assert len(ended.stderr) < 700
    assert not (tmp_path / "q.db").exists()


# ---- help


def test_the_help_has_a_line_for_each_command_in_its_group(tmp_path: Path) -> None:
    ended = run_here(client.main, tmp_path, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert max(map(len, ended.stdout.splitlines())) <= 80
    parts = ended.stdout.split("\n\n")
    groups = {part.splitlines()[0]: part.splitlines()[1:] for part in parts if part.splitlines()[0] in client.GROUPS}
    assert {heading: [line.split()[0] for line in lines] for heading, lines in groups.items()} == {
        "For producers": ["add", "schedule", "unschedule"],
        "To look": ["status", "list", "show", "stats", "errors", "check", "metrics", "page"],
        "To act": ["retry", "cancel", "delete", "priority", "pause", "resume", "reclaim", "run", "prune"],
        "For a deployment": ["init", "doctor"],
    }
    assert all(len(line.split()) > 3 for lines in groups.values() for line in lines)


def test_help_is_a_command_too(tmp_path: Path) -> None:
    for words in ((), ("pause",)):
        asked = run_here(client.main, tmp_path, "help", *words)
        assert (asked.returncode, asked.stderr) == (0, "")
        assert asked.stdout == run_here(client.main, tmp_path, *words, "--help").stdout


def test_the_examples_of_the_help_are_right_and_a_command_tells_what_it_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = client.make_parser()
    examples = client.EXAMPLES.strip().splitlines()
    for line in examples:
        script, *arguments = shlex.split(line)
        assert script == "client.py"
        parser.parse_args(arguments)
    with pytest.raises(SystemExit):
        parser.parse_args(["pause", "--help"])
    assert "\n\nStop workers from taking tasks of some groups, or of all.\n\n" in capsys.readouterr().out


# ---- JSON lines

GOOD = b'{"task": "tasks.note"}'
BAD_LINES: list[tuple[bytes, str]] = [
    (GOOD[:-1], "it is not valid JSON"),
    (b"{'task': 'tasks.note'}", "json.dumps()"),
    (GOOD + b" " + GOOD, "it is not valid JSON"),
    *((line, "allowed: an object") for line in (b'["tasks.note"]', b"5")),
    (b'{"task": "tasks.note", "\\u001b[2J": []}', "allowed: task, args"),
    (b'{"task": "tasks.note", "args": [NaN]}', "NaN is not a JSON number"),
    (b'{"task": "tasks.note", "args": ["\\ud800"]}', "args"),
    (b'{"task": "tasks.note", "args": %s}' % (b"[" * 200_000), "nested"),
    (b'{"task": "tasks.note", "args": ["%s"]}' % (b"x" * 1024 * 1024), "1048576"),
    (b'{"task": "tasks.note", "group_id": true}', "group_id is True"),
    (b'{"stages": ["tasks.note", "note"]}', "stage 2: "),
    (b'{"task": "tasks.note", "args": ["\xff\xfe"]}', "it is not UTF-8 text"),
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


@pytest.mark.parametrize(("text", "seconds"), {"90s": 90, "5m": 300, "1h": 3600, "2d": 172_800, "1w": 604_800}.items())
def test_a_span_is_taken_wherever_an_option_has_seconds(text: str, seconds: int) -> None:
    assert read_options(["--max-time", text]).max_time == seconds
    parsers = parsers_of_client()
    assert parsers["add"].parse_args(["tasks.a", "--delay", text]).delay == seconds
    assert parsers["schedule"].parse_args(["name", "tasks.a", "--every", text]).every == seconds
    assert parsers["prune"].parse_args(["--older-than", text]).older_than == seconds
    assert parsers["stats"].parse_args(["--since", text]).since == seconds
