"""Retries: how long a failed task waits, who says so, when it is fatal, what is called then, and what is kept of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import taskserver
from taskserver import Fatal, Retry, SettingError, TaskServerError
from taskserver.model.backoff import DAY_SECONDS, parse_backoff
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "linear:300", "TASKSERVER_LEASE": "600"}
MOST = 1.1
"""Times the backoff itself, with what is added at random."""

TASKS = """
import functools
import json
import os
import time

from taskserver import Fatal, Retry, TaskServer, task


def fail(message="no luck"):
    raise ValueError(message)

"""


def add_row(queue: Queue, name: str, attempts: int = 0, max_attempts: int | None = None) -> None:
    queue.sql(
        "INSERT INTO jobs_queue (task, attempts, max_attempts) VALUES (?, ?, ?)",
        f"tasks.{name}",
        attempts,
        max_attempts,
    )


def backoffs(queue: Queue) -> list[float | None]:
    """Seconds from the write of each row to its due_at, both by the database's clock."""
    found = queue.rows(queue.seconds_between("updated_at", "due_at"))
    return [None if seconds is None else float(seconds) for (seconds,) in found]


def is_backoff(seconds: float | None, least: float) -> bool:
    """SQLite counts milliseconds."""
    return seconds is not None and least - 0.002 <= seconds <= least * MOST + 0.002


# ---- the numbers


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("exponential:60", [60, 120, 240, 480, 960]),
        ("linear:300", [300, 600, 900, 1200, 1500]),
        ("fixed:30", [30] * 5),
        ("fixed:0", [0] * 5),
        ("exponential:40000", [40000, 80000, DAY_SECONDS, DAY_SECONDS, DAY_SECONDS]),
        ("linear:86400", [DAY_SECONDS] * 5),
        ("exponential:1", [2**attempts for attempts in range(17)] + [DAY_SECONDS] * 100),
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


# ---- in the row


def test_a_failed_task_waits_by_the_database_s_clock_for_what_backoff_and_attempts_say(queue: Queue) -> None:
    queue.define(
        "@task(backoff='fixed:7')\ndef fixed(): fail()\n\n"
        "@task(backoff='exponential:10')\ndef exponential(): fail()\n\n"
        "@task\ndef bare(): fail()\n",
    )
    expected = []
    for name, attempts, most, seconds in [
        ("fail", 0, None, 300),
        ("fail", 1, None, 600),
        ("fail", 7, 100, 2400),
        ("fail", 500, 1000, DAY_SECONDS),
        ("bare", 0, None, 300),
        ("fixed", 0, None, 7),
        ("fixed", 1, None, 7),
        ("exponential", 0, None, 10),
        ("exponential", 1, None, 20),
        ("exponential", 8, 20, 2560),
        ("exponential", 40, 100, DAY_SECONDS),
    ]:
        add_row(queue, name, attempts, most)
        expected.append((3, attempts + 1, most or 3, None, None, seconds))
    assert queue.run_here().failed == len(expected)
    found = queue.rows("status, attempts, max_attempts, claim, finished_at")
    assert found == [row[:5] for row in expected]
    for waits, (*_, least) in zip(backoffs(queue), expected, strict=True):
        assert is_backoff(waits, least), (waits, least)
    assert all(text.startswith("ValueError: no luck") for text in queue.errors())


def test_a_task_is_fatal_once_its_attempts_are_used_up(queue: Queue) -> None:
    add_row(queue, "fail")
    for attempts in (1, 2, 3):
        is_last = attempts == 3
        result = queue.run_here()
        assert (result.failed, result.fatal) == (not is_last, is_last)
        assert queue.rows("status, attempts, claim, due_at IS NULL, finished_at IS NULL") == [
            (4 if is_last else 3, attempts, None, is_last, not is_last)
        ]
        queue.end_backoffs()
    assert queue.run_here().taken == 0


def test_the_row_s_limit_wins_over_the_callable_s_and_that_over_the_setting(queue: Queue) -> None:
    queue.define("@task(max_attempts=2)\ndef twice(): fail()\n\n@task(max_attempts=5)\ndef often(): fail()\n")
    expected = []
    for name, attempts, most, status, limit in [
        ("fail", 2, None, 4, 3),
        ("fail", 2, 4, 3, 4),
        ("fail", 0, 1, 4, 1),
        ("twice", 0, None, 3, 2),
        ("twice", 1, None, 4, 2),
        ("twice", 1, 3, 3, 3),
        ("twice", 0, 1, 4, 1),
        ("often", 3, None, 3, 5),
        ("often", 4, None, 4, 5),
        ("often", 1, 2, 4, 2),
    ]:
        add_row(queue, name, attempts, most)
        expected.append((status, attempts + 1, limit))
    queue.run_here()
    assert queue.rows("status, attempts, max_attempts") == expected


