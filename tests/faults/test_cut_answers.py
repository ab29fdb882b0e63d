"""Answers of a server that never arrive: what was asked was done, or it was not, and the worker finds out.

A proxy cuts the network at a statement that it knows by its words, or falls silent there, or leaves connections half
open. The proxy's counts show that it struck.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from taskserver import DatabaseError, RunResult, TaskServer
from taskserver.stores import dialect
from tests.faults.failing import FailingQueue, Here
from tests.support.processes import WAIT_SECONDS, assert_one_line, assert_silent, wait_until
from tests.support.proxy import Cut, Matches, Proxy, contains

READ_SECONDS_IN_A_RUN = dialect.READ_SECONDS_IN_A_RUN
SHORT_READ_SECONDS = 0.25
"""In place of the ten that a worker waits for an answer."""


class Step(NamedTuple):
    """A statement of a run, known by words of it (or others, behind |), in a run where it occurs."""

    name: str
    words: bytes
    mode: str = "mark"
    task: str = "note"
    args: str = '["second"]'
    prepared: str = ""
    """What is done to the second task's row before; {past} is a second ago."""
    ends_as: tuple[int, int] = (2, 1)
    """Its status and attempts afterwards."""


LONG_ARGS = f'["second", {" " * 20_000}0]'
START = Step("start", b"attempts = attempts + 1")
DELETE = Step("delete", b"DELETE gone FROM `jobs_queue`|DELETE FROM `jobs_queue`", mode="delete")
MOVE = Step("move", b"INSERT INTO `jobs_queue_done`", mode="move")
MARK = Step("mark", b"SET status = 2")
STEPS = [
    START,
    DELETE,
    MOVE,
    MARK,
    Step("begin the run", b"ended_at = NULL"),
    Step("look for what is due", b"UNION ALL"),
    Step(
        "wake",
        b"SET status = 0, updated_at = CASE",
        prepared="status = 3, attempts = 1, due_at = {past}",
        ends_as=(2, 2),
    ),
    Step("reclaim unstarted", b"SET status = 0, claim = NULL", prepared="status = 1, claim = 7, due_at = {past}"),
    Step(
        "reclaim lost",
        b"lost: its worker died",
        prepared="status = 1, claim = 7, attempts = 1, started_at = {past}, due_at = {past}",
        ends_as=(3, 1),
    ),
    Step("claim", b"STRAIGHT_JOIN|candidates AS MATERIALIZED"),
    Step("read long texts", b"SELECT args, stages FROM", args=LONG_ARGS),
    Step("retry", b"SET status = 3, claim = NULL", task="fail", ends_as=(3, 1)),
    Step("give up", b"SET status = 4, claim = NULL", task="fail", prepared="max_attempts = 1", ends_as=(4, 1)),
    Step("end the run", b"reason = "),
]


def prepare(queue: FailingQueue, step: Step, module: str = "tasks") -> None:
    queue.add(f"{module}.note", '["first"]')
    queue.add(f"{module}.{step.task}", step.args)
    queue.add(f"{module}.note", '["third"]')
    if step.prepared:
        queue.sql(f"UPDATE jobs_queue SET {step.prepared.replace('{past}', queue.ago(1))} WHERE id = 2")


def assert_done_once(queue: FailingQueue, step: Step) -> None:
    runs = step.ends_as != (3, 1) or step.task == "fail"
    order = ["first", "second", "third"] if runs else ["first", "third"]
    assert queue.notes() == order
    counts = queue.counts()
    done = 2 + (step.ends_as[0] == 2)
    assert (counts["taken"], counts["done"], counts["lost"]) == (len(order), done, 0)
    assert counts["fatal"] == (step.ends_as[0] == 4)
    if step.mode != "delete":
        table = "jobs_queue_done" if step.mode == "move" else "jobs_queue"
        assert queue.rows("id, status, attempts", table) == [(1, 2, 1), (2, *step.ends_as), (3, 2, 1)]
    assert step.mode == "mark" or queue.statuses() == []


def cut_at(proxy: Proxy, words: bytes, is_done: bool, silent: bool = False) -> Cut:
    """PostgreSQL writes names in other quotes."""
    matches = contains(*words.split(b"|"), *words.replace(b"`", b'"').split(b"|"))
    return (proxy.cut_after if is_done else proxy.cut_before)(matches, silent=silent)


@pytest.mark.parametrize("step", [START, DELETE], ids=["start", "delete"])
def test_a_worker_whose_answer_is_cut_off_finds_out_what_was_done(
    proxied_queue: FailingQueue, proxy: Proxy, step: Step
) -> None:
    prepare(proxied_queue, step)
    proxied_queue.set(MODE=step.mode, BACKOFF="fixed:60")
    cut = cut_at(proxy, step.words, is_done=True)
    assert_silent(proxied_queue.worker())
    assert cut.has_struck
    assert proxied_queue.tries(*proxied_queue.words.lost) == 1
    assert len(proxy.links) == 2
    assert_done_once(proxied_queue, step)


