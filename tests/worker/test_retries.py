"""Retries: how long a failed task waits, how often it is retried, what it may raise, and on_fatal."""

from __future__ import annotations

import json
from types import FunctionType
from typing import Any

import pytest

from taskserver import DatabaseError, Fatal, Retry
from taskserver.interrupts.stop import TaskInterrupted
from taskserver.model.backoff import DAY_SECONDS, parse_backoff
from taskserver.model.task_options import Options, options_of, task
from taskserver.worker.call import failure_of, failure_of_raised
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "linear:300", "TASKSERVER_LEASE": "600"}
MOST = 1.1
"""Times the backoff itself, with what is added at random."""

TASKS = """
from taskserver import Fatal, Retry, TaskServer, task

def fail(message="no luck"):
    raise ValueError(message)
"""


def add_row(queue: Queue, name: str, attempts: int = 0, max_attempts: int | None = None) -> None:
    statement = "INSERT INTO jobs_queue (task, attempts, max_attempts) VALUES (?, ?, ?)"
    queue.sql(statement, f"tasks.{name}", attempts, max_attempts)


def backoffs(queue: Queue) -> list[float | None]:
    """Seconds from the write of each row to its due_at, both by the database's clock."""
    found = queue.rows(queue.seconds_between("updated_at", "due_at"))
    return [None if seconds is None else float(seconds) for (seconds,) in found]


def is_backoff(seconds: float | None, least: float) -> bool:
    """SQLite counts milliseconds."""
    return seconds is not None and least - 0.002 <= seconds <= least * MOST + 0.002


# ---- how long


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("exponential:60", [60, 120, 240, 480, 960]),
        ("linear:300", [300, 600, 900, 1200, 1500]),
        ("fixed:0", [0] * 5),
        ("exponential:40000", [40000, 80000, DAY_SECONDS, DAY_SECONDS, DAY_SECONDS]),
    ],
)
def test_the_backoffs_of_the_first_attempts_are_those_of_the_contract(text: str, plain: list[int]) -> None:
    backoff = parse_backoff("TASKSERVER_BACKOFF", text)
    for attempts, seconds in enumerate(plain, start=1):
        drawn = [backoff.seconds_after(attempts) for _ in range(200)]
        assert seconds <= min(drawn) <= max(drawn) <= seconds * MOST
        if seconds:  # spread over that tenth: each of its quarters is met
            assert {int((one / seconds - 1) * 40) for one in drawn} >= {0, 1, 2, 3}
    assert backoff.seconds_after(2**32) <= DAY_SECONDS * MOST


def test_a_failed_task_waits_by_the_database_s_clock_for_what_backoff_and_attempts_say(queue: Queue) -> None:
    queue.define(
        "@task(backoff='fixed:7')\ndef fixed(): fail()\n\n@task(backoff='exponential:10')\ndef grows(): fail()\n"
    )
    expected = []
    for name, attempts, most, seconds in [
        ("fail", 0, None, 300),
        ("fail", 7, 100, 2400),
        ("fixed", 1, None, 7),
        ("grows", 1, None, 20),
        ("grows", 40, 100, DAY_SECONDS),
    ]:
        add_row(queue, name, attempts, most)
        expected.append((3, attempts + 1, most or 3, None, None, seconds))
    assert queue.run_here().failed == len(expected)
    assert queue.rows("status, attempts, max_attempts, claim, finished_at") == [row[:5] for row in expected]
    for waits, (*_, least) in zip(backoffs(queue), expected, strict=True):
        assert is_backoff(waits, least), (waits, least)
    for text in queue.errors():
        assert text.startswith("ValueError: no luck\n")
        assert text.endswith("in fail\n    raise ValueError(message)")


RAISED = {
    "Retry(delay=0.25)": (0.25, "Retry: "),
    "Retry('later', delay=30 * 86400)": (30 * 86400, "Retry: later"),
    "Retry('again')": (None, "Retry: again"),
}


def test_a_task_says_by_retry_when_it_is_retried_and_uses_an_attempt(queue: Queue) -> None:
    queue.define("".join(f"\ndef retry_{n}():\n    raise {raising}\n" for n, raising in enumerate(RAISED)))
    for attempts in (0, 2):
        for number in range(len(RAISED)):
            add_row(queue, f"retry_{number}", attempts)
    queue.run_here()
    assert queue.rows("status, attempts") == [(3, 1)] * len(RAISED) + [(4, 3)] * len(RAISED)
    assert queue.first_lines() == [first_line for _, first_line in RAISED.values()] * 2
    waits = backoffs(queue)
    assert waits[len(RAISED) :] == [None] * len(RAISED)
    for seconds, (delay, _) in zip(waits, RAISED.values(), strict=False):
        assert is_backoff(seconds, 300) if delay is None else seconds == pytest.approx(delay, abs=0.002)


# ---- how often