def test_the_callable_s_limit_counts_for_the_task_that_imports_its_module_too(queue: Queue) -> None:
    queue.define("@task(max_attempts=2)\ndef twice(): fail()\n")
    for attempts, expected in [(1, (3, 1, 2)), (2, (4, 2, 2))]:
        if attempts == 1:
            add_row(queue, "twice")
        queue.run_here()
        assert queue.rows("status, attempts, max_attempts") == [expected]
        queue.end_backoffs()


def test_a_task_that_was_started_as_often_as_it_may_is_fatal_and_does_not_run(queue: Queue) -> None:
    # The first of a run imports its module, the second finds it imported.
    for _ in range(2):
        add_row(queue, "note", 5, 3)
        add_row(queue, "note", 3, None)
    assert queue.run_here().fatal == 4
    assert queue.rows("status, attempts") == [(4, 5), (4, 3)] * 2
    assert all("started" in text for text in queue.errors())
    assert queue.notes() == []


def test_a_bad_row_keeps_its_attempts(queue: Queue) -> None:
    # The first one of tasks imports the module, for which it is started: that is taken back.
    names = ["not_there", "not_there", "fail.x", "_hidden"]
    for name in names:
        add_row(queue, name, 1)
    queue.sql("INSERT INTO jobs_queue (task, attempts) VALUES ('os.system', 2)")
    queue.sql("INSERT INTO jobs_queue (task, args, attempts) VALUES ('tasks.fail', '{\"no\": 1}', 2)")
    assert queue.run_here().fatal == 6
    assert queue.rows("status, attempts, claim, due_at") == [(4, 1, None, None)] * 4 + [(4, 2, None, None)] * 2
    assert all(text.startswith("BadTask: ") for text in queue.errors())


# ---- waking


def test_a_failed_task_runs_again_once_its_backoff_has_ended_and_not_before(queue: Queue) -> None:
    queue.define(
        "def flaky():\n    note('try')\n    if (HERE / 'notes').read_text().count('try') < 2:\n        fail()\n",
    )
    add_row(queue, "flaky")
    for _ in range(2):
        queue.run_here(mode="mark")
        assert queue.notes() == ["try"]
        assert queue.statuses() == [3]
    queue.end_backoffs()
    queue.run_here(mode="mark")
    assert queue.notes() == ["try"] * 2
    assert queue.rows("status, attempts, error_text") == [(2, 2, None)]


def test_a_run_that_goes_on_wakes_what_fell_due_meanwhile(queue: Queue) -> None:
    queue.define(
        "def flaky():\n    note('try')\n    if (HERE / 'notes').read_text().count('try') < 2:\n        fail()\n\n"
        "def wait_for_second_try():\n    seen = (HERE / 'notes').read_text().count('try')\n"
        "    if seen < 2:\n        time.sleep(0.1)\n        raise Retry(delay=0)\n",
    )
    add_row(queue, "flaky", 0, 2)
    for _ in range(25):
        add_row(queue, "wait_for_second_try", 0, 1000)
    queue.run_here(batch=1, backoff="fixed:1")
    assert queue.notes() == ["try"] * 2
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue WHERE task = 'tasks.flaky'") == [(0,)]


# ---- Retry and Fatal


def test_a_task_chooses_by_retry_when_it_comes_again_and_spends_an_attempt(queue: Queue) -> None:
    raised = {
        "Retry(delay=0.25)": (0.25, "Retry: "),
        "Retry('not yet', delay=40)": (40, "Retry: not yet"),
        "Retry('later', delay=30 * 86400)": (30 * 86400, "Retry: later"),
        "Retry('again')": (None, "Retry: again"),
    }
    queue.define("".join(f"\ndef retry_{n}():\n    raise {raising}\n" for n, raising in enumerate(raised)))
    for attempts in (0, 2):
        for number in range(len(raised)):
            add_row(queue, f"retry_{number}", attempts)
    queue.run_here()
    assert queue.rows("status, attempts") == [(3, 1)] * len(raised) + [(4, 3)] * len(raised)
    assert queue.first_lines() == [first_line for _, first_line in raised.values()] * 2
    waits = backoffs(queue)
    assert waits[len(raised) :] == [None] * len(raised)
    for seconds, (delay, _) in zip(waits, raised.values(), strict=False):
        assert is_backoff(seconds, 300) if delay is None else seconds == pytest.approx(delay, abs=0.002)


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), float("inf"), 10**10, "5", True, [5]])
def test_a_wrong_delay_is_refused_where_it_is_written(delay: Any) -> None:
    with pytest.raises(SettingError, match=r"delay is .*allowed: seconds"):
        Retry(delay=delay)