def test_a_connection_that_breaks_at_a_run_s_first_statement_is_reported_at_once(
    proxied_queue: FailingQueue, proxy: Proxy
) -> None:
    """A server that was never reached may be the wrong one."""
    proxied_queue.add_named("first")
    cut = cut_at(proxy, b"SELECT MAX(version)", is_done=False)
    assert_one_line(proxied_queue.worker(), 1, proxied_queue.words.cut_off)
    assert cut.has_struck
    assert proxied_queue.notes() == []


# ---- in this process, where an answer is waited for less long


@pytest.fixture
def open_here(proxied_queue: FailingQueue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Here]]:
    monkeypatch.setattr(dialect, "READ_SECONDS_IN_A_RUN", SHORT_READ_SECONDS)
    with ExitStack() as opened:
        yield lambda **settings: opened.enter_context(proxied_queue.opened(**settings))


def run_to_first(queue: FailingQueue, here: Here, pool: ThreadPoolExecutor) -> Future[RunResult]:
    """A run that is in the midst of its first task, and has claimed two more."""
    queue.add_named("first", task="wait_for_go", module=here.module)
    queue.add_named("second", "third", module=here.module)
    run = pool.submit(here.server.run)
    wait_until(lambda: queue.notes() == ["first"])
    return run


def is_quick(step: Step, is_done: bool, silent: bool) -> bool:
    """Whether it is one for every day; `make test-long` runs them all."""
    return step in (START, MARK) if silent else is_done or step.name == "claim"


CUTS = [
    pytest.param(
        *cut,
        id=f"{cut[0].name.replace(' ', '-')}-{'done' if cut[1] else 'not-done'}-{'never' if cut[2] else 'cut'}",
        marks=[] if is_quick(*cut) else pytest.mark.long,
    )
    for cut in itertools.product(STEPS, (True, False), (True, False))
]


@pytest.mark.parametrize(("step", "is_done", "silent"), CUTS)
def test_a_statement_whose_answer_is_cut_off_or_never_comes_is_done_once(
    proxied_queue: FailingQueue,
    open_here: Callable[..., Here],
    proxy: Proxy,
    step: Step,
    is_done: bool,
    silent: bool,
) -> None:
    """Where none comes, the connection stands, as far as the worker can see."""
    here = open_here(mode=step.mode, backoff="fixed:60")
    prepare(proxied_queue, step, here.module)
    cut = cut_at(proxy, step.words, is_done, silent)
    result = here.server.run()
    assert cut.has_struck
    assert len(proxy.links) == 2
    assert result.lost == 0
    assert_done_once(proxied_queue, step)


def leave_half_open(proxy: Proxy) -> None:
    """After the first `drop`: new connections pass once something that was said on those that stand is lost."""
    wait_until(lambda: proxy.lost_bytes > 0)
    proxy.pass_on()


def test_a_worker_gets_away_from_a_connection_that_is_half_open(
    proxied_queue: FailingQueue, open_here: Callable[..., Here], proxy: Proxy, pool: ThreadPoolExecutor
) -> None:
    run = run_to_first(proxied_queue, open_here(), pool)
    proxy.drop()
    proxied_queue.go()
    leave_half_open(proxy)
    result = run.result(WAIT_SECONDS)
    assert READ_SECONDS_IN_A_RUN == 10
    assert (result.done, result.lost) == (3, 0)
    assert proxied_queue.notes() == ["first", "second", "third"]
    assert proxy.links[0].lost_at
    assert len(proxy.links) == 2


