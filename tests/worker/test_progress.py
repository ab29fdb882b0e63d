"""What a task reports by progress(), what current_task() returns, and how a cancel interrupts it.

The tasks call functions of the tests, so a test sees what its task saw.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskserver import Progress, TaskServer, TaskState, current_task, progress
from taskserver.model.results import read_progress
from taskserver.model.task import CANCELLED, Status
from taskserver.worker.task_context import CurrentTask
from tests.support.databases import EACH_DATABASE
from tests.support.processes import WAIT_SECONDS
from tests.support.proxy import Proxy
from tests.support.rows import holding
from tests.support.servers import MySQLServer
from tests.support.sites import Site
from tests.worker.test_heartbeat import Clock

CODE = """
does = []

def act(): return does[-1]()
"""


class Acts(Site):
    """No lease needs a renewal while a test waits."""

    def __init__(self, dsn: str, folder: Path, code: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, folder, code, {"mode": "mark", "lease": 600, "max_attempts": 3} | dict(settings))

    def act(self, does: Callable[..., object]) -> TaskState:
        """Add a task that does this, run it, and return its state."""
        self.module.does.append(does)
        task_id = self.add_args("act")
        self.run(1)
        state = self.server.get(task_id)
        assert state is not None
        return state


SITE = Acts


def this_task() -> CurrentTask:
    task = current_task()
    assert task is not None
    return task


# ---- stored


def test_it_is_stored_at_most_once_a_second_and_at_the_end(
    make_site: Any, queue_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(queue_dsn, lease=1)  # so the heartbeat looks 24 times a second
    clock, written = Clock(monkeypatch), list[int]()
    real = site.store.finishes.write_progress

    def write(tasks: Any, text: str, conflict_seconds: float) -> None:
        written.append(json.loads(text)["done"])
        real(tasks, text, conflict_seconds)

    monkeypatch.setattr(site.store.finishes, "write_progress", write)

    def work() -> None:
        for second, expected in ((0.5, []), (1.0, [1]), (1.5, [1]), (2.0, [1, 3]), (2.5, [1, 3])):
            for _ in range(1000):  # none of which writes
                progress(int(2 * second) - 1)
            clock.turn_to(began_at + second)
            assert written == expected

    began_at = clock.now
    state = site.act(work)
    assert (state.status, state.progress, written) == (Status.DONE, Progress(4), [1, 3, 4])


# ---- others in the way


@contextmanager
def away(proxy: Proxy) -> Iterator[None]:
    proxy.refuse()
    assert proxy.reset() > 0
    yield
    proxy.pass_on()


def act_amid(site: Acts, fault: AbstractContextManager[object]) -> None:
    """Reports progress for a second in which the heartbeat cannot store it."""
    seconds = 0.0

    def work() -> None:
        nonlocal seconds
        progress(1, 3)
        time.sleep(1.2)  # the heartbeat has a connection by now
        with fault:
            for _ in range(150):
                began_at = time.monotonic()
                progress(2, 3)
                seconds += time.monotonic() - began_at
                time.sleep(0.01)
        progress(3, 3)

    state = site.act(work)
    assert seconds < 0.5
    assert (state.status, state.attempts, state.progress) == (Status.DONE, 1, Progress(3, 3))


@EACH_DATABASE
def test_a_held_row_makes_no_task_wait(site: Acts) -> None:
    act_amid(site, holding(site.dsn))


def test_a_database_that_is_away_fails_no_task(make_site: Any, mysql_server: MySQLServer, mysql_queue_dsn: str) -> None:
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        act_amid(make_site(proxy.dsn(mysql_queue_dsn)), away(proxy))


# ---- the next attempt


def test_it_stays_after_a_failure_the_next_attempt_begins_without_one_and_a_task_knows_itself(site: Acts) -> None:
    seen: list[object] = []
    tasks: list[CurrentTask] = []

    def work() -> None:
        seen.append(site.rows.one("progress"))
        tasks.append(this_task())
        if len(seen) == 1:
            progress(6, 9)
            progress(7, 9, "almost")
            raise ValueError("once more")

    state = site.act(work)
    assert (state.status, state.progress) == (Status.ERROR, Progress(7, 9, "almost"))
    site.rows.set("due_at = created_at")
    site.run()
    assert seen == [None, None]
    assert site.columns("status, attempts, progress") == [(Status.DONE, 2, None)]
    assert [task[:3] for task in tasks] == [(state.id, 1, 3), (state.id, 2, 3)]
    assert 590 < (tasks[0].time_left or 0) <= 600


# ---- a cancel


def test_a_cancelled_task_that_asks_is_interrupted_within_seconds(site: Acts) -> None:
    heard: list[object] = []

    def work() -> None:
        progress(1, 9)
        with TaskServer(site.dsn) as operator:
            assert operator.cancel(this_task().id) == 1
        began_at = time.monotonic()
        try:
            while time.monotonic() < began_at + WAIT_SECONDS:  # as a long task does at each of its steps
                progress(1, 9)
                time.sleep(0.01)
        except Exception:
            heard.append("an Exception")
        finally:
            heard.append(time.monotonic() - began_at < 5)  # two, and more for a machine that is busy

    site.act(work)
    assert heard == [True]
    assert site.columns("status, error_text") == [(Status.CANCELLED, CANCELLED)]
    assert read_progress(site.rows.one("progress")) == Progress(1, 9)