# Given odd attributes on purpose: what they do must not end the worker.
ODD_RETRIES = [
    "raise Retry(delay='soon')",
    "error = Retry()\n    error.delay = 'soon'\n    raise error",
    "error = Retry()\n    error.delay = 1e12\n    raise error",
    "error = Retry()\n    error.delay = -1e12\n    raise error",
    "class Mine(Retry):\n        def __init__(self): pass\n    raise Mine",
    "class Mine(Retry):\n        delay = property(lambda self: exit(7))\n"
    "        def __init__(self): pass\n    raise Mine",
]


def test_an_odd_retry_is_a_failed_attempt_and_stops_nothing_else(queue: Queue) -> None:
    queue.define("".join(f"\ndef odd_{n}():\n    {code}\n" for n, code in enumerate(ODD_RETRIES)))
    for number in range(len(ODD_RETRIES)):
        add_row(queue, f"odd_{number}")
    add_row(queue, "note")
    result = queue.run_here()
    assert (result.failed, result.done) == (len(ODD_RETRIES), 1)
    assert queue.rows("status, attempts") == [(3, 1)] * len(ODD_RETRIES)
    assert all(seconds is not None and seconds > 0 for seconds in backoffs(queue))


def test_fatal_gives_up_at_once_whatever_attempts_are_left(queue: Queue) -> None:
    queue.define(
        "def stop():\n    raise Fatal('no such customer')\n\nclass Own(Fatal): pass\n\ndef own(): raise Own(5)\n"
    )
    add_row(queue, "stop")
    add_row(queue, "own", 1, 100)
    assert queue.run_here().fatal == 2
    assert queue.rows("status, attempts, due_at") == [(4, 1, None), (4, 2, None)]
    assert queue.first_lines() == ["Fatal: no such customer", "Own: 5"]


# ---- @task


def test_options_reach_methods_and_functions_under_other_decorators(queue: Queue) -> None:
    queue.define(
        """
def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

@task(max_attempts=41)
@traced
def above(): fail()

@traced
@task(max_attempts=42)
def beneath(): fail()

class Letters:
    @task(max_attempts=44)
    @staticmethod
    def static_above(): fail()

    @task(max_attempts=46)
    @classmethod
    def of_class_above(cls): fail()

    @task(max_attempts=47)
    @classmethod
    @traced
    def of_class_traced(cls): fail()

class Parcels(Letters):
    pass

@task
def bare(): fail()

@task(max_attempts=48, backoff="fixed:5", timeout=None, on_fatal=None)
def with_nones(): fail()
""",
    )
    names = {
        "above": 41,
        "beneath": 42,
        "Letters.static_above": 44,
        "Letters.of_class_above": 46,
        "Letters.of_class_traced": 47,
        "Parcels.static_above": 44,
        "bare": 3,
        "with_nones": 48,
    }
    for name in names:
        add_row(queue, name)
    queue.run_here()
    assert queue.rows("status, max_attempts") == [(3, most) for most in names.values()]


# ---- on_fatal