@pytest.mark.long
def test_a_heartbeat_gets_away_from_a_connection_that_is_half_open_before_its_lease_ends(
    proxied_queue: FailingQueue,
    open_here: Callable[..., Here],
    proxy: Proxy,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = proxied_queue
    monkeypatch.setattr(dialect, "READ_SECONDS_IN_A_RUN", READ_SECONDS_IN_A_RUN)

    def due_at() -> Any:
        return queue.rows("due_at")[0][0]

    run = run_to_first(queue, open_here(lease=6), pool)
    try:
        started = due_at()
        wait_until(lambda: due_at() > started)
        renewed = due_at()
        proxy.drop()
        leave_half_open(proxy)
        wait_until(lambda: due_at() > renewed or queue.sql(f"SELECT {queue.now} >= ?", renewed) == [(1,)])
        assert due_at() > renewed, "the lease ended under a living worker, which others could reach"
    finally:
        proxy.reset()
        queue.go()
    result = run.result(2 * WAIT_SECONDS)
    assert (result.lost, queue.notes()[0]) == (0, "first")
    assert result.done >= 1


@pytest.mark.long
def test_a_run_outlasts_a_backup_that_locks_all_tables(
    proxied_queue: FailingQueue, open_here: Callable[..., Here], proxy: Proxy, pool: ThreadPoolExecutor
) -> None:
    """Statements that nobody waits for any more still stand on the server, and are done there once it goes on."""
    queue = proxied_queue
    run = run_to_first(queue, open_here(mode="mark"), pool)
    with queue.locking("LOCK TABLE jobs_queue IN SHARE MODE" if queue.is_postgresql else "LOCK TABLES jobs_queue READ"):
        queue.go()
        wait_until(lambda: len(proxy.links) >= 4)
    result = run.result(2 * WAIT_SECONDS)
    assert (result.done, result.lost) == (3, 0)
    assert queue.notes() == ["first", "second", "third"]
    assert queue.rows("status, attempts, error_text") == [(2, 1, None)] * 3


# ---- producers do not repeat


INSERTS = (b"INSERT INTO `jobs_queue` ", b'INSERT INTO "jobs_queue" ', b'COPY "jobs_queue" ')


def inserts(sent: list[bytes]) -> Matches:
    """Matches requests that add to the queue, and keeps them."""

    def is_insert(request: bytes) -> bool:
        found = contains(*INSERTS)(request)
        sent.extend([request] * found)
        return found

    return is_insert


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
@pytest.mark.parametrize("silent", [True, False], ids=["never", "cut"])
def test_an_add_whose_answer_is_cut_off_or_never_comes_is_not_repeated(
    proxied_queue: FailingQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, count: int, is_done: bool, silent: bool
) -> None:
    sent: list[bytes] = []
    assert dialect.READ_SECONDS == 60
    if silent:
        monkeypatch.setattr(dialect, "READ_SECONDS", SHORT_READ_SECONDS)

    def add() -> None:
        # One INSERT commits by itself; several tasks share a transaction.
        if count == 1:
            server.add_task("tasks.note", ["new"])
        else:
            server.add_tasks([{"task": "tasks.note"}] * count)

    with TaskServer(proxied_queue.workers_dsn) as server:
        cut = (proxy.cut_after if is_done else proxy.cut_before)(inserts(sent), silent=silent)
        with pytest.raises(DatabaseError) as raised:
            add()
        assert "\n" not in str(raised.value)
        assert cut.has_struck
        assert len(sent) == 1
        is_there = is_done and count == 1
        assert len(proxied_queue.statuses()) == is_there
        add()
        assert len(proxied_queue.statuses()) == is_there + count


ADDS_BY_ITS_RUN = """
from taskserver import DatabaseError, TaskServer

def add_another(name):
    try:
        TaskServer.of_the_run.add_task(f"{__name__}.note", ["added"])
    except DatabaseError as error:
        note(f"failed: {error}")
"""


def test_a_task_that_adds_by_the_server_of_its_run_gets_an_error_and_the_run_goes_on(
    proxied_queue: FailingQueue, open_here: Callable[..., Here], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience is the worker's own, not that of what its tasks add."""
    here, sent = open_here(tasks=ADDS_BY_ITS_RUN, mode="mark"), list[bytes]()
    cut = proxy.cut_after(inserts(sent))
    monkeypatch.setattr(TaskServer, "of_the_run", here.server, raising=False)
    proxied_queue.add_named("first", task="add_another", module=here.module)
    proxied_queue.add_named("second", module=here.module)
    result = here.server.run()
    assert (cut.has_struck, len(sent)) == (True, 1)
    failed, *others = proxied_queue.notes()
    assert failed.startswith("failed: 127.0.0.1")
    assert others == ["second", "added"]
    assert (result.done, result.lost) == (3, 0)


def test_a_person_is_told_that_tasks_may_be_added_whose_answer_is_cut_off(
    proxied_queue: FailingQueue, proxy: Proxy
) -> None:
    lines = proxied_queue.folder / "tasks.jsonl"
    lines.write_text('{"task": "tasks.note"}\n' * 3)
    for last, adds in [
        (contains(*INSERTS), ["tasks.note"]),
        (lambda request: request.endswith(b"COMMIT"), ["--bulk", str(lines)]),
    ]:
        cut = proxy.cut_after(last)
        ended = proxied_queue.client("add", *adds)
        assert cut.has_struck
        assert_one_line(ended, 1, proxied_queue.words.cut_off, "may be added all the same: look first")
    assert proxied_queue.statuses() == [0] * 4
