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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from threading import Thread
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

from taskserver import TablesMissing, TaskServer, testing  # noqa: E402
from taskserver.django import Backend  # noqa: E402
from taskserver.interrupts.stop import TaskInterrupted  # noqa: E402
from taskserver.worker import callables, django_tasks  # noqa: E402

SERVER = TaskServer.from_env(settings.BASE_DIR)
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
BACKEND = {"BACKEND": "taskserver.django.Backend"}


class Undo(Exception):
    pass


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
    assert (result.backend, result.errors, result.worker_ids) == ("default", [], [])
    assert type(result.id) is str
    assert abs(result.enqueued_at - datetime.now(timezone.utc)) < timedelta(minutes=1)
    assert not result.is_finished
    with pytest.raises(ValueError, match="not finished"):
        result.return_value  # noqa: B018


def test_a_result_read_again_is_the_one_that_was_given() -> None:
    for task_, args, kwargs in (
        (tasks.greet, ["Ada"], {}),
        (tasks.send_letter.using(priority=-100), [], {"to": "Grace"}),
        (
            tasks.greet.using(queue_name="mail", run_after=datetime(2031, 3, 4, 5, 6, tzinfo=timezone.utc)),
            ["A"],
            {},
        ),
    ):
        given = task_.enqueue(*args, **kwargs)
        read = task_.get_result(given.id)
        given.refresh()
        assert read == given


def test_positions_beside_keywords_become_keywords() -> None:
    result = tasks.greet.enqueue("Ada", greeting="Hi")
    assert (result.args, result.kwargs) == (["Ada"], {"greeting": "Hi"})
    assert done(result) == "Hi, Ada"
    assert done(tasks.tell.using().enqueue("a"))[-1] == "a"
    assert done(tasks.tell.enqueue("a", mark="!"))[-1] == "a!"
    assert done(tasks.count.enqueue(1, 2)) == [[1, 2], {}]
    for args, kwargs in (((1,), {"a": 2}), (("Ada", 1, 2), {"greeting": "Hi"}), (("Ada",), {"name": "Grace"})):
        with pytest.raises(InvalidTask, match="kept by their names"):
            (tasks.count if "a" in kwargs else tasks.greet).enqueue(*args, **kwargs)


def test_an_argument_that_is_no_json_adds_nothing() -> None:
    for value in (object(), {"a": {1, 2}}, datetime.now(timezone.utc)):
        with pytest.raises(TypeError):
            tasks.greet.enqueue(value)
    with pytest.raises(InvalidTask, match="1048576"):
        tasks.greet.enqueue("a" * 1_100_000)
    assert rows() == []


def test_tasks_that_cannot_run_are_refused_as_django_does() -> None:
    def inner() -> None:
        pass

    for words, change in (
        ("whole number between -100 and 100", {"priority": 101}),
        ("whole number between -100 and 100", {"priority": -101}),
        ("whole number between -100 and 100", {"priority": 3.1}),
        ("'letters' is not valid", {"queue_name": "letters"}),
        ("must be an aware datetime", {"run_after": datetime(2031, 1, 1)}),  # noqa: DTZ001
    ):
        with pytest.raises(InvalidTask, match=words):
            tasks.greet.using(**change)
    with pytest.raises(InvalidTask, match="module level"):
        task(inner)
    with pytest.raises(InvalidTask, match="'context'"):
        task(tasks.plain, takes_context=True)


@pytest.mark.parametrize(
    "options",
    [{"batch": 10}, {"group_id": 3}, {"priority": 1}, {"unique_key": "a"}, {"rerun": True, "unique_key": "a"}],
)
def test_options_that_enqueue_does_not_look_at_are_refused(options: Any) -> None:
    from taskserver import task as with_options

    with pytest.raises(InvalidTask, match=rf"@taskserver\.task\(({'|'.join(options)})=…\), which \.enqueue"):
        task(with_options(**options)(tasks.plain))
    vars(tasks.plain).clear()


def test_a_generator_function_is_refused() -> None:
    def pages() -> Iterator[int]:
        yield 1

    pages.__qualname__ = "pages"
    with pytest.raises(InvalidTask, match="generator function"):
        task(pages)