RESCUE = """
def rescue(*args, error=None, **kwargs):
    note(f"rescued {args} {kwargs} {type(error).__name__}: {error}")

def cannot_rescue(*args, error=None, **kwargs):
    note("called")
    raise KeyError("the second one")

@task(on_fatal="tasks.rescue")
def named(*args, **kwargs): fail("the first one")

@task(on_fatal=rescue, max_attempts=2)
def given(*args, **kwargs): fail("the first one")

@task(on_fatal="tasks.rescue")
def gives_up(): raise Fatal("at once")

@task(on_fatal="tasks.cannot_rescue")
def in_vain(): fail("the first one")

@task(on_fatal="tasks.not_there")
def unknown(): fail("the first one")

@task(on_fatal="os.system")
def unlisted(command): fail("the first one")

@task(on_fatal="tasks.takes_nothing")
def misfit(): fail("the first one")

def takes_nothing():
    note("called without the error")

@task(on_fatal="tasks.rescue")
def strict(number): fail("the first one")

@task(on_fatal="tasks.in_a_circle")
def in_a_circle(error=None):
    note("round")
    fail("the first one")

@task(on_fatal="tasks.tries_again")
def wants_retry(): fail("the first one")

def long_second(error):
    raise KeyError("s" * 5000)

@task(on_fatal="tasks.long_second")
def long_first(): fail("f" * 5000)

def tries_again(error):
    note("called")
    raise Retry("the second one", delay=0)

class Desk:
    @classmethod
    def rescue(cls, text, error):
        note(f"{cls.__name__} {text} {error}")

@task(on_fatal="tasks:Desk.rescue")
def by_method(text): fail("the first one")
"""


def test_a_task_whose_rescue_returns_counts_as_done(queue: Queue) -> None:
    queue.define(RESCUE)
    queue.add("tasks.named", '{"to": "a@example.org"}')
    queue.add("tasks.named", "[1, 2]")
    queue.add("tasks.given")
    queue.sql("UPDATE jobs_queue SET attempts = 1 WHERE task = 'tasks.given'")
    queue.add("tasks.gives_up")
    queue.add("tasks.by_method", '{"text": "hello"}')
    assert queue.run_here(mode="mark", max_attempts=1).done == 5
    assert queue.notes() == [
        "rescued () {'to': 'a@example.org'} ValueError: the first one",
        "rescued (1, 2) {} ValueError: the first one",
        "rescued () {} ValueError: the first one",
        "rescued () {} Fatal: at once",
        "Desk hello the first one",
    ]
    assert queue.rows("status, attempts, error_text, due_at, claim") == [
        (2, attempts, None, None, None) for attempts in (1, 1, 2, 1, 1)
    ]


def test_a_rescue_is_not_called_for_a_task_that_was_changed_while_it_ran(queue: Queue) -> None:
    queue.define(
        f"{RESCUE}\n"
        "@task(on_fatal='tasks.rescue', max_attempts=1)\ndef changes(text):\n    note(text)\n"
        "    if text == 'old':\n        with TaskServer.from_env(HERE) as server:\n"
        "            server.add_task('tasks.changes', ['new'], unique_key='k', rerun=True)\n    fail('no luck')\n"
    )
    queue.server.add_task("tasks.changes", ["old"], unique_key="k")
    assert queue.run_here().lost == 0
    assert queue.notes() == ["old", "new", "rescued ('new',) {} ValueError: no luck"]


def test_a_rescue_is_called_once_when_the_last_attempt_failed_and_not_before(queue: Queue) -> None:
    queue.define(RESCUE)
    queue.add("tasks.given")
    for expected in (0, 1, 1):
        queue.run_here()
        assert len(queue.notes()) == expected
        queue.end_backoffs()
    assert queue.rows() == []


FAILING_RESCUES = [
    ("in_vain", None, "KeyError: 'the second one'", ["called"]),
    ("unknown", None, "BadTask: 'tasks.not_there'", []),
    ("unlisted", '["touch evil"]', "BadTask: 'os.system' is in none of the modules", []),
    ("misfit", None, "TypeError: ", []),
    ("in_a_circle", None, "ValueError: the first one", ["round", "round"]),
    ("wants_retry", None, "Retry: the second one", ["called"]),
    ("long_first", None, "KeyError: 'ssss", []),
]


def test_a_rescue_that_fails_makes_the_task_fatal_with_both_errors(queue: Queue) -> None:
    queue.define(RESCUE)
    for name, args, *_ in FAILING_RESCUES:
        queue.add(f"tasks.{name}", args)
    queue.add("tasks.note")
    result = queue.run_here(max_attempts=1)
    assert (result.fatal, result.done) == (len(FAILING_RESCUES), 1)
    assert queue.rows("status, attempts, claim, due_at") == [(4, 1, None, None)] * len(FAILING_RESCUES)
    for text, (name, _, second, _) in zip(queue.errors(), FAILING_RESCUES, strict=True):
        assert text.startswith("ValueError: ffff" if name == "long_first" else "ValueError: the first one\n")
        assert f"\n{second}" in text
        assert len(text) <= 1000
    assert queue.notes() == [*(note for *_, notes in FAILING_RESCUES for note in notes), "noted"]
    assert not list(queue.deployment.home.glob("evil"))