def test_a_task_is_retried_once_its_backoff_has_ended_and_is_fatal_once_its_attempts_are_used_up(queue: Queue) -> None:
    add_row(queue, "fail")
    for attempts in (1, 2, 3):
        is_last = attempts == 3
        assert queue.run_here().fatal == is_last
        assert queue.rows("status, attempts, claim, due_at IS NULL, finished_at IS NULL") == [
            (4 if is_last else 3, attempts, None, is_last, not is_last)
        ]
        assert queue.run_here().taken == 0, "before its backoff ended"
        queue.end_backoffs()
    assert queue.run_here().taken == 0


LIMITED = """
@task(max_attempts=2)
def twice(): fail()

class Letters:
    @task(max_attempts=2)
    @staticmethod
    def send(): fail()
"""


def test_the_row_s_limit_wins_over_the_callable_s_and_that_over_the_setting(queue: Queue) -> None:
    queue.define(LIMITED)
    expected = []
    for name, attempts, most, status, limit in [
        ("twice", 1, None, 4, 2),  # which imports its module, too
        ("fail", 2, None, 4, 3),
        ("fail", 2, 4, 3, 4),
        ("twice", 0, None, 3, 2),
        ("twice", 1, 3, 3, 3),
        ("twice", 0, 1, 4, 1),
        ("Letters.send", 0, None, 3, 2),
    ]:
        add_row(queue, name, attempts, most)
        expected.append((status, attempts + 1, limit))
    queue.run_here()
    assert queue.rows("status, attempts, max_attempts") == expected


def test_a_task_that_was_started_as_often_as_it_may_is_fatal_and_does_not_run(queue: Queue) -> None:
    for _ in range(2):  # the first of a run imports its module, the second finds it imported
        add_row(queue, "note", 5, 3)
        add_row(queue, "note", 3, None)
    assert queue.run_here().fatal == 4
    assert queue.rows("status, attempts") == [(4, 5), (4, 3)] * 2
    assert all("as often as it may" in text for text in queue.errors())
    assert queue.notes() == []


def test_fatal_gives_up_at_once_whatever_attempts_are_left(queue: Queue) -> None:
    queue.define("class Own(Fatal): pass\n\ndef stop(): raise Own('no such customer')\n")
    add_row(queue, "stop", 1, 100)
    assert queue.run_here().fatal == 1
    assert queue.rows("status, attempts, due_at") == [(4, 2, None)]
    assert queue.first_lines() == ["Own: no such customer"]


# ---- what tasks raise

ODD_ERRORS = ["SystemExit(9)", "deep()", "Trap()", "ValueError('a\\0b\\U0001f389' * 900)"]
"""tests/unit/test_arguments.py has more of their texts."""


def test_whatever_a_task_raises_the_database_takes_its_text_and_the_run_goes_on(queue: Queue) -> None:
    code = "".join(f"\ndef odd_{number}():\n    raise {what}\n" for number, what in enumerate(ODD_ERRORS))
    trap = "class Trap(Exception):\n    def __str__(self): exit(1)\n"
    queue.define(f"{code}\ndef deep(): return deep()\n\n{trap}")
    for number in range(len(ODD_ERRORS)):
        add_row(queue, f"odd_{number}")
        add_row(queue, "note")
    queue.run_here()
    assert queue.rows("status, attempts, claim") == [(3, 1, None)] * len(ODD_ERRORS)
    begins = [text.partition(":")[0] for text in queue.errors() if 0 < len(text) <= 1000 and "\0" not in text]
    assert begins == ["SystemExit", "RecursionError", "Trap", "ValueError"]
    assert queue.notes() == ["noted"] * len(ODD_ERRORS)


# ---- retry_on and fatal_on


def given(**options: Any) -> Options:
    def work() -> None: ...

    task(**options)(work)
    assert isinstance(work, FunctionType)
    return options_of(work)


@pytest.mark.parametrize(
    ("options", "error", "is_final"),
    [
        ({"retry_on": ConnectionError}, ConnectionRefusedError(), False),
        ({"retry_on": (KeyError, ConnectionError)}, OSError(), True),
        ({"retry_on": OSError, "fatal_on": ConnectionError}, ConnectionRefusedError(), True),
        ({"retry_on": OSError, "fatal_on": ConnectionError}, OSError(), False),
        ({"retry_on": KeyError, "fatal_on": Exception}, Retry(), False),
        ({"retry_on": Exception}, Fatal(), True),
        ({"retry_on": KeyError}, TaskInterrupted("late"), False),
    ],
)
def test_an_exception_is_final_if_the_options_say_so(
    options: dict[str, Any], error: BaseException, is_final: bool
) -> None:
    assert failure_of_raised(error).with_options(given(**options)).is_final is is_final


def test_an_error_of_the_database_is_not_final() -> None:
    """Such as the one that refused the commit of what the task wrote."""
    options = given(retry_on=KeyError, fatal_on=DatabaseError)
    assert not failure_of(DatabaseError("a deadlock")).with_options(options).is_final