def test_a_task_waits_for_its_time() -> None:
    result = tasks.greet.using(run_after=datetime.now(timezone.utc) + timedelta(hours=1)).enqueue("Ada")
    past = tasks.greet.using(run_after=datetime.now(timezone.utc) - timedelta(hours=1)).enqueue("Grace")
    assert SERVER.run().done == 1
    assert tasks.ran == ["Grace"]
    assert [tasks.greet.get_result(one.id).status for one in (result, past)] == [READY, SUCCESSFUL]


def test_larger_priorities_run_first() -> None:
    for priority in (0, 100, -100, 7):
        tasks.greet.using(priority=priority).enqueue(str(priority))
    SERVER.run()
    assert tasks.ran == ["100", "7", "0", "-100"]


def test_a_site_without_time_zones_gives_and_gets_naive_times() -> None:
    with override_settings(USE_TZ=False):
        at = datetime(2031, 1, 2, 3, 4)  # noqa: DTZ001
        result = tasks.greet.using(run_after=at).enqueue("Ada")
        assert tasks.greet.get_result(result.id).task.run_after == at
    aware = tasks.greet.get_result(result.id)
    assert aware.task.run_after == datetime(2031, 1, 2, 2, 4, tzinfo=timezone.utc)


def test_it_can_be_awaited() -> None:
    async def add() -> Any:
        result = await tasks.later.aenqueue(1)
        await result.arefresh()
        assert (await tasks.later.aget_result(result.id)).args == [1]
        return result

    result = asyncio.run(add())
    assert done(result) == 2
    asyncio.run(result.arefresh())
    assert result.is_finished