def test_a_rescue_is_not_called_for_lost_tasks_and_bad_rows(queue: Queue) -> None:
    queue.define(RESCUE)
    queue.add("tasks.strict", "[0]")
    queue.sql(f"UPDATE jobs_queue SET status = 1, attempts = 1, claim = 7, started_at = {queue.ago(9)}")
    queue.end_leases()
    queue.add("tasks.strict", '{"numbers": 1}')
    queue.add("tasks.strict", '["not JSON')
    queue.add("tasks.strict", "[1]")
    queue.sql("UPDATE jobs_queue SET attempts = 1 WHERE id = 4")
    queue.run_here(max_attempts=1)
    assert queue.statuses() == [4] * 4
    assert queue.errors()[0].startswith("lost")
    assert queue.notes() == []


def test_a_rescue_gets_the_arguments_of_the_row_whatever_the_task_made_of_its_own(
    queue: Queue,
) -> None:
    queue.define(
        "def rescue(*args, error, **kwargs):\n    note(json.dumps([args, kwargs]))\n\n"
        "@task(on_fatal='tasks.rescue')\ndef spoil(items, *, named):\n"
        "    items[0].clear()\n    items.append('more')\n    named['key'] = 'changed'\n    fail()\n\n"
        "@task(on_fatal='tasks.rescue')\ndef long(*args): fail()\n",
    )
    queue.add("tasks.note")  # only the first task of a run has its arguments read before its module is there
    spoiled = {"items": [["one"], "two"], "named": {"key": "value"}}
    queue.add("tasks.spoil", json.dumps(spoiled))
    long = ["x" * 20_000, {"more": ["y" * 20_000]}]  # longer than what a claim brings along
    queue.add("tasks.long", json.dumps(long))
    assert queue.run_here(max_attempts=1).done == 3
    noted, *rescued = queue.notes()
    assert noted == "noted"
    assert [json.loads(note) for note in rescued] == [[[], spoiled], [long, {}]]


def test_a_rescue_is_not_called_once_the_task_s_claim_was_taken_away(queue: Queue) -> None:
    queue.define(
        RESCUE + "\n@task(on_fatal='tasks.rescue')\ndef loses_its_claim():\n"
        "    with TaskServer.from_env(HERE) as server:\n"
        "        server.store.database.change('UPDATE {table} SET claim = 7')\n    fail()\n",
    )
    queue.add("tasks.loses_its_claim")
    result = queue.run_here(max_attempts=1)
    assert (result.lost, result.done, result.fatal) == (1, 0, 0)
    assert queue.notes() == []
    assert queue.rows("status, attempts, claim, error_text") == [(1, 1, 7, None)]


def test_a_rescue_has_the_task_s_time_limit_too(queue: Queue) -> None:
    queue.define(
        "def hang(error):\n    note(type(error).__name__)\n    time.sleep(60)\n\n"
        "@task(on_fatal='tasks.hang', timeout=0.3)\ndef slow():\n    time.sleep(60)\n",
    )
    queue.add("tasks.slow")
    queue.add("tasks.note")
    queue.run_here(max_attempts=1)
    assert queue.notes() == ["TaskInterrupted", "noted"]
    assert queue.statuses() == [4]
    lines = [line for line in queue.errors()[0].split("\n") if line.startswith("TaskInterrupted: ")]
    assert len(lines) == 2
    assert all("timeout of 0.3 s" in line for line in lines)


# ---- what is kept of an error


def test_an_error_is_its_first_line_and_then_the_frames_of_the_sites_own_code(queue: Queue) -> None:
    queue.define("def deep(n=30):\n    if n:\n        deep(n - 1)\n    else:\n        fail('at the bottom')\n")
    add_row(queue, "deep")
    add_row(queue, "fail")
    queue.run_here()
    for text, first_line in zip(queue.errors(), ["ValueError: at the bottom", "ValueError: no luck"], strict=True):
        first, *trace = text.split("\n")
        assert first == first_line
        assert trace[-2:] == [trace[-2], "    raise ValueError(message)"]
        assert trace[-2].endswith("in fail")
        assert str(queue.folder / "tasks.py") in trace[-2]
        assert str(Path(taskserver.__file__).parent) not in text
        assert len(text) <= 1000


