"""What Django promises of its Tasks API, of taskserver's backend: run by Python from 3.12 on, in a copy of this folder.

test_django_tasks.py starts it, with the queue and the site's orders in one database.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import django

django.setup()

import pytest  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.checks import run_checks  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.tasks import TaskResultStatus, task, task_backends  # noqa: E402
from django.tasks.exceptions import (  # noqa: E402
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultMismatch,
)
from django.tasks.signals import task_enqueued, task_finished, task_started  # noqa: E402
from django.test import override_settings  # noqa: E402
from shop import tasks  # noqa: E402
from shop.models import Order  # noqa: E402

import taskserver  # noqa: E402
from taskserver import TablesMissing, TaskServer, testing  # noqa: E402
from taskserver.django import Backend  # noqa: E402
from taskserver.interrupts.stop import TaskInterrupted  # noqa: E402

SERVER = TaskServer.from_env(settings.BASE_DIR)
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
BACKEND = {"BACKEND": "taskserver.django.Backend"}


@pytest.fixture(scope="module", autouse=True)
def _tables() -> Iterator[None]:
    SERVER.create_tables()
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    yield
    SERVER.close()
    connection.close()


@pytest.fixture(autouse=True)
def _empty(_tables: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM jobs_queue")
    Order.objects.all().delete()
    tasks.ran.clear()


def rows() -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT task, args, group_id, priority, status FROM jobs_queue ORDER BY id")
        return list(cursor.fetchall())


def done(result: Any) -> Any:
    """What a task returned, once it has run."""
    SERVER.run()
    result.refresh()
    assert result.status == SUCCESSFUL, result.errors
    return result.return_value


@contextmanager
def heard(*signals: Any) -> Iterator[list[Any]]:
    """In the `with`, what receivers of these signals get: sender, signal, status at that time, and the result."""
    told: list[Any] = []

    def hear(**words: Any) -> None:
        result = words["task_result"]
        told.append((words["sender"], words["signal"], result.status, result))

    with received(hear, *signals):
        yield told


@contextmanager
def received(receiver: Callable[..., object], *signals: Any) -> Iterator[None]:
    for signal in signals:
        signal.connect(receiver)
    try:
        yield
    finally:
        for signal in signals:
            signal.disconnect(receiver)


# ---- adding


def test_a_task_is_a_row_of_its_group_and_smaller_priorities_run_sooner() -> None:
    result = tasks.send_letter.enqueue(to="Ada")
    assert rows() == [("shop.tasks.send_letter", '{"to":"Ada"}', 3, -5, 0)]
    assert (result.status, result.args, result.kwargs) == (READY, [], {"to": "Ada"})
    assert abs(result.enqueued_at - datetime.now(timezone.utc)) < timedelta(minutes=1)
    assert not result.is_finished
    with pytest.raises(ValueError, match="not finished"):
        result.return_value  # noqa: B018


def test_a_result_read_again_is_the_one_that_was_given() -> None:
    at = datetime(2031, 3, 4, 5, 6, tzinfo=timezone.utc)
    given = tasks.greet.using(queue_name="mail", priority=-100, run_after=at).enqueue("Ada")
    read = tasks.greet.get_result(given.id)
    given.refresh()
    assert read == given


def test_positions_beside_keywords_become_keywords_and_a_task_knows_its_attempt() -> None:
    result = tasks.greet.enqueue("Ada", greeting="Hi")
    assert (result.args, result.kwargs) == (["Ada"], {"greeting": "Hi"})
    assert done(result) == "Hi, Ada"
    told = tasks.tell.enqueue("a", mark="!")
    assert done(told) == [1, told.id, "RUNNING", True, 1, "a!"]
    with pytest.raises(InvalidTask, match="kept by their names"):
        tasks.greet.enqueue("Ada", name="Grace")


def test_tasks_that_cannot_run_are_refused_as_django_does() -> None:
    def inner() -> Iterator[int]:
        yield 1

    for words, change in (
        ("whole number between -100 and 100", {"priority": 101}),
        ("'letters' is not valid", {"queue_name": "letters"}),
        ("must be an aware datetime", {"run_after": datetime(2031, 1, 1)}),  # noqa: DTZ001
    ):
        with pytest.raises(InvalidTask, match=words):
            tasks.greet.using(**change)
    with pytest.raises(InvalidTask, match="module level"):
        task(inner)
    inner.__qualname__ = "inner"
    with pytest.raises(InvalidTask, match="generator function"):
        task(inner)
    with pytest.raises(InvalidTask, match=r"@taskserver\.task\(unique_key=…\), which \.enqueue"):
        task(taskserver.task(unique_key="a")(tasks.plain))
    for error, argument in ((TypeError, object()), (InvalidTask, "a" * 1_100_000)):
        with pytest.raises(error):
            tasks.greet.enqueue(argument)
    assert rows() == []


def test_a_task_waits_for_its_time() -> None:
    result = tasks.greet.using(run_after=datetime.now(timezone.utc) + timedelta(hours=1)).enqueue("Ada")
    past = tasks.greet.using(run_after=datetime.now(timezone.utc) - timedelta(hours=1)).enqueue("Grace")
    assert SERVER.run().done == 1
    assert tasks.ran == ["Grace"]
    assert [tasks.greet.get_result(one.id).status for one in (result, past)] == [READY, SUCCESSFUL]


def test_a_site_without_time_zones_gives_and_gets_naive_times() -> None:
    with override_settings(USE_TZ=False):
        at = datetime(2031, 1, 2, 3, 4)  # noqa: DTZ001
        result = tasks.greet.using(run_after=at).enqueue("Ada")
        assert tasks.greet.get_result(result.id).task.run_after == at
    aware = tasks.greet.get_result(result.id)
    assert aware.task.run_after == datetime(2031, 1, 2, 2, 4, tzinfo=timezone.utc)


def test_it_can_be_awaited() -> None:
    result = asyncio.run(tasks.later.aenqueue(1))
    assert asyncio.run(tasks.later.aget_result(result.id)).args == [1]
    assert done(result) == 2


# ---- in the site's transactions


def test_a_task_is_there_once_its_transaction_is_committed_or_not_at_all() -> None:
    with suppress(LookupError), transaction.atomic():
        Order.objects.create(customer="Ada")
        tasks.greet.enqueue("Ada")
        raise LookupError
    assert (Order.objects.count(), rows()) == (0, [])
    with transaction.atomic():
        result = tasks.greet.enqueue("Ada")
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
    assert done(result) == "Hello, Ada"
    with suppress(LookupError), transaction.atomic():
        tasks.greet.using(backend="at_once").enqueue("Grace")
        raise LookupError
    assert SERVER.run().done == 1


# ---- results


def test_results_that_are_not_there_are_said_to_be_so() -> None:
    plain, nobody = (SERVER.add_task(f"shop.tasks.{name}") for name in ("plain", "nobody"))
    for missing in ("999999", "one", "٣", "1" * 5000, str(plain), str(nobody)):
        with pytest.raises(TaskResultDoesNotExist):
            tasks.greet.get_result(missing)
    with pytest.raises(TaskResultMismatch):
        tasks.later.get_result(tasks.greet.enqueue("Ada").id)


@pytest.mark.parametrize(
    ("one", "end"), [(tasks.sleep, FAILED), (tasks.sleep_awaited, FAILED), (tasks.sleep_again, READY)]
)
def test_a_task_that_takes_too_long_has_failed_or_is_ready_while_attempts_are_left(one: Any, end: Any) -> None:
    with heard(task_finished) as told:
        result = one.enqueue()
        SERVER.run()
    result.refresh()
    assert [(status, result.status) for _, _, status, _ in told] == [(end, end)]
    (error,) = told[0][3].errors
    assert error.exception_class is TaskInterrupted
    assert error.traceback.endswith("TaskInterrupted: it ran for longer than its timeout of 0.5 s")


def test_a_task_that_was_cancelled_has_failed() -> None:
    def cancel(**words: Any) -> None:
        with TaskServer.from_env(settings.BASE_DIR) as other:
            assert other.cancel(int(words["task_result"].id)) == 1

    with heard(task_finished) as told, received(cancel, task_started):
        result = tasks.wait_for_cancel.enqueue()
        with TaskServer.from_settings(SERVER.settings._replace(lease_seconds=1)) as server:
            server.run()
    result.refresh()
    assert [(status, result.status) for _, _, status, _ in told] == [(FAILED, FAILED)]
    assert told[0][3].errors[0].exception_class is TaskInterrupted


def test_a_done_task_has_its_times_and_its_value_in_the_archive_too() -> None:
    result = tasks.greet.enqueue("Ada")
    with TaskServer.from_settings(SERVER.settings._replace(mode="move")) as server:
        server.run()
    assert rows() == []
    result.refresh()
    assert (result.return_value, result.is_finished) == ("Hello, Ada", True)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert (result.last_attempted_at, result.attempts) == (result.started_at, 1)


def test_a_failed_task_is_tried_again_and_then_failed() -> None:
    result = tasks.fail.enqueue(7)
    assert SERVER.run().failed == 1
    result.refresh()
    assert (result.status, result.attempts, result.finished_at) == (READY, 1, None)
    assert result.errors[0].traceback.startswith("ArithmeticError: 7 in attempt 1")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE jobs_queue SET status = 0, due_at = NULL")
    assert SERVER.run().fatal == 1
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 2)
    assert result.errors[0].exception_class is ArithmeticError
    assert "raise ArithmeticError" in result.errors[0].traceback
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018


# ---- at the worker


def test_signals_tell_of_each_attempt_with_the_whole_result() -> None:
    with heard(task_enqueued, task_started, task_finished) as told:
        given = [tasks.send_letter.enqueue(to="Ada")]
        SERVER.run()
        given.append(tasks.fail.enqueue(7))
        SERVER.run()
    signals = [
        (Backend, signal, status, one.id)
        for one, end in zip(given, (SUCCESSFUL, READY), strict=True)
        for signal, status in ((task_enqueued, READY), (task_started, RUNNING), (task_finished, end))
    ]
    assert [(*begin, result.id) for *begin, result in told] == signals
    ended, failed = told[2][3], told[5][3]
    assert (ended.task.queue_name, ended.task.priority, ended.kwargs) == ("mail", 5, {"to": "Ada"})
    assert ended.return_value is None
    assert ended.enqueued_at < ended.finished_at
    assert failed.errors[0].exception_class is ArithmeticError
    assert failed.errors[0].traceback.startswith("Traceback")
    assert "taskserver" not in failed.errors[0].traceback


def test_a_receiver_that_fails_does_not_fail_the_task(caplog: pytest.LogCaptureFixture) -> None:
    def broken(**words: Any) -> None:
        raise LookupError

    with received(broken, task_started, task_finished):
        assert done(tasks.greet.enqueue("Ada")) == "Hello, Ada"
    assert [record.name for record in caplog.records if record.levelname == "ERROR"] == ["django.dispatch"] * 2


def test_arguments_that_do_not_fit_are_fatal_and_so_are_tasks_of_modules_that_are_not_listed() -> None:
    SERVER.add_task("shop.tasks.greet", [1, 2, 3])
    SERVER.add_task("shop.tasks.tell", {"context": 1})
    assert SERVER.run().fatal == 2
    texts = sorted(error.line for error in SERVER.errors())
    assert "shop.tasks.greet(name, greeting=…) does not take these arguments" in texts[0]
    assert "shop.tasks.tell(word=…, mark=…) does not take these arguments" in texts[-1]
    names = ("shop.unlisted.imported", "shop.tasks.imported", "shop.tasks.Order", "shop.tasks.greet.func")
    SERVER.add_tasks({"task": name} for name in names)
    assert SERVER.run().fatal == 4


def test_a_function_and_a_coroutine_use_djangos_database_whose_connections_are_closed_after_each() -> None:
    for one in (tasks.order, tasks.order_awaited):
        result = one.enqueue("Ada")
        SERVER.run()
        assert connection.connection is None
        assert done(result) == Order.objects.latest("id").pk


def test_tasks_run_in_the_ways_that_options_choose() -> None:
    once = tasks.order_exactly_once.enqueue("Ada")
    notes = [tasks.note.enqueue(str(number)) for number in range(3)]
    assert [done(one) for one in (once, *notes)] == [None, "0", "1", "2"]
    assert Order.objects.count() == 1


def test_worker_py_runs_tasks_from_cron() -> None:
    result = tasks.greet.enqueue("Ada")
    worker = [sys.executable, str(settings.BASE_DIR / "worker.py")]
    environ = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environ["TASKSERVER_SETUP"] = "shop.worker:setup"
    ended = subprocess.run(worker, cwd="/", env=environ, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    assert done(result) == "Hello, Ada"


def test_a_test_s_queue_takes_and_retries_what_the_site_adds() -> None:
    with testing.task_queue(folder=settings.BASE_DIR) as queue, transaction.atomic():
        failed, greeted = tasks.fail.enqueue(7), tasks.greet.enqueue("Ada")
        assert [task.task for task in queue.added] == ["shop.tasks.fail", "shop.tasks.greet"]
        ran = queue.run_all(until=2, raises=False)
        assert ran.called == ["shop.tasks.fail", "shop.tasks.greet", "shop.tasks.fail"]
        for result in (failed, greeted):
            result.refresh()
        assert (failed.status, failed.attempts, greeted.return_value) == (FAILED, 2, "Hello, Ada")
    assert rows() == []


# ---- settings


def test_wrong_options_are_refused_with_what_is_allowed() -> None:
    for words, params in (
        ("OPTIONS has folders; allowed: folder, database, groups", {"OPTIONS": {"folders": "/"}}),
        ("is 'other'; allowed: an alias in DATABASES, or None", {"OPTIONS": {"database": "other"}}),
        ("the number of a group for each queue", {"OPTIONS": {"groups": {"default": -1}}}),
        ("QUEUES has ..mail..; allowed: .*'default'", {"QUEUES": ["default", "mail"]}),
    ):
        with pytest.raises(InvalidTaskBackend, match=f"^TASKS.'one'.: .*{words}"):
            Backend("one", BACKEND | params)


def test_manage_py_check_tells_what_is_wrong() -> None:
    found = run_checks()
    assert [message.id for message in found] == ["taskserver.W002"]
    words = "(connection leads to SQLite|the connection that was given reaches no tables)"
    assert re.match(rf"TASKS\['elsewhere'\]: {words}", found[0].msg)
    with pytest.raises((InvalidTask, TablesMissing)):
        tasks.greet.using(backend="elsewhere").enqueue("Ada")
    folder = settings.BASE_DIR / "wrong"
    folder.mkdir(exist_ok=True)
    for id_, words, text in (
        ("taskserver.E001", "TASKSERVER_DSN is not set", ""),
        ("taskserver.W001", "client.py init", "TASKSERVER_DSN=sqlite:///x.db\n"),
    ):
        (folder / ".env").write_text(text)
        backend = Backend("one", BACKEND | {"OPTIONS": {"folder": str(folder), "database": None}})
        (message,) = backend.check()
        assert message.id == id_
        assert words in message.msg
    assert (task_backends["default"].supports_get_result, backend.supports_get_result) == (True, False)  # by the mode