def test_threads_add_tasks() -> None:
    def add() -> None:
        tasks.greet.enqueue("from a thread")
        connection.close()

    threads = [Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert SERVER.run().done == 3


# ---- in the site's transactions


def test_what_is_rolled_back_takes_its_task_with_it() -> None:
    with suppress(Undo), transaction.atomic():
        Order.objects.create(customer="Ada")
        tasks.greet.enqueue("Ada")
        raise Undo
    assert (Order.objects.count(), rows()) == (0, [])


def test_a_worker_sees_the_task_once_it_is_committed() -> None:
    with transaction.atomic():
        result = tasks.greet.enqueue("Ada")
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
    assert done(result) == "Hello, Ada"


def test_without_a_database_of_the_site_the_task_is_there_at_once() -> None:
    with suppress(Undo), transaction.atomic():
        tasks.greet.using(backend="at_once").enqueue("Ada")
        raise Undo
    assert SERVER.run().done == 1


# ---- results


def test_results_that_are_not_there_are_said_to_be_so() -> None:
    plain = SERVER.add_task("shop.tasks.plain")
    nobody = SERVER.add_task("shop.tasks.nobody")
    for missing in ("999999", "-1", "", "one", "1_0", "٣", "1" * 5000, str(plain), str(nobody)):
        with pytest.raises(TaskResultDoesNotExist):
            tasks.greet.get_result(missing)
        with pytest.raises(TaskResultDoesNotExist):
            asyncio.run(tasks.greet.aget_result(missing))


def test_a_module_that_was_broken_for_a_moment_has_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    file = settings.BASE_DIR / "shop" / "deployed.py"
    task_id = str(SERVER.add_task("shop.deployed.greet"))
    file.write_text("from django.tasks import task\n@task\ndef greet(")
    with pytest.raises(TaskResultDoesNotExist, match="deployed cannot be imported: SyntaxError"):
        task_backends["default"].get_result(task_id)
    file.write_text("from django.tasks import task\n@task\ndef greet():\n    return 'Hello'\n")
    monkeypatch.setattr(callables, "BROKEN_SECONDS", 0.0)
    assert task_backends["default"].get_result(task_id).status == READY


def test_a_result_of_another_task_is_a_mismatch() -> None:
    result = tasks.greet.enqueue("Ada")
    with pytest.raises(TaskResultMismatch):
        tasks.later.get_result(result.id)


def test_a_task_in_the_archive_has_its_result() -> None:
    result = tasks.greet.enqueue("Ada")
    with TaskServer.from_settings(SERVER.settings._replace(mode="move")) as server:
        server.run()
    assert rows() == []
    assert tasks.greet.get_result(result.id).return_value == "Hello, Ada"


@pytest.mark.parametrize("one", [tasks.sleep, tasks.sleep_awaited])
def test_a_task_that_takes_too_long_has_failed(one: Any) -> None:
    result = one.enqueue()
    SERVER.run()
    result.refresh()
    assert result.status == FAILED
    assert "TaskInterrupted" in result.errors[0].traceback


def test_a_task_that_keeps_the_thread_of_the_orm_busy_costs_the_next_one_nothing() -> None:
    results = [tasks.keep_the_thread_busy.enqueue(), tasks.later.enqueue(5)]
    SERVER.run()
    for result in results:
        result.refresh()
    assert [result.status for result in results] == [FAILED, SUCCESSFUL]


@pytest.mark.parametrize("one", [tasks.sleep_again, tasks.sleep_again_awaited])
def test_a_task_that_took_too_long_is_ready_while_attempts_are_left(one: Any) -> None:
    with heard(task_finished) as told:
        result = one.enqueue()
        SERVER.run()
    result.refresh()
    assert [(status, result.status) for _, _, status, _ in told] == [(READY, READY)]
    (error,) = told[0][3].errors
    assert error.exception_class is TaskInterrupted
    assert error.traceback.endswith("TaskInterrupted: it ran for longer than its timeout of 0.5 s")


def run_in_a_thread(server: TaskServer) -> None:
    thread = Thread(target=server.run)
    thread.start()
    thread.join()


OF_CANCEL = [tasks.hear_of_cancel, tasks.hear_of_cancel_awaited, tasks.wait_for_cancel, tasks.wait_for_cancel_awaited]


@pytest.mark.parametrize(
    ("run", "one"),
    # In a thread nothing interrupts a task: it has to ask.
    [(TaskServer.run, one) for one in OF_CANCEL] + [(run_in_a_thread, one) for one in OF_CANCEL[:2]],
)
def test_a_task_that_was_cancelled_has_failed(one: Any, run: Callable[[TaskServer], object]) -> None:
    assert_failed_by_a_cancel(one, run)


def test_so_has_one_that_was_cancelled_in_a_receiver_of_its_start() -> None:
    assert_failed_by_a_cancel(tasks.wait_for_cancel, TaskServer.run, seconds=10)


def assert_failed_by_a_cancel(one: Any, run: Callable[[TaskServer], object], seconds: float = 0) -> None:
    def cancel(**words: Any) -> None:
        with TaskServer.from_env(settings.BASE_DIR) as other:
            assert other.cancel(int(words["task_result"].id)) == 1
        time.sleep(seconds)

    with heard(task_finished) as told, received(cancel, task_started):
        result = one.enqueue()
        with TaskServer.from_settings(SERVER.settings._replace(lease_seconds=1)) as server:
            run(server)
    result.refresh()
    assert [(status, result.status) for _, _, status, _ in told] == [(FAILED, FAILED)]
    assert told[0][3].errors[0].exception_class is TaskInterrupted


def test_a_done_task_has_its_times_and_its_value() -> None:
    result = tasks.greet.enqueue("Ada")
    assert done(result) == "Hello, Ada"
    assert result.is_finished
    assert result.enqueued_at <= result.started_at
    assert result.started_at <= result.finished_at
    assert (result.last_attempted_at, result.attempts) == (result.started_at, 1)


def test_a_return_value_that_is_no_json_is_not_kept_and_the_task_is_done() -> None:
    assert done(tasks.return_an_object.enqueue()) is None


@pytest.mark.skipif(connection.vendor != "sqlite", reason="a column of MySQL holds an instant, or none")
def test_a_column_that_holds_no_instant_gives_none() -> None:
    result = tasks.greet.enqueue("Ada")
    for instant in ("'soon'", "X'00'"):
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE jobs_queue SET started_at = {instant}")
        assert tasks.greet.get_result(result.id).started_at is None


def test_a_claimed_task_is_ready_until_it_starts() -> None:
    first, second = tasks.greet.enqueue("Ada"), tasks.greet.enqueue("Grace")
    seen: list[Any] = []

    def look(**words: Any) -> None:
        seen.append([tasks.greet.get_result(one.id).status for one in (first, second)])

    with received(look, task_started):
        SERVER.run()
    assert seen == [[RUNNING, READY], [SUCCESSFUL, RUNNING]]


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


def test_options_of_taskserver_stand_below_djangos_decorator() -> None:
    result = tasks.stop.enqueue()
    assert SERVER.run().fatal == 1
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == (FAILED, SystemExit)


# ---- at the worker


def test_a_task_knows_its_attempt_and_its_result() -> None:
    result = tasks.tell.enqueue("a")
    assert done(result) == [1, result.id, "RUNNING", True, 1, "a"]


ENDS = [
    (tasks.greet, ["Ada"], SUCCESSFUL),
    (tasks.fail, [7], READY),
    (tasks.stop, [], FAILED),
    (tasks.give_up, [], FAILED),
]


@pytest.mark.parametrize(("one", "args", "end"), ENDS)
def test_signals_tell_of_each_attempt(one: Any, args: list[Any], end: Any) -> None:
    with heard(task_enqueued, task_started, task_finished) as told:
        result = one.enqueue(*args)
        SERVER.run()
    signals = ((task_enqueued, READY), (task_started, RUNNING), (task_finished, end))
    assert [(*begin, result.id) for *begin, result in told] == [(Backend, *signal, result.id) for signal in signals]


def test_a_receiver_of_the_end_gets_the_whole_result() -> None:
    result = tasks.send_letter.enqueue(to="Ada")
    with heard(task_finished) as told:
        SERVER.run()
        tasks.fail.enqueue(7)
        SERVER.run()
    done, failed = [result for *_, result in told]
    assert (done.id, done.task.queue_name, done.task.priority) == (result.id, "mail", 5)
    assert (done.kwargs, done.return_value) == ({"to": "Ada"}, None)
    assert done.enqueued_at < done.finished_at
    assert failed.errors[0].exception_class is ArithmeticError
    assert failed.errors[0].traceback.startswith("Traceback")
    assert "taskserver" not in failed.errors[0].traceback


def test_a_receiver_that_fails_does_not_fail_the_task(caplog: pytest.LogCaptureFixture) -> None:
    def broken(**words: Any) -> None:
        raise Undo

    with received(broken, task_started, task_finished):
        assert done(tasks.greet.enqueue("Ada")) == "Hello, Ada"
    assert [record.name for record in caplog.records if record.levelname == "ERROR"] == ["django.dispatch"] * 2


def test_a_task_of_sql_runs_in_whatever_group_it_is() -> None:
    task_id = SERVER.add_task("shop.tasks.greet", ["Ada"], group_id=77, priority=-5000)
    SERVER.run()
    result = tasks.greet.get_result(str(task_id))
    assert (result.return_value, result.task.priority) == ("Hello, Ada", 100)


def test_arguments_that_do_not_fit_are_fatal_at_once() -> None:
    for args in ([], [1, 2, 3], {"name": "Ada", "surname": "L"}):
        SERVER.add_task("shop.tasks.greet", args)
    SERVER.add_task("shop.tasks.tell", {"context": 1})
    assert SERVER.run().fatal == 4
    texts = sorted(error.line for error in SERVER.errors())
    assert "shop.tasks.greet(name, greeting=…) does not take these arguments" in texts[0]
    assert "shop.tasks.tell(word=…, mark=…) does not take these arguments" in texts[-1]


def test_tasks_of_modules_that_are_not_listed_do_not_run() -> None:
    for name in ("shop.unlisted.imported", "shop.tasks.imported", "shop.tasks.Order", "shop.tasks.greet.func"):
        SERVER.add_task(name)
    assert SERVER.run().fatal == 4
    assert all("BadTask" in error.line for error in SERVER.errors())


def test_connections_of_django_are_closed_after_each_task() -> None:
    result = tasks.order.enqueue("Ada")
    SERVER.run()
    assert connection.connection is None
    assert done(result) == Order.objects.get(customer="Ada").pk


def test_a_coroutine_uses_djangos_database() -> None:
    assert done(tasks.order_awaited.enqueue("Ada")) == Order.objects.get(customer="Ada").pk


def test_tasks_run_in_the_ways_that_options_choose() -> None:
    once = tasks.order_exactly_once.enqueue("Ada")
    notes = [tasks.note.enqueue(str(number)) for number in range(3)]
    assert [done(one) for one in (once, *notes)] == [None, "0", "1", "2"]
    assert Order.objects.count() == 1


def test_a_task_of_another_backend_can_be_brought_here() -> None:
    result = tasks.of_another_backend.using(backend="default").enqueue()
    SERVER.run()
    read = task_backends["default"].get_result(result.id)
    assert (read.return_value, read.backend, read.task.backend) == ("ran", "default", "default")


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
        ("the number of a group for each queue", {"OPTIONS": {"groups": ["default"]}}),
        ("the number of a group for each queue", {"OPTIONS": {"groups": {"default": -1}}}),
        ("QUEUES has ..mail..; allowed: .*'default'", {"QUEUES": ["default", "mail"]}),
    ):
        with pytest.raises(InvalidTaskBackend, match=f"^TASKS.'one'.: .*{words}"):
            Backend("one", BACKEND | params)


