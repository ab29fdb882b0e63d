"""docs/reference.md says what the code does: each setting, column, command, argument, code and name, and no other."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import taskserver
from taskserver import Reason, RunResult, TaskServer
from taskserver.cli.commands import history
from taskserver.cli.terminal.output import stats_as_json
from taskserver.cli.terminal.program import Exit
from taskserver.cli.worker_options import Options
from taskserver.health import files, modules
from taskserver.health.judge import JUDGES
from taskserver.messages.finding import Level
from taskserver.model import new_task
from taskserver.model.task import Status
from taskserver.model.task_options import CHECKS
from taskserver.model.task_options import Options as TaskOptions
from taskserver.settings.load import Settings, load_settings
from taskserver.settings.page import PageSettings, load_page_settings
from taskserver.settings.table import PAGE_KEYS, SETTING_KEYS, RunPauses
from taskserver.stores.mysql import facts as mysql
from taskserver.stores.postgresql import facts as postgresql
from taskserver.stores.queue.stats import NO_HOUR, HourStats
from taskserver.stores.sqlite import facts as sqlite
from taskserver.testing import AddedTask, FakeTask, Ran, TaskQueue, running_task, task_queue
from tests.support.commands import arguments_of, parsers
from tests.support.deployment import ROOT
from tests.support.documents import REFERENCE, columns_in_mysql, columns_in_sqlite, prose, read, table

COMMANDS = {name: parser for name, parser in parsers().items() if name != "worker.py"}


def signature_of(name: str, function: Any) -> str:
    names = [parameter for parameter in inspect.signature(function).parameters if parameter not in ("self", "cls")]
    return f"{name}({', '.join(names)})"


METHODS = {name: getattr(TaskServer, name) for name in vars(TaskServer) if not name.startswith("_")}
OPTIONS_OF_A_TASK = list(CHECKS)
TUPLES: list[Any] = [
    *(taskserver.QueueStatus, taskserver.GroupStatus, taskserver.LastRun, taskserver.WorkerProcess),
    *(taskserver.RunningTask, taskserver.StoredSchedule, taskserver.Finding),
    *(taskserver.TaskRow, taskserver.ErrorCount),
]
COLUMNS = [*table(REFERENCE, "column", "meaning")]
WORKERS = [*table(REFERENCE, "column of `jobs_queue_workers`")]
ORDERED: dict[tuple[str, ...], list[str]] = {
    ("code", "of `worker.py` and of `client.py`"): [str(code.value) for code in Exit],
    ("code", "of `client.py doctor`"): [str(code.value) for code in Level],
    ("code", "of `client.py check`"): [str(code.value) for code in Level],
    ("reason", "means"): [reason.value for reason in Reason],
    ("RunResult", "is"): list(vars(RunResult())),
    ("@taskserver.task(…)",): OPTIONS_OF_A_TASK,
    ("`task_queue(…)` of `taskserver.testing`",): list(inspect.signature(task_queue).parameters),
    ("AddedTask", "is"): list(AddedTask._fields),
    ("Ran", "is"): list(vars(Ran())),
    ("`running_task(…)` of `taskserver.testing`",): list(inspect.signature(running_task).parameters),
    **{(kind.__name__, "is"): list(kind._fields) for kind in TUPLES},
}
UNORDERED: dict[tuple[str, ...], set[str]] = {
    ("table", "holds"): set(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", (ROOT / "schema.sql").read_text()))
    - {"jobs_queue"},
    ("TaskServer", "does"): {signature_of("TaskServer", TaskServer)}
    | {signature_of(name, method) for name, method in METHODS.items() if callable(method)},
    ("TaskQueue", "is"): {"server", "added", "immediate", "raises", "path"}
    | {signature_of("run_all", TaskQueue.run_all)},
    ("FakeTask", "is"): set(re.findall(r"`(\w+)`", str(FakeTask.__doc__))) - {"taskserver"},
    ("name in `taskserver`",): set(taskserver.__all__) - {"__version__"},
}
"""By the heads of a table: what stands in its first column."""


@pytest.mark.parametrize("heads", ORDERED)
def test_the_reference_has_every_code_reason_status_and_option_in_its_order(heads: tuple[str, ...]) -> None:
    assert list(table(REFERENCE, *heads)) == ORDERED[heads]


@pytest.mark.parametrize("heads", UNORDERED)
def test_the_reference_has_every_table_method_and_name(heads: tuple[str, ...]) -> None:
    assert set(table(REFERENCE, *heads)) == UNORDERED[heads]


def test_the_reference_has_the_names_of_statuses_and_all_options_of_a_task() -> None:
    names = {number: name for number, (name, _) in table(REFERENCE, "status", "name").items()}
    assert names == {str(status.value): status.name.lower() for status in Status}
    assert len(OPTIONS_OF_A_TASK) == len(TaskOptions._fields)


@pytest.mark.parametrize("columns_of", [columns_in_sqlite, columns_in_mysql])
def test_the_reference_has_every_column_in_its_order(columns_of: Any) -> None:
    assert columns_of("jobs_queue") == COLUMNS
    assert columns_of("jobs_queue_done") == ["done_id", *COLUMNS]
    assert columns_of("jobs_queue_workers") == WORKERS
    assert columns_of("jobs_queue_schedules") == list(table(REFERENCE, "column of `jobs_queue_schedules`"))
    assert columns_of("jobs_queue_notes") == list(table(REFERENCE, "column of `jobs_queue_notes`"))


# ---- settings


def settings_by_key() -> dict[str, object]:
    """The value of each setting, by its key, as it is where the file names the database alone."""
    settings = load_settings(Path("/nowhere"), {"TASKSERVER_DSN": "sqlite:///:memory:"})
    values: dict[str, object] = dict(zip(SETTING_KEYS[2:], settings[2:], strict=True))
    assert len(settings) == len(SETTING_KEYS)  # `folder` stands there, and the password is a part of the DSN
    return values


def written(value: object) -> str:
    """A value as .env has it."""
    if isinstance(value, RunPauses):
        return ",".join(f"{seconds:g}" for seconds in value)
    if isinstance(value, tuple) and type(value) is tuple:
        return ",".join(value)
    return "none" if value is None else ":".join(map(str, value)) if isinstance(value, tuple) else str(value)


def test_the_reference_has_every_setting_with_its_default() -> None:
    found = {key: default for key, (default, _) in table(REFERENCE, "setting", "default").items()}
    defaults = {key: written(value) for key, value in settings_by_key().items()}
    assert found == {"TASKSERVER_DSN": "none", "TASKSERVER_PASSWORD": "none"} | defaults


def test_the_reference_has_every_setting_of_the_page_with_its_default() -> None:
    found = {key: default for key, (default, _) in table(REFERENCE, "setting of the page", "default").items()}
    assert found == dict.fromkeys(PAGE_KEYS, "none") | {"TASKSERVER_PAGE_ACTIONS": "no"}
    assert load_page_settings(Path("/nowhere")) == PageSettings()


def test_the_example_of_settings_has_every_setting_with_its_default() -> None:
    found = dict(re.findall(r"^# (TASKSERVER_\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert tuple(found) == SETTING_KEYS + PAGE_KEYS
    assert {key: found[key] for key in PAGE_KEYS if found[key]} == {"TASKSERVER_PAGE_ACTIONS": "no"}
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


def test_a_server_made_by_hand_has_the_defaults_of_the_settings() -> None:
    by_hand = TaskServer("sqlite:///:memory:", folder="/nowhere").settings
    assert by_hand == load_settings(Path("/nowhere"), {"TASKSERVER_DSN": "sqlite:///:memory:"})


# ---- programs


def default_of(program: str, action: argparse.Action) -> str:
    if action.dest in ("group", "priority") and action.nargs is None:
        return str(getattr(new_task.new_task("tasks.send"), "group_id" if action.dest == "group" else "priority"))
    if action.default is False or isinstance(action, argparse._VersionAction):
        return "off"
    if action.default in (None, []):
        words = {("list", "status"): "all", ("list", "statuses"): "all"}
        words |= {("worker.py", "mode"): "TASKSERVER_MODE", ("worker.py", "slots"): "4"}
        return words.get((program, action.dest), "none")
    return str(action.default)


def shown(action: argparse.Action) -> str:
    """An argument as it is written in a table."""
    metavar = str(action.metavar or action.dest.upper()) if action.nargs != 0 else ""
    return " ".join(filter(None, [*action.option_strings[:1], metavar]))


def test_the_reference_has_every_option_of_the_worker_with_its_default() -> None:
    actions = [action for action in arguments_of(parsers()["worker.py"]) if action.option_strings]
    found = {option: default for option, (default, _) in table(REFERENCE, "option", "default").items()}
    assert found == {shown(action): default_of("worker.py", action) for action in actions}


def test_the_worker_takes_the_same_defaults_on_its_short_way() -> None:
    parser = parsers()["worker.py"]
    assert Options(**vars(argparse.ArgumentParser.parse_args(parser, []))) == Options()


def test_the_reference_has_every_command_and_says_which_print_json() -> None:
    found = {name: json for name, (_, json) in table(REFERENCE, "command", "does").items()}
    prints_json = {
        name: "yes" if any(action.dest == "json" for action in parser._actions) else "no"
        for name, parser in COMMANDS.items()
    }
    assert found == prints_json


def test_the_reference_has_every_argument_of_every_command_with_its_default() -> None:
    found = {argument: default for argument, (default, _) in table(REFERENCE, "argument", "default").items()}
    assert found == {
        f"{name} {shown(action)}": default_of(name, action)
        for name, parser in COMMANDS.items()
        for action in arguments_of(parser)
    }


def test_the_reference_has_every_name_that_can_be_accepted() -> None:
    assert list(table(REFERENCE, "name", "is")) == [one.name for one in JUDGES]
    (section,) = re.findall(r"^### What check and doctor find\n(.*?)^##", read(REFERENCE), re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([a-z_]+)`", section))
    checks: list[Any] = [*files.CHECKS, *modules.CHECKS, *mysql.CHECKS, *postgresql.CHECKS, *sqlite.CHECKS]
    names = {*(check.name for check in checks), *(one.name for one in JUDGES), "database", "files"}
    assert named - {"status", "doctor"} == names
    refused = re.findall(r"`([a-z_]+)`", section.partition("No worker does without these")[2])
    assert set(refused) == {"database", "files", *(check.name for check in checks if not check.may_stay)}


@pytest.mark.parametrize("column", history.BY.values())
def test_the_reference_has_what_stats_prints_as_json(column: str) -> None:
    first, *others = table(REFERENCE, "of each line of `stats --json`")
    assert [column, *others] == list(stats_as_json(HourStats(NO_HOUR, 0, "x"), column))
    (meaning,) = table(REFERENCE, "of each line of `stats --json`")[first]
    assert column in [first, *re.findall("`([a-z_]+)`", meaning)]


def test_json_lines_take_the_keys_that_the_reference_names() -> None:
    _, meaning = table(REFERENCE, "argument", "default")["add --bulk FILE"]
    assert re.findall(r"`([a-z_]+)`", meaning) == list(new_task.TASK_KEYS)
