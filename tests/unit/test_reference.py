"""docs/reference.md has exactly the settings, columns, commands, arguments, codes and names of the code."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import taskserver
from taskserver import Reason, RunResult, Spread, TaskServer, testing
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
from taskserver.settings.load import load_settings
from taskserver.settings.page import PageSettings, load_page_settings
from taskserver.settings.table import PAGE_KEYS, SETTING_KEYS, RunPauses
from taskserver.stores.mysql import facts as mysql
from taskserver.stores.postgresql import facts as postgresql
from taskserver.stores.queue.stats import NO_HOUR, HourStats
from taskserver.stores.sqlite import facts as sqlite
from taskserver.testing import AddedTask, FakeTask, Ran, TaskQueue, running_task, task_queue
from tests.support.deployment import ROOT
from tests.support.documents import REFERENCE, columns_in_mysql, columns_in_sqlite, prose, read, table
from tests.support.printed import arguments_of, parsers

COMMANDS = {name: parser for name, parser in parsers().items() if name != "worker.py"}


def code_in(cell: str) -> list[str]:
    """What stands in backticks, of a cell that `table` did not strip of them."""
    return re.findall(r"`([^`]+)`", cell) or [cell]


def signature_of(name: str, function: Any) -> str:
    names = [parameter for parameter in inspect.signature(function).parameters if parameter not in ("self", "cls")]
    return f"{name}({', '.join(names)})"


METHODS = {name: getattr(TaskServer, name) for name in vars(TaskServer) if not name.startswith("_")}
OF_SPREAD = {name: method for name, method in vars(Spread).items() if not name.startswith("_")}
RECORDS: list[Any] = [
    *(taskserver.QueueStatus, taskserver.GroupStatus, taskserver.LastRun, taskserver.WorkerProcess),
    *(taskserver.RunningTask, taskserver.StoredSchedule, taskserver.Finding, taskserver.TaskRow),
    *(taskserver.ErrorCount, taskserver.Selection, taskserver.CurrentTask, taskserver.FailedAttempt, AddedTask),
    taskserver.Added,
]
FIELDS: dict[str, list[str]] = {
    **{record.__name__: list(record._fields) for record in RECORDS},
    "TaskState": [*taskserver.TaskState._fields, "is_over"],
    "Progress": [*taskserver.Progress._fields, "fraction"],
    "RunResult": list(vars(RunResult())),
    "Ran": list(vars(Ran())),
    "TaskQueue": ["server", "added", "immediate", "raises", "path"],
    "FakeTask": re.findall(r"`(\w+)`", str(FakeTask.__doc__).replace("`taskserver`", "")),
}
NAMES = table(REFERENCE, "name in `taskserver`", "is", "fields")
OF_TESTING = table(REFERENCE, "name in `taskserver.testing`")
COLUMNS = [*table(REFERENCE, "column", "meaning")]
OF_OTHER_TABLES = {name: code_in(columns) for name, (_, columns) in table(REFERENCE, "table", "holds").items()}


def test_the_reference_has_every_name_of_the_package_and_of_its_testing() -> None:
    assert set(NAMES) == set(taskserver.__all__) - {"__version__"}
    functions = {signature_of(one.__name__, one) for one in (task_queue, running_task)}
    assert set(OF_TESTING) == set(testing.__all__) - {"task_queue", "running_task"} | functions
    assert signature_of("run_all", TaskQueue.run_all) in OF_TESTING["TaskQueue"][0]


def test_the_reference_has_every_field_of_a_record_in_its_order() -> None:
    assert {name: code_in(fields) for name, (_, fields) in (NAMES | OF_TESTING).items() if fields} == FIELDS


def test_the_reference_has_every_method_and_reason_and_option_of_a_task() -> None:
    methods = {signature_of(name, method) for name, method in METHODS.items() if callable(method)}
    assert set(table(REFERENCE, "TaskServer", "does")) == {signature_of("TaskServer", TaskServer)} | methods
    of_spread = {signature_of("Spread", Spread), *(signature_of(name, method) for name, method in OF_SPREAD.items())}
    assert set(table(REFERENCE, "Spread", "does")) == of_spread
    assert list(table(REFERENCE, "reason", "means")) == [reason.value for reason in Reason]
    assert list(table(REFERENCE, "@taskserver.task(…)")) == list(CHECKS)
    assert len(CHECKS) == len(TaskOptions._fields)


def test_the_reference_has_every_status_and_exit_code() -> None:
    names = {number: name for number, (name, _) in table(REFERENCE, "status", "name").items()}
    assert names == {str(status.value): status.name.lower() for status in Status}
    codes = table(REFERENCE, "code")
    for column, kind in enumerate((Exit, Level, Level)):
        assert [code for code, cells in codes.items() if cells[column]] == [str(one.value) for one in kind]


@pytest.mark.parametrize("columns_of", [columns_in_sqlite, columns_in_mysql])
def test_the_reference_has_every_column_in_its_order(columns_of: Any) -> None:
    assert columns_of("jobs_queue") == COLUMNS
    for name, columns in OF_OTHER_TABLES.items():
        assert columns_of(name) == columns + (COLUMNS if name == "jobs_queue_done" else []), name
    made = re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", (ROOT / "schema.sql").read_text())
    assert {"jobs_queue", *table(REFERENCE, "table", "holds")} == set(made)


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


def test_every_address_of_the_reference_is_one() -> None:
    for dsn in table(REFERENCE, "TASKSERVER_DSN", "is"):
        load_settings(Path("/nowhere"), {"TASKSERVER_DSN": dsn})


def test_a_server_made_by_hand_has_the_defaults_of_the_settings() -> None:
    by_hand = TaskServer("sqlite:///:memory:", folder="/nowhere").settings
    assert by_hand == load_settings(Path("/nowhere"), {"TASKSERVER_DSN": "sqlite:///:memory:"})


# ---- programs


def default_of(program: str, action: argparse.Action) -> str:
    if action.dest in ("group", "priority") and action.nargs is None:
        return str(getattr(new_task.new_task("tasks.send"), "group_id" if action.dest == "group" else "priority"))
    if action.default is False or isinstance(action, argparse._VersionAction):
        return ""
    if action.default in (None, []):
        words = {("list", "status"): "all", ("list", "statuses"): "all"}
        words |= {("worker.py", "mode"): "TASKSERVER_MODE", ("worker.py", "slots"): "4"}
        return words.get((program, action.dest), "")
    return str(action.default)


def shown(action: argparse.Action) -> str:
    """An argument as it is written in a table."""
    metavar = str(action.metavar or action.dest.upper()) if action.nargs != 0 else ""
    return " ".join(filter(None, [*action.option_strings[:1], metavar]))


def test_the_reference_has_every_option_of_the_worker_with_its_default() -> None:
    actions = [action for action in arguments_of(parsers()["worker.py"]) if action.option_strings]
    found = {option: default for option, (default, _) in table(REFERENCE, "option", "default").items()}
    assert found == {shown(action): default_of("worker.py", action) for action in actions}


def test_the_worker_s_fast_path_has_the_same_defaults() -> None:
    parser = parsers()["worker.py"]
    assert Options(**vars(argparse.ArgumentParser.parse_args(parser, []))) == Options()


def test_the_reference_has_every_argument_of_every_command_with_its_default() -> None:
    (heading,) = re.findall(r"^\| of (.*) \| chooses \|$", read(REFERENCE), re.MULTILINE)
    choices = list(table(REFERENCE, f"of {heading}", "chooses"))
    found = {}
    for name, (_, cell) in table(REFERENCE, "command", "does").items():
        assert ("[which]" in cell) == (name in code_in(heading)), name
        own = re.findall(r"`([^`]+)`(?: \(([^)]*)\))?", cell if re.search(r"[`[]", cell) else f"`{cell}`")
        found[name] = {choice: "" for choice in choices if "[which]" in cell} | dict(own if cell else [])
    assert found == {
        name: {shown(action): default_of(name, action) for action in arguments_of(parser)}
        for name, parser in COMMANDS.items()
    }


def test_the_reference_has_every_name_that_can_be_accepted() -> None:
    assert list(table(REFERENCE, "name", "is")) == [one.name for one in JUDGES]
    (section,) = re.findall(r"^### What check and doctor find\n(.*?)^##", read(REFERENCE), re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([a-z_]+)`", section))
    checks: list[Any] = [*files.CHECKS, *modules.CHECKS, *mysql.CHECKS, *postgresql.CHECKS, *sqlite.CHECKS]
    names = {*(check.name for check in checks), *(one.name for one in JUDGES), "database", "files"}
    assert named - {"status", "doctor"} == names
    refused = re.findall(r"`([a-z_]+)`", section.partition("No worker does without these")[2])
    assert set(refused) == {"database", "files", *(check.name for check in checks if not check.is_acceptable)}


def test_the_reference_has_what_stats_prints_as_json() -> None:
    hour, group, task, *others = code_in(table(REFERENCE, "JSON of", "has")["each line of `stats`"][0])
    assert {hour, group, task} == set(history.BY.values())
    for column in history.BY.values():
        assert [column, *others] == list(stats_as_json(HourStats(NO_HOUR, 0, "x"), column))


def test_json_lines_take_the_keys_that_the_reference_names() -> None:
    (keys,) = re.findall(r"JSON lines, all or none.*?keys (.*?)\.\n", read(REFERENCE), re.DOTALL)
    assert code_in(keys) == list(new_task.TASK_KEYS)