def test_queues_are_those_that_have_a_group_unless_fewer_are_named() -> None:
    groups = {"OPTIONS": {"groups": {"default": 0, "mail": 3}}}
    assert Backend("one", BACKEND | groups).queues == {"default", "mail"}
    assert Backend("one", BACKEND | groups | {"QUEUES": ["mail"]}).queues == {"mail"}
    assert Backend("one", BACKEND).queues == {"default"}


def test_what_is_supported_follows_the_mode() -> None:
    backend = task_backends["default"]
    flags = ("supports_defer", "supports_async_task", "supports_priority", "supports_get_result")
    assert all(getattr(backend, flag) for flag in flags)
    folder = settings.BASE_DIR / "deletes"
    folder.mkdir(exist_ok=True)
    (folder / ".env").write_text("TASKSERVER_DSN=sqlite:///x.db\n")
    assert not Backend("one", BACKEND | {"OPTIONS": {"folder": folder}}).supports_get_result


def test_manage_py_check_tells_what_is_wrong() -> None:
    found = run_checks()
    assert [message.id for message in found] == ["taskserver.W002"]
    words = "(connection leads to SQLite|the connection that was given reaches no tables)"
    assert re.match(rf"TASKS\['elsewhere'\]: {words}", found[0].msg)
    folder = settings.BASE_DIR / "wrong"
    folder.mkdir(exist_ok=True)
    for id_, words, text in (
        ("taskserver.E001", "TASKSERVER_DSN is not set", ""),
        ("taskserver.E001", "TASKSERVER_MODE", "TASKSERVER_DSN=sqlite:///x.db\nTASKSERVER_MODE=keep\n"),
        ("taskserver.W001", "client.py init", "TASKSERVER_DSN=sqlite:///x.db\n"),
    ):
        (folder / ".env").write_text(text)
        options = {"OPTIONS": {"folder": str(folder), "database": None}}
        (message,) = Backend("one", BACKEND | options).check()
        assert message.id == id_
        assert words in message.msg


def test_a_database_without_the_tables_is_told_when_a_task_is_added() -> None:
    with pytest.raises((InvalidTask, TablesMissing)):
        tasks.greet.using(backend="elsewhere").enqueue("Ada")


def test_a_connection_whose_transaction_is_open_is_not_closed() -> None:
    """A test's own, whose rows the task is to see."""
    with transaction.atomic():
        connection.ensure_connection()
        before = connection.connection
        django_tasks.close_old_connections()
        assert connection.connection is before
