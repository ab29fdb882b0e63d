"""The documents: every block is run, every link leads somewhere, and the reference says what the code does."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql
import pytest

import taskserver
from taskserver import DatabaseError, Reason, RunResult, TaskServer
from taskserver.cli import client
from taskserver.cli.commands import stats as stats_command
from taskserver.cli.commands.doctor import Health
from taskserver.cli.terminal import arguments as usage
from taskserver.cli.terminal.output import stats_as_json
from taskserver.cli.terminal.program import Exit
from taskserver.cli.worker_options import Options, read_options
from taskserver.doctor.findings import Level
from taskserver.model import new_task
from taskserver.model.task import MODES, Status
from taskserver.model.task_options import Options as TaskOptions
from taskserver.settings.checks import SETTING_KEYS
from taskserver.settings.load import Settings, load_settings
from taskserver.stores.queue.stats import HourStats
from tests.support.deployment import ROOT
from tests.support.documents import (
    DOCUMENTS,
    Block,
    anchors,
    blocks,
    links,
    prose,
    read,
    sections,
    table,
    words_in_backticks,
)
from tests.support.processes import assert_one_line
from tests.support.queues import Queue
from tests.support.reader import Reader, command_of
from tests.support.servers import MySQLServer

REFERENCE = "docs/reference.md"
TUTORIAL = "docs/shared-hosting.md"
UPGRADING = "docs/upgrading.md"
SECURITY = "docs/security.md"

NOT_RUN = {
    (UPGRADING, "ALTER TABLE jobs_queue_workers"): "for tables of version 1: run by tests/stores/test_upgrades.py",
    (UPGRADING, "ALTER TABLE jobs_queue ADD COLUMN version"): "for tables of version 2: the same",
    (UPGRADING, "ALTER TABLE jobs_queue ADD COLUMN stages"): "for tables of version 3: the same",
    (UPGRADING, "ALTER TABLE jobs_queue ADD COLUMN result"): "for tables of version 4: the same",
    (TUTORIAL, "/home/you/"): "a picture of folders",
    (
        "docs/kinds/exactly_once.md",
        "import taskserver\nfrom django",
    ): "as in tests/faults/test_transfers.py",
    ("examples/demo/README.md", ".venv/bin/python -m examples.demo"): "looks at what make demo built, which takes long",
}
"""Blocks that are no commands, or cost too much: by document, and how they begin."""


def is_run(block: Block) -> bool:
    return not any(block.document == document and block.text.startswith(begin) for document, begin in NOT_RUN)


# ---- blocks


def test_what_is_not_run_is_still_there() -> None:
    for document, begin in NOT_RUN:
        assert [block.text.startswith(begin) for block in blocks(document)].count(True) == 1, (document, begin)


@pytest.fixture
def reader(tmp_path: Path, mysql_server: MySQLServer, php: str) -> Iterator[Reader]:
    reader = Reader(tmp_path, mysql_server, php)
    try:
        yield reader
    finally:
        reader.close()


def follow(reader: Reader, found: Sequence[Block]) -> None:
    for block in filter(is_run, found):
        reader.follow(block)
    reader.assert_that_every_task_ran()


def test_the_tutorial_leads_from_the_upload_to_tasks_that_ran(reader: Reader) -> None:
    reader.make_users()
    reader.upload()
    follow(reader, blocks(TUTORIAL))
    assert (reader.folder / "var" / "greetings.txt").read_text() == "Hello Ada\nHello Grace\n"


SECTIONS = [
    pytest.param(found, id=f"{document} {section}".strip().replace(" ", "-"))
    for document in DOCUMENTS
    if document != TUTORIAL
    for section, found in sections(document)
    if any(map(is_run, found))
]


@pytest.mark.parametrize("found", SECTIONS)
def test_what_a_section_says_can_be_done_from_top_to_bottom(reader: Reader, found: list[Block]) -> None:
    if "CREATE USER" not in "".join(block.text for block in found):
        reader.make_users()
    reader.install()
    if found[0].document == UPGRADING and any("unzip" in block.text for block in found):
        reader.upload()
    follow(reader, found)


# ---- least rights


@pytest.fixture
def guarded(reader: Reader) -> Reader:
    """With the users of docs/security.md."""
    reader.install()
    for block in dict(sections(SECURITY))["Least rights"]:
        reader.follow(block)
    return reader


ADD = "INSERT INTO jobs_queue (task, args, group_id, priority) VALUES ('tasks.greet', '[1]', 3, 10)"


def test_the_least_rights_of_a_website_are_to_add_tasks(guarded: Reader) -> None:
    with guarded.connect("you_web", "web-password") as connection, connection.cursor() as cursor:
        cursor.execute(ADD)
    with TaskServer(guarded.dsn("you_web", "web-password"), folder=guarded.folder) as server:
        assert len(server.add_tasks([{"task": "tasks.greet", "args": ["Ada"]}] * 2)) == 2


REFUSED = [
    "SELECT task FROM jobs_queue",
    "INSERT INTO jobs_queue (task, status) VALUES ('tasks.greet', 4)",
    "INSERT INTO jobs_queue (id, task) VALUES (17, 'tasks.greet')",
    "INSERT INTO jobs_queue (task, error_text) VALUES ('tasks.greet', 'x')",
    "INSERT INTO jobs_queue (task, args) SELECT task, args FROM jobs_queue",
    "INSERT INTO jobs_queue (task) VALUES ('x') ON DUPLICATE KEY UPDATE task = 'y'",
    "REPLACE INTO jobs_queue (task) VALUES ('tasks.greet')",
    "UPDATE jobs_queue SET status = 0",
    "DELETE FROM jobs_queue",
    "TRUNCATE jobs_queue",
    "INSERT INTO jobs_queue_done (id, task) VALUES (1, 'tasks.greet')",
    "INSERT INTO jobs_queue_schema (version) VALUES (99)",
    "INSERT INTO jobs_queue_dependencies (parent_id, child_id) VALUES (1, 2)",
    "INSERT INTO jobs_queue_workers (host, group_ids, pid) VALUES ('h', 'all', 1)",
    "DROP TABLE jobs_queue",
]


def test_a_website_with_the_least_rights_is_refused_all_else(guarded: Reader) -> None:
    with guarded.connect("you_web", "web-password") as connection, connection.cursor() as cursor:
        for statement in REFUSED:
            with pytest.raises(pymysql.MySQLError, match="denied"):
                cursor.execute(statement)


@pytest.mark.parametrize("mode", MODES)
def test_the_least_rights_of_a_worker_are_enough(guarded: Reader, mode: str) -> None:
    dsn = guarded.dsn("you_worker", "worker-password")
    with TaskServer(dsn, folder=guarded.folder, mode=mode) as server:
        ids = server.add_tasks({"task": f"tasks.{name}", "args": ["Ada"]} for name in ("greet", "nothing", "greet"))
        server.add_task("tasks.rebuild_index", depends_on=ids[::2])
        server.store.claims.claim(1, ())
        guarded.execute("UPDATE jobs_queue SET due_at = NOW() - INTERVAL 1 DAY WHERE status = 1")
        result = server.run()
        assert (result.done, result.fatal, result.reason) == (3, 1, Reason.EMPTY)
        assert [row.rows for row in server.store.views.counts()] == ([3, 1] if mode == "mark" else [1])
        assert server.store.views.show(10**6) is None


BEYOND_THE_FOUR = "(status, max_attempts, due_at, unique_key, version, stages)"


def test_a_producer_that_gives_more_than_the_four_columns_needs_the_rights_that_the_document_names(
    guarded: Reader,
) -> None:
    assert all(f"`{column}`" in prose(SECURITY) for column in re.findall(r"\w+", BEYOND_THE_FOUR))
    with TaskServer(guarded.dsn("you_web", "web-password"), folder=guarded.folder) as server:
        with pytest.raises(DatabaseError, match=r"see docs/security\.md"):
            server.add_task("tasks.greet", ["Ada"], delay=60)
        guarded.execute(f"GRANT INSERT {BEYOND_THE_FOUR} ON you_queue.jobs_queue TO 'you_web'@'%'")
        parent = server.add_task("tasks.greet", ["Ada"], delay=60, max_attempts=3)
        server.add_pipeline(["tasks.greet", "tasks.rebuild_index"], ["Ada"])
        with pytest.raises(DatabaseError, match=r"see docs/security\.md"):
            server.add_task("tasks.greet", ["Ada"], depends_on=[parent])
        guarded.execute("GRANT INSERT ON you_queue.jobs_queue_dependencies TO 'you_web'@'%'")
        server.add_task("tasks.greet", ["Ada"], depends_on=[parent])
        with pytest.raises(DatabaseError, match=r"see docs/security\.md"):
            server.add_task("tasks.greet", ["Ada"], unique_key="one")
        guarded.execute("GRANT SELECT, UPDATE ON you_queue.jobs_queue TO 'you_web'@'%'")
        first = server.add_task("tasks.greet", ["Ada"], unique_key="one")
        assert server.add_task("tasks.greet", ["Ada"], unique_key="one", rerun=True, version=2) == first


def test_a_worker_that_may_not_pause_is_told_which_account_may(guarded: Reader) -> None:
    worker = TaskServer(guarded.dsn("you_worker", "worker-password"), folder=guarded.folder)
    with worker as server, pytest.raises(DatabaseError, match=r"pause, resume, .* and prune need an operator's"):
        server.pause(3)
    with TaskServer(guarded.dsn("you_operator", "operator-password"), folder=guarded.folder) as server:
        assert server.pause(3)


def test_the_least_rights_of_monitoring_are_to_look(guarded: Reader) -> None:
    with TaskServer(guarded.dsn("you_monitor", "monitor-password"), folder=guarded.folder) as server:
        assert server.store.views.counts() == []
        assert server.store.views.runs() == []
        assert server.store.views.list([], [], 10) == []
        assert server.store.views.show(1) is None
        with pytest.raises(DatabaseError, match="denied"):
            server.add_task("tasks.greet")


def test_the_rights_for_making_tables_are_enough(guarded: Reader) -> None:
    with TaskServer(guarded.dsn("you_admin", "admin-password"), table="letters") as server:
        server.create_tables()
        server.create_tables()


# ---- the lines of a crontab


@pytest.mark.parametrize(
    "line",
    [
        "*/5 * * * /usr/bin/true",
        "60 * * * * /usr/bin/true",
        "* * 0 * * /usr/bin/true",
        "* * * * 8 /usr/bin/true",
        "*/5 * * * * date +%H",
        "every five minutes",
    ],
)
def test_a_line_that_cron_would_refuse_is_found(line: str) -> None:
    with pytest.raises(AssertionError):
        command_of(line)


# ---- the first screen


def test_the_first_screen_of_the_readme_is_one_screen() -> None:
    first_screen = read("README.md").partition("\n---\n")[0].splitlines()
    assert len(first_screen) <= 45
    assert max(map(len, first_screen)) <= 120


# ---- links and names


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(document: str) -> None:
    for link in links(document):
        assert "://" not in link, link
        target, _, anchor = link.partition("#")
        path = (ROOT / document).parent / target if target else ROOT / document
        assert path.exists(), f"{document} links to {link}"
        assert not anchor or anchor in anchors(path), f"{document} links to {link}"


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Those of worker.py, of client.py, and of its commands, by their names."""
    return {"worker.py": _parser_of_worker(), **_parsers_of_client()}


