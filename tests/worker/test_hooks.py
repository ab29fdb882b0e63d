"""TASKSERVER_SETUP, TASKSERVER_BETWEEN and TASKSERVER_ON_FAILURE: when they are called, and that they fail no task."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskserver import FailedAttempt, SettingError, Stop
from taskserver.worker import call, hooks
from taskserver.worker.hooks import HookMissing, find_hook
from tests.support.documents import blocks
from tests.support.queues import Queue
from tests.support.sites import Site

CODE = """
import sqlite3
import time

from taskserver import task

calls = []

def note():
    calls.append("note")

def fail():
    calls.append("fail")
    raise ValueError("no luck")

def rescue(error):
    calls.append("rescue")

@task(on_fatal=rescue, max_attempts=1)
def rescued():
    calls.append("rescued")
    raise KeyError("first")

def rescue_in_vain(error):
    raise ValueError("second")

@task(on_fatal=rescue_in_vain, max_attempts=1)
def in_vain():
    raise KeyError("first")

@task(batch=5)
def index(items):
    calls.append(f"index {len(items)}")

@task(timeout=0.2)
def nap():
    time.sleep(60)

def hold(path):
    held = sqlite3.connect(path, timeout=60)
    held.execute("INSERT INTO jobs_queue (task) VALUES ('theirs')")
    raise ValueError("with a transaction that is open")