def test_the_log_has_the_full_traceback_of_failed_and_of_fatal_tasks(sqlite_queue: Queue) -> None:
    sqlite_queue.define(
        RESCUE + "\ndef deep(n=30):\n    if n:\n        deep(n - 1)\n    else:\n        fail('x' * 3000)\n"
        "\ndef chained():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n"
        "        raise KeyError('outer') from error\n"
        "\ndef endless(): raise ValueError('begins' + '\\x1b' * 5_000_000 + 'ends')\n",
    )
    add_row(sqlite_queue, "deep", 0, 2)
    for name in ("chained", "in_vain", "endless"):
        add_row(sqlite_queue, name)
    assert sqlite_queue.worker(TASKSERVER_MAX_ATTEMPTS="1", TASKSERVER_LOG="log").returncode == 0
    assert sqlite_queue.statuses() == [3, 4, 4, 4]
    log = (sqlite_queue.folder / "log").read_text()
    assert "x" * 3000 in log
    assert "Traceback (most recent call last)" in log
    for words in ("ZeroDivisionError", "KeyError: 'outer'", "ValueError: the first one", "KeyError: 'the second one'"):
        assert words in log
    assert "ValueError: begins" in log
    assert "ends\n" in log
    assert len(log) < 10**6


# Each is raised by a task. The beginning of the first line; more of it is in tests/unit/test_arguments.py.
ODD_ERRORS = {
    "SystemExit(9)": "SystemExit: 9",
    "KeyboardInterrupt()": "KeyboardInterrupt: ",
    "StopIteration(5)": "StopIteration: 5",
    "BaseException('of the root')": "BaseException: of the root",
    "deep()": "RecursionError: ",
    "bytearray(1 << 62)": "MemoryError: ",
    "type('ExceptionGroup', (Exception,), {})('many')": "ExceptionGroup: many",
    "type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()": "Mute: ",
    "type('Trap', (Exception,), {'__str__': lambda self: exit(1)})()": "Trap: ",
    "ValueError('one\\ntwo\\r\\nthree\\x0bfour\\u2028five')": "ValueError: one",
    "ValueError('\\U0001f389' * 2000)": "ValueError: ",
    "ValueError('a\\0b' * 900)": "ValueError: a",
    "ValueError('x' * 5_000_000)": "ValueError: xxx",
    "type('N' * 5000, (Exception,), {})('text')": "NNN",
    "type('Bare', (Exception,), {'__getattribute__': lambda self, name: 1 / 0})()": "Bare: ",
    "type('Cause', (Exception,), {'__cause__': property(lambda self: exit(7))})()": "Cause: ",
    "circle()": "ValueError: circle",
    "chain(10_000)": "ValueError: link",
}

ODD_HELPERS = """
def deep():
    return deep()

def circle():
    error, other = ValueError("circle"), ValueError("other")
    error.__cause__, other.__cause__ = other, error
    return error

def chain(length):
    error = None
    for _ in range(length):
        last, error = error, ValueError("link")
        error.__cause__ = last
    return error
"""


@pytest.mark.parametrize("most", [1, 3])
def test_whatever_errors_hold_a_database_takes_their_texts_and_the_log_their_tracebacks(
    queue: Queue, most: int
) -> None:
    code = "".join(f"\ndef odd_{number}():\n    raise {what}\n" for number, what in enumerate(ODD_ERRORS))
    queue.define(ODD_HELPERS + code)
    for number in range(len(ODD_ERRORS)):
        add_row(queue, f"odd_{number}")
        add_row(queue, "note")
    ended = queue.worker(TASKSERVER_LOG="log", TASKSERVER_MAX_ATTEMPTS=f"{most}")
    assert (ended.returncode, ended.stdout, "Traceback" in ended.stderr) == (0, "", False)
    assert queue.rows("status, attempts, claim") == [(4 if most == 1 else 3, 1, None)] * len(ODD_ERRORS)
    for text, beginning in zip(queue.errors(), ODD_ERRORS.values(), strict=True):
        assert 0 < len(text) <= 1000
        text.encode()
        assert "\0" not in text
        assert text.startswith(beginning), text[:100]
    assert queue.notes() == ["noted"] * len(ODD_ERRORS)


def test_fatal_and_retry_are_errors_of_ours_that_a_task_may_catch_as_such() -> None:
    makers: list[Callable[[], Exception]] = [Fatal, Retry, lambda: Retry("text", delay=3)]
    for make in makers:
        assert isinstance(make(), TaskServerError)
    assert (str(Retry("text", delay=3)), Retry("text", delay=3).delay, Retry().delay) == ("text", 3, None)