def _parser_of_worker() -> argparse.ArgumentParser:
    found: list[argparse.ArgumentParser] = []

    class Caught(Exception):
        """The parser was made."""

    def catch(self: argparse.ArgumentParser, *args: Any) -> None:
        found.append(self)
        raise Caught

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage.Parser, "parse_args", catch)
        with pytest.raises(Caught):
            read_options(["--verbose"])
    return found[0]


def _parsers_of_client() -> dict[str, argparse.ArgumentParser]:
    subparsers = usage.Parser(prog="client.py").add_subparsers(parser_class=usage.Parser)
    for command in client.COMMANDS:
        command.add_parser(subparsers)
    return dict(subparsers.choices)


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.dest != "help"]


OPTIONS = {
    option for parser in parsers().values() for action in arguments_of(parser) for option in action.option_strings
}
OF_THE_READER = {"tasks.py", "taskserver.old", "queue.php", "var/greetings.txt", "passenger_wsgi.py"} | {
    "tasks.example.py",
    "START-HERE.txt",
}
OF_OTHER_PROGRAMS = {"--help", "--no-tablespaces", "--only", "--target"}
TARGETS = set(re.findall(r"^([a-z.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FILE = re.compile(r"[\w./-]+\.(py|md|sql|php|example|toml|txt)")


def faults_of(word: str) -> Iterator[str]:
    """What a word in backticks names that is not there."""
    for key in re.findall(r"\bTASKSERVER_[A-Z_]+\b", word):
        if key not in SETTING_KEYS and key != "TASKSERVER_":
            yield f"{key} is no setting"
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", word):
        if option not in OPTIONS | OF_OTHER_PROGRAMS:
            yield f"{option} is no option"
    if FILE.fullmatch(word) and word not in OF_THE_READER and not word.startswith("/home/you/") and not _is_file(word):
        yield f"{word} is no file"
    command = re.match(r"(?:\S+ )?(?:\S*/)?client\.py ([a-z]+)", word)
    if command and command[1] not in _parsers_of_client():
        yield f"client.py has no {command[1]}"
    target = re.match(r"make ([a-z.-]+)", word)
    if target and target[1] not in TARGETS:
        yield f"make has no {target[1]}"
    name = re.fullmatch(r"@?taskserver\.(\w+)(\(.*)?", word)
    if (
        name
        and word not in OF_THE_READER
        and not hasattr(taskserver, name[1])
        and not _is_file(f"taskserver/{name[1]}")
    ):
        yield f"taskserver has no {name[1]}"


def _is_file(word: str) -> bool:
    return (ROOT / word).exists() or any(ROOT.glob(f"taskserver/**/{word}")) or any(ROOT.glob(f"examples/**/{word}"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_setting_option_and_command_in_backticks_is_there(document: str) -> None:
    faults = [fault for word in words_in_backticks(document) for fault in faults_of(word)]
    assert faults == []


@pytest.mark.parametrize(
    "word",
    [
        "TASKSERVER_MODULE",
        "--max-tim 5",
        "docs/nothing.md",
        "client.py statuses",
        "make tests",
        "python3 client.py doktor",
        "taskserver.Retries",
    ],
)
def test_a_name_that_is_not_there_would_be_found(word: str) -> None:
    assert list(faults_of(word))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_statuses_are_named_by_their_own_numbers(document: str) -> None:
    assert all(int(number) in list(Status) for number in re.findall(r"\bstatus (\d)\b", prose(document)))


# ---- settings


def settings_by_key() -> dict[str, object]:
    """The value of each setting, by its key, as it is where the file names the database alone."""
    settings = load_settings(Path("/nowhere"), {"TASKSERVER_DSN": "sqlite:///:memory:"})
    values: dict[str, object] = dict(zip(SETTING_KEYS[2:], settings[2:], strict=True))
    assert len(settings) == len(SETTING_KEYS)  # `folder` stands there, and the password is a part of the DSN
    return values


def written(value: object) -> str:
    """A value as .env has it."""
    if isinstance(value, tuple) and type(value) is tuple:
        return ",".join(value)
    return "none" if value is None else ":".join(map(str, value)) if isinstance(value, tuple) else str(value)


def test_the_reference_has_every_setting_with_its_default() -> None:
    found = {key: default for key, (default, _) in table(REFERENCE, "setting", "default").items()}
    defaults = {key: written(value) for key, value in settings_by_key().items()}
    assert found == {"TASKSERVER_DSN": "none", "TASKSERVER_PASSWORD": "none"} | defaults


def test_the_example_of_settings_has_every_setting_with_its_default() -> None:
    found = dict(re.findall(r"^# (TASKSERVER_\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert tuple(found) == SETTING_KEYS
    for key, value in settings_by_key().items():
        assert found[key] == ("" if value is None else written(value)), key
    assert found["TASKSERVER_DSN"] in prose(REFERENCE)
    assert found["TASKSERVER_PASSWORD"] == "''"


def test_the_example_of_settings_can_be_used_with_every_line_taken_in(tmp_path: Path) -> None:
    text = re.sub(r"^# (TASKSERVER_)", r"\1", (ROOT / ".env.example").read_text(), flags=re.MULTILINE)
    (tmp_path / ".env").write_text(text)
    as_it_is = load_settings(tmp_path, {})
    assert as_it_is == Settings(tmp_path, as_it_is.dsn)


@pytest.mark.parametrize("dsn", table(REFERENCE, "TASKSERVER_DSN", "is"))
def test_every_address_of_the_reference_is_one(dsn: str) -> None:
    load_settings(Path("/nowhere"), {"TASKSERVER_DSN": dsn})


# ---- columns, statuses


def columns_in_sqlite(name: str) -> list[str]:
    connection = sqlite3.connect(":memory:")
    connection.executescript((ROOT / "taskserver" / "stores" / "sqlite" / "schema.sql").read_text())
    return [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]


def columns_in_mysql(name: str) -> list[str]:
    found = re.search(rf"CREATE TABLE IF NOT EXISTS {name} \((.*?)\n\)", (ROOT / "schema.sql").read_text(), re.DOTALL)
    assert found
    return re.findall(r"^  ([a-z_]+) +[A-Z]", found[1], re.MULTILINE)


@pytest.mark.parametrize("columns_of", [columns_in_sqlite, columns_in_mysql])
def test_the_reference_has_every_column_in_its_order(columns_of: Any) -> None:
    columns = list(table(REFERENCE, "column", "meaning"))
    assert columns == columns_of("jobs_queue")
    assert ["done_id", *columns] == columns_of("jobs_queue_done")
    assert list(table(REFERENCE, "column of `jobs_queue_workers`")) == columns_of("jobs_queue_workers")


def test_the_reference_has_every_table() -> None:
    names = set(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", (ROOT / "schema.sql").read_text()))
    assert set(table(REFERENCE, "table", "holds")) == names - {"jobs_queue"}


def test_the_reference_has_every_status() -> None:
    found = {number: name for number, (name, _) in table(REFERENCE, "status", "name").items()}
    assert found == {str(status.value): status.name.lower() for status in Status}


# ---- programs


def default_of(action: argparse.Action) -> str:
    if action.dest in ("group", "priority") and action.nargs is None:
        parameters = inspect.signature(TaskServer.add_task).parameters
        return str(parameters["group_id" if action.dest == "group" else "priority"].default)
    known = {("list", "status"): "all", ("worker.py", "mode"): "TASKSERVER_MODE"}
    if action.default is False:
        return "off"
    if action.default in (None, []):
        return known.get((_program_of(action), action.dest), "none")
    return str(action.default)


def _program_of(action: argparse.Action) -> str:
    return next(name for name, parser in parsers().items() if any(same(action, own) for own in parser._actions))


def same(one: argparse.Action, other: argparse.Action) -> bool:
    return (one.option_strings, one.dest, one.nargs, one.help) == (
        other.option_strings,
        other.dest,
        other.nargs,
        other.help,
    )


def shown(action: argparse.Action) -> str:
    """An argument as it is written in a table."""
    metavar = str(action.metavar or action.dest.upper()) if action.nargs != 0 else ""
    return " ".join(filter(None, [*action.option_strings[:1], metavar]))


def test_the_reference_has_every_option_of_the_worker_with_its_default() -> None:
    actions = [action for action in arguments_of(parsers()["worker.py"]) if action.option_strings]
    found = {option: default for option, (default, _) in table(REFERENCE, "option", "default").items()}
    assert found == {shown(action): default_of(action) for action in actions}


def test_the_worker_takes_the_same_defaults_on_its_short_way() -> None:
    parser = parsers()["worker.py"]
    assert Options(**vars(argparse.ArgumentParser.parse_args(parser, []))) == Options()


def test_the_reference_has_every_command_and_says_which_print_json() -> None:
    commands = parsers()
    del commands["worker.py"]
    found = {name: json for name, (_, json) in table(REFERENCE, "command", "does").items()}
    prints_json = {
        name: "yes" if any(action.dest == "json" for action in parser._actions) else "no"
        for name, parser in commands.items()
    }
    assert found == prints_json


def test_the_reference_has_every_argument_of_every_command_with_its_default() -> None:
    found = {argument: default for argument, (default, _) in table(REFERENCE, "argument", "default").items()}
    commands = parsers()
    del commands["worker.py"]
    assert found == {
        f"{name} {shown(action)}": default_of(action)
        for name, parser in commands.items()
        for action in arguments_of(parser)
    }


def test_the_reference_has_every_exit_code() -> None:
    codes = table(REFERENCE, "code", "of `worker.py` and of `client.py`")
    assert list(codes) == [str(code.value) for code in Exit]


def test_the_reference_has_every_exit_code_of_the_doctor() -> None:
    assert list(table(REFERENCE, "code", "of `client.py doctor`")) == [str(code.value) for code in Health]


def test_the_reference_has_what_status_and_doctor_print_as_json(sqlite_queue: Queue) -> None:
    status = json.loads(sqlite_queue.client("status", "--json").stdout)
    assert list(table(REFERENCE, "status --json")) == list(status)
    health = json.loads(sqlite_queue.client("doctor", "--json").stdout)
    assert list(table(REFERENCE, "doctor --json")) == list(health)
    (meaning,) = table(REFERENCE, "doctor --json")["checks"]
    assert re.findall("`([a-z]+)`", meaning) == list(health["checks"][0])
    assert all(f"`{level.value}`" in prose(REFERENCE) for level in Level)


@pytest.mark.parametrize("column", stats_command.BY.values())
def test_the_reference_has_what_stats_prints_as_json(column: str) -> None:
    first, *others = table(REFERENCE, "of each line of `stats --json`")
    assert [column, *others] == list(stats_as_json(HourStats("2026-11-22 10:00:00", 0, "x"), column))
    (meaning,) = table(REFERENCE, "of each line of `stats --json`")[first]
    assert column in [first, *re.findall("`([a-z_]+)`", meaning)]


def test_the_reference_has_every_reason_for_which_a_run_ends() -> None:
    assert list(table(REFERENCE, "reason", "means")) == [reason.value for reason in Reason]


@pytest.mark.parametrize(("program", "change"), [("newer", -1), ("older", 1)])
def test_a_worker_says_of_tables_of_another_version_what_the_document_says(
    sqlite_queue: Queue, program: str, change: int
) -> None:
    sqlite_queue.sql("UPDATE jobs_queue_schema SET version = version + ?", change)
    ended = sqlite_queue.worker()
    _, said = table(UPGRADING, "program", "tables")[program]
    assert_one_line(ended, Exit.DATABASE)
    assert re.sub(r"\d+", "…", said) == re.sub(r"\d+", "…", ended.stderr.partition(": ")[2].strip())


# ---- Python


def signature_of(name: str, function: Any) -> str:
    names = [parameter for parameter in inspect.signature(function).parameters if parameter not in ("self", "cls")]
    return f"{name}({', '.join(names)})"


def test_the_reference_has_every_method_of_a_server_with_its_parameters() -> None:
    methods = {
        name: getattr(TaskServer, name)
        for name, value in vars(TaskServer).items()
        if not name.startswith("_") and callable(getattr(TaskServer, name))
    }
    expected = {signature_of("TaskServer", TaskServer)} | {signature_of(*method) for method in methods.items()}
    assert set(table(REFERENCE, "TaskServer", "does")) == expected


def test_a_server_made_by_hand_has_the_defaults_of_the_settings() -> None:
    by_hand = TaskServer("sqlite:///:memory:", folder="/nowhere").settings
    assert by_hand == load_settings(Path("/nowhere"), {"TASKSERVER_DSN": "sqlite:///:memory:"})


def test_the_reference_has_everything_of_a_result() -> None:
    assert list(table(REFERENCE, "RunResult", "is")) == list(vars(RunResult()))


def test_the_reference_has_every_option_of_a_task() -> None:
    parameters = [name for name in inspect.signature(taskserver.task).parameters if name != "function"]
    assert list(table(REFERENCE, "@taskserver.task(…)")) == parameters
    assert len(parameters) == len(TaskOptions._fields)


def test_the_reference_has_everything_that_the_package_hands_out() -> None:
    assert set(table(REFERENCE, "name in `taskserver`")) == set(taskserver.__all__) - {"__version__"}


def test_json_lines_take_the_keys_that_the_reference_names() -> None:
    _, meaning = table(REFERENCE, "argument", "default")["add --bulk FILE"]
    assert re.findall(r"`([a-z_]+)`", meaning) == list(new_task.TASK_KEYS)