"""
LOST = "status = 1, attempts = 2, claim = 1, started_at = created_at, due_at = created_at"
MakeSite = Callable[..., "Hooked"]


class Hooked(Site):
    def add(self, *names: str) -> None:
        for name in names:
            self.add_args(name, {} if name == "index" else None)


SITE = Hooked


# ---- when they are called


def test_each_is_called_around_the_calls_of_tasks_and_the_setup_before_their_import(
    make_site: MakeSite, queue_dsn: str
) -> None:
    def setup() -> None:
        assert site.name not in sys.modules
        site.module.calls.append("setup")

    site: Hooked = make_site(
        queue_dsn,
        setup=setup,
        between=lambda: site.module.calls.append("-"),
        on_failure=lambda failed: site.module.calls.append(f"failed {failed.task.rpartition('.')[2]}"),
    )
    site.add("note", "fail", "rescued", "index", "index")
    site.run()
    assert site.module.calls == [
        *("setup", "-", "note", "-", "fail", "-", "failed fail", "-", "rescued", "-", "rescue", "-", "failed rescued"),
        *("-", "index 2"),
    ]


def test_an_empty_run_calls_none(make_site: MakeSite, queue_dsn: str) -> None:
    site = make_site(queue_dsn, setup="no_site:setup", between="no_site:between")
    site.add_args("note", delay=60)
    assert site.run().taken == 0


def test_the_ends_of_the_tasks_before_are_written_when_it_is_called_between(
    make_site: MakeSite, queue_dsn: str
) -> None:
    done: list[int] = []
    site: Hooked = make_site(queue_dsn, mode="mark", between=lambda: done.append(site.rows.statuses().count(2)))
    site.add("note", "note", "note")
    site.run()
    assert done == [0, 0, 1, 2]


def test_the_failure_hook_is_called_with_each_attempt_that_failed(make_site: MakeSite, queue_dsn: str) -> None:
    found: list[FailedAttempt] = []
    site = make_site(queue_dsn, on_failure=found.append)
    site.add("fail", "rescued", "in_vain", "nap", "fail", "note")
    site.rows.set("attempts = 1, max_attempts = 2 WHERE id = 5")
    site.run()
    names = [f"{site.name}.{name}" for name in ("fail", "rescued", "in_vain", "nap", "fail")]
    assert [(one.id, one.task) for one in found] == list(enumerate(names, start=1))
    assert [(type(one.error).__name__, one.attempt, one.is_fatal) for one in found] == [
        *(("ValueError", 1, False), ("KeyError", 1, False), ("KeyError", 1, True), ("TaskInterrupted", 1, False)),
        ("ValueError", 2, True),
    ]


def test_the_failure_hook_is_called_for_rows_that_can_never_run_and_for_lost_tasks(
    make_site: MakeSite, queue_dsn: str
) -> None:
    """Not for cancelled ones. A person who reclaims or runs a task calls it, too."""
    found: list[FailedAttempt] = []
    site = make_site(queue_dsn, on_failure=found.append)
    site.server.add_task("os.system", ["true"])
    site.add("fail", "fail", "fail")
    site.rows.set(f"{LOST} WHERE id > 1")
    site.rows.set("max_attempts = 2 WHERE id = 3")
    site.rows.set("error_text = 'cancelled' WHERE id = 4")
    site.run(1)
    assert sorted((one.id, one.attempt, one.is_fatal) for one in found) == [(1, 0, True), (2, 2, False), (3, 2, True)]
    errors = {one.id: str(one.error) for one in found}
    assert errors[1].startswith("'os.system' is in none of the modules")
    assert errors[2].startswith("lost: its worker died")
    found.clear()
    site.rows.set(f"{LOST} WHERE id = 2")
    site.server.reclaim()
    site.server.run_task(2)
    assert [(one.id, one.attempt) for one in found] == [(2, 2), (2, 3)]


def test_a_connection_that_a_failed_task_left_open_does_not_block_the_run(make_site: MakeSite, sqlite_dsn: str) -> None:
    found: list[FailedAttempt] = []
    site = make_site(sqlite_dsn, db_patience=1, on_failure=found.append)
    site.add_args("hold", [sqlite_dsn.removeprefix("sqlite:///")])
    site.add("note")
    result = site.run()
    assert (result.done, result.failed, len(found)) == (1, 1, 1)


# ---- what they do wrong


def exits() -> None:
    raise SystemExit(3)


def raises() -> None:
    raise ValueError("no\nmail")


def hangs() -> None:
    time.sleep(60)


ODD = {
    raises: "failed: ValueError: no (",
    exits: "failed: SystemExit: 3 (",
    hangs: "failed: TaskInterrupted: it ran for longer than its timeout of ",
}


@pytest.mark.parametrize("odd", ODD)
def test_the_failure_of_a_setup_is_one_line_and_costs_no_attempt(
    make_site: MakeSite, queue_dsn: str, odd: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MAX_SETUP_SECONDS", 0.2)
    site = make_site(queue_dsn, setup=odd)
    site.add("note", "note")
    with pytest.raises(SettingError) as caught:
        site.run()
    assert str(caught.value).startswith(f"TASKSERVER_SETUP: setup {ODD[odd]}")
    assert "\n" not in str(caught.value)
    assert site.columns("status, attempts, started_at, error_text") == [(0, 0, None, None)] * 2


def test_a_run_that_is_asked_to_stop_during_its_setup_starts_no_task(make_site: MakeSite, queue_dsn: str) -> None:
    stop = Stop()
    site = make_site(queue_dsn, setup=stop.ask)
    site.add("note")
    assert (site.run(stop=stop).taken, site.columns("status, attempts")) == (0, [(0, 0)])


@pytest.mark.parametrize("setting", ["between", "on_failure"])
@pytest.mark.parametrize("odd", ODD)
def test_one_that_misbehaves_fails_no_task_and_is_logged_once_a_run(
    make_site: MakeSite, queue_dsn: str, caplog: pytest.LogCaptureFixture, setting: str, odd: Callable[[], None]
) -> None:
    """One that hangs is left alone: after the first time, the one for failures after the third."""
    calls: list[object] = []
    assert call.MAX_SIDE_CALL_SECONDS == 10

    def hook(*failed: object) -> None:
        calls.append(failed)
        odd()

    caplog.set_level("INFO")
    site = make_site(queue_dsn, lease=1, **{setting: hook})
    site.add("fail", "fail", "fail", "fail", "note")
    result = site.run()
    assert (result.done, result.failed, result.fatal) == (1, 4, 0)
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    logged = [(level, line) for level, line in logged if line.startswith("TASKSERVER_")]
    assert [level for level, _ in logged] == ["WARNING"] + ["INFO"] * (len(calls) - 1)
    assert logged[0][1].startswith(f"TASKSERVER_{setting.upper()}: {setting} {ODD[odd]}")
    if odd is hangs:
        assert len(calls) == (1 if setting == "between" else 3)
        assert logged[-1][1].endswith("; it is not called again in this run")


MISSING = {
    "no_module:tell": "ModuleNotFoundError: No module named 'no_module'",
    "json:__name__": "it is no function, but of type str",
    "tests.worker.test_hooks:waits": "it is an async def function, which nobody awaits; name a plain one, which may",
    "tests.worker.test_hooks:yields": "it is a generator function, and calling it would run nothing",
}


async def waits() -> None: ...


def yields() -> Any:
    yield


@pytest.mark.parametrize("name", MISSING)
def test_an_invalid_hook_is_explained_in_one_sentence(name: str) -> None:
    with pytest.raises(HookMissing) as caught:
        find_hook(name)
    assert str(caught.value).startswith(MISSING[name])


def test_a_hook_that_is_missing_is_logged_once_a_run_and_fails_no_task(
    make_site: MakeSite, queue_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site(queue_dsn, on_failure="no_module:tell")
    site.add("fail", "fail", "note")
    assert site.run().done == 1
    end = "cannot be used: ModuleNotFoundError: No module named 'no_module'; it is not called again in this run"
    assert caplog.text.count(f"TASKSERVER_ON_FAILURE: no_module:tell {end}") == 1


# ---- what the documents say, and the doctor


def test_the_hook_of_the_documents_mails_a_fatal_task_by_sendmail(
    make_site: MakeSite, queue_dsn: str, tmp_path: Path
) -> None:
    sendmail, mail = tmp_path / "sendmail", tmp_path / "mail"
    sendmail.write_text(f'#!/bin/sh\necho "$@" >"{mail}"; cat >>"{mail}"\n')
    sendmail.chmod(0o755)
    (code,) = [block.text for block in blocks("docs/logging.md") if "/usr/sbin/sendmail" in block.text]
    alerts: dict[str, Any] = {}
    exec(code.replace("/usr/sbin/sendmail", str(sendmail)), alerts)
    site = make_site(queue_dsn, on_failure=alerts["notify"])
    site.add("fail")
    site.rows.execute("INSERT INTO jobs_queue (task) VALUES (?)", ["tasks.no\nBcc: someone@example.org"])
    site.run()
    head = "-t -i\nTo: you@example.org\nSubject: task 2 'tasks.no\\nBcc: someone@example.org' is fatal\n"
    assert mail.read_text().startswith(head)


def test_the_doctor_says_what_fails_in_the_setup_and_looks_at_no_module_then(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKSERVER_SETUP", "site_of_tests:setup")
    (queue.folder / "site_of_tests.py").write_text("def setup(): raise ValueError('no mail\\nat all')\n")
    ended = queue.here("doctor", "--json")
    found = {one["name"]: (one["level"], one["words"]) for one in json.loads(ended.stdout)["findings"]}
    assert found["setup"][0] == "critical"
    words = "TASKSERVER_SETUP: site_of_tests:setup failed: ValueError: no mail (site_of_tests.py, line 1)"
    assert words in found["setup"][1]
    assert not {"modules", "callables"} & set(found)