WAYS = """
@task(retry_on=OSError)
def alone(name): raise {"refused": ConnectionRefusedError, "wrong": ValueError}[name](name)

@task(retry_on=OSError, batch=10)
def together(items):
    return [{"refused": ConnectionRefusedError, "wrong": ValueError}.get(item["name"]) for item in items]

@task(fatal_on=KeyError, commit_every=10)
def shared(name): raise {"missing": KeyError, "wrong": ValueError}[name](name)
"""


def test_each_way_to_execute_retries_what_the_options_say(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.define(WAYS)
    for way, names in (("alone", "refused wrong"), ("together", "refused wrong well"), ("shared", "missing wrong")):
        for name in names.split():
            queue.add(f"tasks.{way}", json.dumps({"name": name}))
    queue.run_here(mode="mark")
    assert queue.statuses() == [3, 4, 3, 4, 2, 4, 3]
    for reason, count in (("retry_on does not name it", 2), ("fatal_on names it", 1)):
        assert sum(f" is fatal, as {reason}: " in message for message in caplog.messages) == count


# ---- on_fatal: called once the last attempt has failed, it decides whether the task is done

RESCUED = """
def rescue(*args, error, **kwargs):
    note(f"rescued {args} {kwargs} {type(error).__name__}: {error}")

@task(on_fatal="tasks.rescue")
def named(*args, **kwargs): fail("the first one")

@task(on_fatal=rescue, max_attempts=2)
def given(*args, **kwargs): fail("the first one")

@task(on_fatal="tasks.rescue")
def gives_up(): raise Fatal("at once")

@task(on_fatal="os.system")
def unlisted(command): fail("the first one")

@task(on_fatal="tasks.rescue")
def strict(number): fail("the first one")

@task(on_fatal="tasks.in_a_circle")
def in_a_circle(error=None):
    note("round")
    fail("the first one")

@task(on_fatal=rescue)
def loses_its_claim():
    with TaskServer.from_env(HERE) as server:
        server.store.database.change("UPDATE {table} SET claim = 7")
    fail()
"""


def test_a_task_whose_rescue_returns_counts_as_done(queue: Queue) -> None:
    queue.define(RESCUED)
    queue.add("tasks.named", '{"to": "a@example.org"}')
    queue.add("tasks.given", "[1, 2]")
    queue.sql("UPDATE jobs_queue SET attempts = 1 WHERE task = 'tasks.given'")
    queue.add("tasks.gives_up")
    assert queue.run_here(mode="mark", max_attempts=1).done == 3
    assert queue.notes() == [
        "rescued () {'to': 'a@example.org'} ValueError: the first one",
        "rescued (1, 2) {} ValueError: the first one",
        "rescued () {} Fatal: at once",
    ]
    assert queue.rows("status, attempts, error_text, due_at, claim") == [
        (2, attempts, None, None, None) for attempts in (1, 2, 1)
    ]


FAILING_RESCUES = [
    ("unlisted", '["touch evil"]', "BadTask: 'os.system' is in none of the modules", []),
    ("in_a_circle", None, "ValueError: the first one", ["round", "round"]),
]


def test_a_rescue_that_fails_makes_the_task_fatal_with_both_errors(queue: Queue) -> None:
    queue.define(RESCUED)
    for name, args, *_ in FAILING_RESCUES:
        queue.add(f"tasks.{name}", args)
    assert queue.run_here(max_attempts=1).fatal == len(FAILING_RESCUES)
    assert queue.rows("status, attempts, claim, due_at") == [(4, 1, None, None)] * len(FAILING_RESCUES)
    for text, (_, _, second, _) in zip(queue.errors(), FAILING_RESCUES, strict=True):
        assert text.startswith("ValueError: the first one\n")
        assert f"\n{second}" in text
    assert queue.notes() == [note for *_, notes in FAILING_RESCUES for note in notes]


def test_a_rescue_is_not_called_for_lost_tasks_and_bad_rows(queue: Queue) -> None:
    queue.define(RESCUED)
    queue.add("tasks.strict", "[0]")
    queue.sql(f"UPDATE jobs_queue SET status = 1, attempts = 1, claim = 7, started_at = {queue.ago(9)}")
    queue.end_leases()
    queue.add("tasks.strict", '{"numbers": 1}')
    queue.add("tasks.strict", "[1]")
    queue.sql("UPDATE jobs_queue SET attempts = 1 WHERE id = 3")
    queue.run_here(max_attempts=1)
    assert (queue.statuses(), queue.notes()) == ([4] * 3, [])
    assert queue.errors()[0].startswith("lost")


def test_a_rescue_is_not_called_once_the_task_s_claim_was_taken_away(queue: Queue) -> None:
    queue.define(RESCUED)
    queue.add("tasks.loses_its_claim")
    result = queue.run_here(max_attempts=1)
    assert (result.lost, result.done, result.fatal, queue.notes()) == (1, 0, 0, [])
    assert queue.rows("status, attempts, claim, error_text") == [(1, 1, 7, None)]
