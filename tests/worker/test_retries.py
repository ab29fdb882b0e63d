"""Retries: how long a failed task waits, who says so, when it is fatal, what is called then, and what is kept of it."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskserver import Fatal, Retry, SettingError, TaskServer, TaskServerError, task
from taskserver.model.backoff import DAY_SECONDS, Backoff, parse_backoff
from taskserver.model.task_options import options_of
from tests.support.processes import assert_silent, end_of, kill
from tests.support.queues import Queue
from tests.support.turns import A_SERVER, ONE_STORE

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "linear:300", "TASKSERVER_LEASE": "600"}
ONCE = {"TASKSERVER_MAX_ATTEMPTS": "1"}
MOST = 1.1
"""Times the backoff itself, with what is added at random."""

TASKS = """
import functools
import json
import os
import time

from taskserver import Fatal, Retry, task


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


@given(
    kind=st.sampled_from(["exponential", "linear", "fixed"]),
    seconds=st.integers(0, DAY_SECONDS),
    attempts=st.integers(1, 10) | st.integers(1, 2**32),
)
def test_a_backoff_grows_as_its_kind_says_up_to_a_day_with_a_tenth_at_random(
    kind: str, seconds: int, attempts: int
) -> None:
    plain = {
        "exponential": seconds * 2 ** min(attempts - 1, 100),
        "linear": seconds * attempts,
        "fixed": seconds,
    }[kind]
    least = min(plain, DAY_SECONDS)
    assert least <= Backoff(kind, seconds).seconds_after(attempts) <= least * MOST


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("exponential:60", [60, 120, 240, 480, 960]),
        ("linear:300", [300, 600, 900, 1200, 1500]),
        ("fixed:30", [30] * 5),
        ("fixed:0", [0] * 5),
        ("exponential:40000", [40000, 80000, DAY_SECONDS, DAY_SECONDS, DAY_SECONDS]),
        ("linear:86400", [DAY_SECONDS] * 5),
    ],
)
def test_the_backoffs_of_the_first_attempts_are_those_of_the_contract(text: str, plain: list[int]) -> None:
    backoff = parse_backoff("TASKSERVER_BACKOFF", text)
    for attempts, seconds in enumerate(plain, start=1):
        drawn = [backoff.seconds_after(attempts) for _ in range(300)]
        assert seconds <= min(drawn) <= max(drawn) <= seconds * MOST
        if seconds:  # spread over that tenth: each of its quarters is met
            assert {int((one / seconds - 1) * 40) for one in drawn} >= {0, 1, 2, 3}


WRONG_BACKOFFS = ["", "60", "fixed", "fixed:", "fixed:-1", "fixed:1.5", "fixed:1e3", "fixed: 5", "FIXED:5", "cubic:5"]


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
    assert_silent(queue.worker())
    found = queue.rows("status, attempts, max_attempts, claim, finished_at")
    assert found == [row[:5] for row in expected]
    for waits, (*_, least) in zip(backoffs(queue), expected, strict=True):
        assert is_backoff(waits, least), (waits, least)
    assert all(text.startswith("ValueError: no luck") for text in queue.errors())


def test_a_task_is_fatal_once_its_attempts_are_used_up(one_queue: Queue) -> None:
    add_row(one_queue, "fail")
    for attempts in (1, 2, 3):
        ended = one_queue.worker()
        assert (ended.returncode, ended.stdout) == (0, "")
        is_last = attempts == 3
        assert len(ended.stderr.splitlines()) == is_last
        assert one_queue.rows("status, attempts, claim, due_at IS NULL, finished_at IS NULL") == [
            (4 if is_last else 3, attempts, None, is_last, not is_last)
        ]
        one_queue.end_backoffs()
    assert_silent(one_queue.worker())
    assert one_queue.rows("status, attempts") == [(4, 3)]


@ONE_STORE
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
    assert queue.worker().returncode == 0
    assert queue.rows("status, attempts, max_attempts") == expected


def test_the_callable_s_limit_counts_for_the_task_that_imports_its_module_too(one_queue: Queue) -> None:
    one_queue.define("@task(max_attempts=2)\ndef twice(): fail()\n")
    for attempts, expected in [(1, (3, 1, 2)), (2, (4, 2, 2))]:
        if attempts == 1:
            add_row(one_queue, "twice")
        assert one_queue.worker().returncode == 0
        assert one_queue.rows("status, attempts, max_attempts") == [expected]
        one_queue.end_backoffs()


@A_SERVER
def test_a_task_that_was_started_as_often_as_it_may_is_fatal_and_does_not_run(queue: Queue) -> None:
    # The first of a run imports its module, the second finds it imported.
    for _ in range(2):
        add_row(queue, "note", 5, 3)
        add_row(queue, "note", 3, None)
    assert queue.worker().returncode == 0
    assert queue.rows("status, attempts") == [(4, 5), (4, 3)] * 2
    assert all("started" in text for text in queue.errors())
    assert queue.notes() == []


@A_SERVER
def test_a_bad_row_keeps_its_attempts(queue: Queue) -> None:
    # The first one of tasks imports the module, for which it is started: that is taken back.
    names = ["not_there", "not_there", "fail.x", "_hidden"]
    for name in names:
        add_row(queue, name, 1)
    queue.sql("INSERT INTO jobs_queue (task, attempts) VALUES ('os.system', 2)")
    queue.sql("INSERT INTO jobs_queue (task, args, attempts) VALUES ('tasks.fail', '{\"no\": 1}', 2)")
    assert queue.worker().returncode == 0
    assert queue.rows("status, attempts, claim, due_at") == [(4, 1, None, None)] * 4 + [(4, 2, None, None)] * 2
    assert all(text.startswith("BadTask: ") for text in queue.errors())


# ---- waking


@ONE_STORE
def test_a_failed_task_runs_again_once_its_backoff_has_ended_and_not_before(queue: Queue) -> None:
    queue.define(
        "def flaky():\n    note('try')\n    if (HERE / 'notes').read_text().count('try') < 2:\n        fail()\n",
    )
    add_row(queue, "flaky")
    for _ in range(2):
        assert_silent(queue.worker("--mode", "mark"))
        assert queue.notes() == ["try"]
        assert queue.statuses() == [3]
    queue.end_backoffs()
    assert_silent(queue.worker("--mode", "mark"))
    assert queue.notes() == ["try"] * 2
    assert queue.rows("status, attempts, error_text") == [(2, 2, None)]


def test_a_run_that_goes_on_wakes_what_fell_due_meanwhile(one_queue: Queue) -> None:
    one_queue.define(
        "def flaky():\n    note('try')\n    if (HERE / 'notes').read_text().count('try') < 2:\n        fail()\n\n"
        "def wait_for_second_try():\n    seen = (HERE / 'notes').read_text().count('try')\n"
        "    if seen < 2:\n        time.sleep(0.1)\n        raise Retry(delay=0)\n",
    )
    add_row(one_queue, "flaky", 0, 2)
    for _ in range(25):
        add_row(one_queue, "wait_for_second_try", 0, 1000)
    assert_silent(one_queue.worker("--batch", 1, TASKSERVER_BACKOFF="fixed:1"))
    assert one_queue.notes() == ["try"] * 2
    assert one_queue.sql("SELECT COUNT(*) FROM jobs_queue WHERE task = 'tasks.flaky'") == [(0,)]


def test_a_backoff_of_nothing_lets_the_next_run_take_the_task(one_queue: Queue) -> None:
    add_row(one_queue, "fail")
    codes = [one_queue.worker(TASKSERVER_BACKOFF="fixed:0").returncode for _ in range(3)]
    assert codes == [0, 0, 0]
    assert one_queue.rows("status, attempts") == [(4, 3)]


# ---- Retry and Fatal


@ONE_STORE
def test_a_task_chooses_by_retry_when_it_comes_again_and_spends_an_attempt(queue: Queue) -> None:
    raised = {
        "Retry(delay=5)": (5, "Retry: "),
        "Retry(delay=0.25)": (0.25, "Retry: "),
        "Retry('not yet', delay=40)": (40, "Retry: not yet"),
        "Retry('later', delay=30 * 86400)": (30 * 86400, "Retry: later"),
    }
    queue.define("".join(f"\ndef retry_{n}():\n    raise {raising}\n" for n, raising in enumerate(raised)))
    for number in range(len(raised)):
        add_row(queue, f"retry_{number}")
    assert_silent(queue.worker())
    assert queue.rows("status, attempts") == [(3, 1)] * len(raised)
    for seconds, text, (delay, first_line) in zip(backoffs(queue), queue.errors(), raised.values(), strict=True):
        assert seconds == pytest.approx(delay, abs=0.002)
        assert text.partition("\n")[0] == first_line


@ONE_STORE
def test_a_retry_without_a_delay_waits_as_the_backoff_says_and_the_last_one_is_fatal(queue: Queue) -> None:
    queue.define(
        "def plain():\n    raise Retry('again')\n\n@task(backoff='fixed:9')\ndef own():\n    raise Retry\n\n"
        "def delayed():\n    raise Retry(delay=1)\n",
    )
    for name, attempts in [("plain", 0), ("own", 0), ("plain", 2), ("delayed", 2)]:
        add_row(queue, name, attempts)
    assert queue.worker().returncode == 0
    assert queue.rows("status, attempts") == [(3, 1), (3, 1), (4, 3), (4, 3)]
    first, second, *others = backoffs(queue)
    assert is_backoff(first, 300)
    assert is_backoff(second, 9)
    assert others == [None, None]


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), float("inf"), 10**10, "5", True, [5]])
def test_a_wrong_delay_is_refused_where_it_is_written(delay: Any) -> None:
    with pytest.raises(SettingError, match=r"delay is .*allowed: seconds"):
        Retry(delay=delay)


# Given odd attributes on purpose: what they do must not end the worker.
ODD_RETRIES = {
    "a wrong delay": "raise Retry(delay='soon')",
    "a delay put in later": "error = Retry()\n    error.delay = 'soon'\n    raise error",
    "a delay of years put in later": "error = Retry()\n    error.delay = 1e12\n    raise error",
    "a negative delay put in later": "error = Retry()\n    error.delay = -1e12\n    raise error",
    "no delay at all": "class Mine(Retry):\n        def __init__(self): pass\n    raise Mine",
    "a delay that raises": "class Mine(Retry):\n        delay = property(lambda self: 1 / 0)\n"
    "        def __init__(self): pass\n    raise Mine",
    "a delay that ends the process": "class Mine(Retry):\n        delay = property(lambda self: exit(7))\n"
    "        def __init__(self): pass\n    raise Mine",
}


@pytest.mark.parametrize("code", ODD_RETRIES.values(), ids=ODD_RETRIES.keys())
def test_an_odd_retry_is_a_failed_attempt_and_stops_nothing_else(one_queue: Queue, code: str) -> None:
    one_queue.define(f"def odd():\n    {code}\n")
    add_row(one_queue, "odd")
    add_row(one_queue, "note")
    ended = one_queue.worker()
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert one_queue.notes() == ["noted"]
    assert one_queue.rows("status, attempts") == [(3, 1)]
    ((seconds,),) = [backoffs(one_queue)]
    assert seconds is not None
    assert seconds > 0


@A_SERVER
def test_fatal_gives_up_at_once_whatever_attempts_are_left(queue: Queue) -> None:
    queue.define(
        "def stop():\n    raise Fatal('no such customer')\n\nclass Own(Fatal): pass\n\ndef own(): raise Own(5)\n"
    )
    add_row(queue, "stop")
    add_row(queue, "own", 1, 100)
    ended = queue.worker()
    assert ended.returncode == 0
    assert [line.partition("fatal: ")[2] for line in ended.stderr.splitlines()] == ["Fatal: no such customer", "Own: 5"]
    assert queue.rows("status, attempts, due_at") == [(4, 1, None), (4, 2, None)]
    assert queue.first_lines() == ["Fatal: no such customer", "Own: 5"]


# ---- @task

WRONG_OPTIONS: list[tuple[str, Any]] = [
    *[("max_attempts", value) for value in (0, -1, 1.5, True, "3", 10**7, [1])],
    *[("backoff", value) for value in (60, True, ["fixed:1"], *WRONG_BACKOFFS)],
    *[("timeout", value) for value in (-1, float("nan"), float("inf"), "5", True, 10**9)],
    *[("on_fatal", value) for value in (5, "", "rescue", "no dots", "tasks.", "tasks.rescue()", b"tasks.rescue")],
]


@pytest.mark.parametrize(("option", "value"), WRONG_OPTIONS)
def test_a_wrong_option_is_refused_by_its_name_with_what_is_allowed(option: str, value: Any) -> None:
    with pytest.raises(TaskServerError, match="allowed: ") as caught:
        task(**{option: value})
    assert option in str(caught.value)


def test_an_option_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TypeError, match="retries"):
        task(retries=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("marked", [int, len, 5, functools.partial(print), object()])
def test_only_functions_and_methods_take_options(marked: Any) -> None:
    with pytest.raises(SettingError, match="allowed: functions, static and class methods"):
        task(max_attempts=1)(marked)


def test_a_function_stays_what_it_is_under_its_options() -> None:
    def plain(number: int) -> int:
        """Twice the number."""
        return 2 * number

    assert task(plain) is plain
    assert task(max_attempts=1, timeout=0)(plain) is plain
    assert plain(4) == 8
    assert options_of(plain).max_attempts == 1  # type: ignore[arg-type]
    assert options_of(plain).timeout_seconds == 0  # type: ignore[arg-type]


@ONE_STORE
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
    @staticmethod
    @task(max_attempts=43)
    def static(): fail()

    @task(max_attempts=44)
    @staticmethod
    def static_above(): fail()

    @classmethod
    @task(max_attempts=45)
    def of_class(cls): fail()

    @task(max_attempts=46)
    @classmethod
    def of_class_above(cls): fail()

    @task(max_attempts=47)
    @classmethod
    @traced
    def of_class_traced(cls): fail()

class Parcels(Letters):
    pass

@task()
def empty(): fail()

@task
def bare(): fail()

@task(max_attempts=48, backoff="fixed:5", timeout=None, on_fatal=None)
def with_nones(): fail()
""",
    )
    names = {
        "above": 41,
        "beneath": 42,
        "Letters.static": 43,
        "Letters.static_above": 44,
        "Letters.of_class": 45,
        "Letters.of_class_above": 46,
        "Letters.of_class_traced": 47,
        "Parcels.of_class": 45,
        "Parcels.static": 43,
        "empty": 3,
        "bare": 3,
        "with_nones": 48,
    }
    for name in names:
        add_row(queue, name)
    assert_silent(queue.worker())
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


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_a_task_whose_rescue_returns_counts_as_done(one_queue: Queue, mode: str) -> None:
    one_queue.define(RESCUE)
    one_queue.add("tasks.named", '{"to": "a@example.org"}')
    one_queue.add("tasks.named", "[1, 2]")
    one_queue.add("tasks.given")
    one_queue.sql("UPDATE jobs_queue SET attempts = 1 WHERE task = 'tasks.given'")
    one_queue.add("tasks.gives_up")
    one_queue.add("tasks.by_method", '{"text": "hello"}')
    assert_silent(one_queue.worker("--mode", mode, **ONCE))
    assert one_queue.notes() == [
        "rescued () {'to': 'a@example.org'} ValueError: the first one",
        "rescued (1, 2) {} ValueError: the first one",
        "rescued () {} ValueError: the first one",
        "rescued () {} Fatal: at once",
        "Desk hello the first one",
    ]
    places = {"move": "jobs_queue_done", "mark": "jobs_queue"}
    for table in ("jobs_queue", "jobs_queue_done"):
        done = [(2, attempts, None, None, None) for attempts in (1, 1, 2, 1, 1)] if places.get(mode) == table else []
        assert one_queue.rows("status, attempts, error_text, due_at, claim", table) == done
    assert one_queue.sql("SELECT taken, done, fatal FROM jobs_queue_workers") == [(5, 5, 0)]


@ONE_STORE
def test_a_rescue_is_not_called_for_a_task_that_was_changed_while_it_ran(queue: Queue) -> None:
    queue.define(
        f"{RESCUE}\nimport time\n"
        "@task(on_fatal='tasks.rescue', max_attempts=1)\ndef waits(text):\n    note(text)\n"
        "    while not (HERE / 'go').exists(): time.sleep(0.01)\n    fail('no luck')\n"
    )
    with TaskServer(queue.dsn) as server:
        server.add_task("tasks.waits", ["old"], unique_key="k")
        worker = queue.start_task()
        server.add_task("tasks.waits", ["new"], unique_key="k", rerun=True)
    queue.go()
    assert end_of(worker) == (0, "", "")
    assert queue.notes() == ["old", "new", "rescued ('new',) {} ValueError: no luck"]


def test_a_rescue_is_called_once_when_the_last_attempt_failed_and_not_before(one_queue: Queue) -> None:
    one_queue.define(RESCUE)
    one_queue.add("tasks.given")
    for expected in (0, 1, 1):
        assert_silent(one_queue.worker())
        assert len(one_queue.notes()) == expected
        one_queue.end_backoffs()
    assert one_queue.rows() == []


@pytest.mark.parametrize(
    ("name", "args", "second", "notes"),
    [
        ("in_vain", None, "KeyError: 'the second one'", ["called"]),
        ("unknown", None, "BadTask: 'tasks.not_there'", []),
        ("unlisted", '["touch evil"]', "BadTask: 'os.system' is in none of the modules", []),
        ("misfit", None, "TypeError: ", []),
        ("in_a_circle", None, "ValueError: the first one", ["round", "round"]),
        ("wants_retry", None, "Retry: the second one", ["called"]),
    ],
)
def test_a_rescue_that_fails_makes_the_task_fatal_with_both_errors(
    one_queue: Queue, name: str, args: str | None, second: str, notes: list[str]
) -> None:
    one_queue.define(RESCUE)
    one_queue.add(f"tasks.{name}", args)
    one_queue.add("tasks.note")
    ended = one_queue.worker(**ONCE)
    assert (ended.returncode, ended.stderr) == (0, f"task 1 tasks.{name} is fatal: ValueError: the first one\n")
    assert one_queue.rows("status, attempts, claim, due_at") == [(4, 1, None, None)]
    (text,) = one_queue.errors()
    first, *others = text.split("\n")
    assert first == "ValueError: the first one"
    assert any(line.startswith(second) for line in others), text
    assert len(text) <= 1000
    assert one_queue.notes() == [*notes, "noted"]
    assert not list(one_queue.deployment.home.glob("evil"))


def test_both_errors_keep_their_first_lines_however_long_they_are(one_queue: Queue) -> None:
    one_queue.define(
        "def second(error):\n    raise KeyError('s' * 5000)\n\n"
        "@task(on_fatal='tasks.second')\ndef first():\n    raise ValueError('f' * 5000)\n",
    )
    one_queue.add("tasks.first")
    assert one_queue.worker(**ONCE).returncode == 0
    (text,) = one_queue.errors()
    assert text.startswith("ValueError: ffff")
    assert "\nKeyError: 'ssss" in text
    assert len(text) <= 1000


@ONE_STORE
def test_a_rescue_is_not_called_for_lost_tasks_and_bad_rows(queue: Queue) -> None:
    queue.define(
        RESCUE + "\n@task(on_fatal='tasks.rescue')\ndef hang():\n    note('hangs')\n    time.sleep(60)\n",
    )
    queue.add("tasks.hang")
    process = queue.start_task(**ONCE)
    kill(process)
    queue.end_leases()
    queue.add("tasks.strict", '{"numbers": 1}')
    queue.add("tasks.strict", '["not JSON')
    queue.add("tasks.strict", "[1]")
    queue.sql("UPDATE jobs_queue SET attempts = 1 WHERE id = 4")
    assert queue.worker(**ONCE).returncode == 0
    assert queue.statuses() == [4] * 4
    assert queue.errors()[0].startswith("lost")
    assert queue.notes() == ["hangs"]


@A_SERVER
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
    assert_silent(queue.worker(**ONCE))
    noted, *rescued = queue.notes()
    assert noted == "noted"
    assert [json.loads(note) for note in rescued] == [[[], spoiled], [long, {}]]


@A_SERVER
def test_a_rescue_is_not_called_once_the_task_s_claim_was_taken_away(queue: Queue) -> None:
    queue.define(
        RESCUE + "\n@task(on_fatal='tasks.rescue')\ndef hold_and_fail():\n    note('started')\n"
        "    while not (HERE / 'go').exists():\n        time.sleep(0.01)\n    note('failed')\n    fail()\n",
    )
    queue.add("tasks.hold_and_fail")
    process = queue.start_task(**ONCE)
    queue.sql("UPDATE jobs_queue SET claim = claim + 1")  # as if another worker had claimed it since
    before = queue.rows()
    queue.go()
    code, output, errors = end_of(process)
    assert (code, output) == (0, "")
    assert len(errors.splitlines()) == 1, errors
    assert "lease was lost" in errors
    assert queue.notes() == ["started", "failed"]
    assert queue.rows() == before


def test_a_rescue_has_the_task_s_time_limit_too(one_queue: Queue) -> None:
    one_queue.define(
        "def hang(error):\n    note(type(error).__name__)\n    time.sleep(60)\n\n"
        "@task(on_fatal='tasks.hang', timeout=0.3)\ndef slow():\n    time.sleep(60)\n",
    )
    one_queue.add("tasks.slow")
    one_queue.add("tasks.note")
    ended = one_queue.worker(**ONCE)
    assert ended.returncode == 0
    assert one_queue.notes() == ["TaskInterrupted", "noted"]
    assert one_queue.statuses() == [4]
    lines = [line for line in one_queue.errors()[0].split("\n") if line.startswith("TaskInterrupted: ")]
    assert len(lines) == 2
    assert all("timeout of 0.3 s" in line for line in lines)


# ---- what is kept of an error


@ONE_STORE
def test_an_error_is_its_first_line_and_then_the_frames_of_the_sites_own_code(queue: Queue) -> None:
    queue.define("def deep(n=30):\n    if n:\n        deep(n - 1)\n    else:\n        fail('at the bottom')\n")
    add_row(queue, "deep")
    add_row(queue, "fail")
    assert_silent(queue.worker())
    for text, first_line in zip(queue.errors(), ["ValueError: at the bottom", "ValueError: no luck"], strict=True):
        first, *trace = text.split("\n")
        assert first == first_line
        assert trace[-2:] == [trace[-2], "    raise ValueError(message)"]
        assert trace[-2].endswith("in fail")
        assert str(queue.folder / "tasks.py") in trace[-2]
        assert str(queue.folder / "taskserver") not in text
        assert len(text) <= 1000


def test_the_log_has_the_full_traceback_of_failed_and_of_fatal_tasks(one_queue: Queue) -> None:
    one_queue.define(
        RESCUE + "\ndef deep(n=30):\n    if n:\n        deep(n - 1)\n    else:\n        fail('x' * 3000)\n"
        "\ndef chained():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n"
        "        raise KeyError('outer') from error\n",
    )
    add_row(one_queue, "deep", 0, 2)
    add_row(one_queue, "chained")
    add_row(one_queue, "in_vain")
    assert one_queue.worker(**ONCE, TASKSERVER_LOG="log").returncode == 0
    assert one_queue.statuses() == [3, 4, 4]
    log = (one_queue.folder / "log").read_text()
    assert "x" * 3000 in log
    assert "Traceback (most recent call last)" in log
    for words in ("ZeroDivisionError", "KeyError: 'outer'", "ValueError: the first one", "KeyError: 'the second one'"):
        assert words in log


def test_of_an_endless_message_the_log_has_the_ends(one_queue: Queue) -> None:
    one_queue.define("def endless(): raise ValueError('begins' + '\\x1b' * 5_000_000 + 'ends')\n")
    add_row(one_queue, "endless")
    assert one_queue.worker(**ONCE, TASKSERVER_LOG="log").returncode == 0
    log = (one_queue.folder / "log").read_text()
    assert "ValueError: begins" in log
    assert "ends\n" in log
    assert len(log) < 10**6


# Each is raised by a task. The name that the first line must begin with, or None where anything may stand there.
ODD_ERRORS: dict[str, tuple[str, str | None]] = {
    "a text that cannot be had": ("type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()", "Mute: "),
    "a text that ends the process": ("type('Trap', (Exception,), {'__str__': lambda self: exit(1)})()", "Trap: "),
    "a text that is no text": ("type('Number', (Exception,), {'__str__': lambda self: 5})()", "Number: "),
    "a text that formats oddly": (
        "ValueError(type('S', (str,), {'__format__': lambda *_: 1 / 0, '__str__': lambda self: self})('odd'))",
        "ValueError: ",
    ),
    "an interrupt in its text": (
        "type('Late', (Exception,), {'__str__': lambda self: (_ for _ in ()).throw(KeyboardInterrupt)})()",
        "Late: ",
    ),
    "newlines": ("ValueError('one\\ntwo\\r\\nthree\\x0bfour\\u2028five')", "ValueError: one"),
    "surrogates": ("ValueError('\\ud800\\udcff' * 600)", "ValueError: "),
    "characters of four bytes": ("ValueError('\\U0001f389' * 2000)", "ValueError: "),
    "a NUL": ("ValueError('a\\0b' * 900)", "ValueError: a"),
    "five megabytes": ("ValueError('x' * 5_000_000)", "ValueError: xxx"),
    "a huge name": ("type('N' * 5000, (Exception,), {})('text')", "NNN"),
    "a name with newlines": ("type('One\\nTwo', (Exception,), {})('text')", "One"),
    "a name of surrogates": ("type('\\ud800', (Exception,), {})('text')", None),
    "a class that lies": ("type('Lie', (Exception,), {'__class__': property(lambda self: 1 / 0)})()", "Lie: "),
    "a class that says Retry": ("type('Lie', (Exception,), {'__class__': Retry})()", "Lie: "),
    "attributes that raise": (
        "type('Bare', (Exception,), {'__getattribute__': lambda self, name: 1 / 0})()",
        "Bare: ",
    ),
    "notes that end the process": (
        "type('Notes', (Exception,), {'__notes__': property(lambda self: exit(7))})()",
        "Notes: ",
    ),
    "a cause that ends the process": (
        "type('Cause', (Exception,), {'__cause__': property(lambda self: exit(7))})()",
        "Cause: ",
    ),
    "a traceback that raises": (
        "type('Trace', (Exception,), {'__traceback__': property(lambda self: 1 / 0)})()",
        "Trace: ",
    ),
    "a traceback that is none": (
        "type('Trace', (Exception,), {'__traceback__': property(lambda self: 5)})()",
        "Trace: ",
    ),
    "no truth": ("type('Maybe', (Exception,), {'__bool__': lambda self: 1 / 0})()", "Maybe: "),
    "no equal": (
        "type('Unequal', (Exception,), {'__eq__': lambda *_: 1 / 0, '__hash__': lambda *_: 1 / 0})()",
        "Unequal: ",
    ),
    "a length of nothing": ("type('Empty', (Exception,), {'__len__': lambda self: 0})()", "Empty: "),
    "itself as a cause": ("circle()", "ValueError: circle"),
    "ten thousand causes": ("chain(10_000)", "ValueError: link"),
    "a stop": ("StopIteration(5)", "StopIteration: 5"),
    "an interrupt": ("KeyboardInterrupt()", "KeyboardInterrupt: "),
    "an exit": ("SystemExit(9)", "SystemExit: 9"),
    "a place in a file that is not there": ("SyntaxError('bad', ('gone.py', 10**9, 5, 'x' * 9000))", "SyntaxError: "),
}

ODD_HELPERS = """
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


def write_odd_errors(queue: Queue) -> None:
    code = "".join(f"\ndef odd_{number}():\n    raise {what}\n" for number, (what, _) in enumerate(ODD_ERRORS.values()))
    queue.define(ODD_HELPERS + code)


@pytest.mark.long
@pytest.mark.parametrize("log", ["", "log"], ids=["without a log", "with a log"])
@pytest.mark.parametrize("name", ODD_ERRORS)
def test_whatever_an_error_holds_it_fails_its_own_task_alone(sqlite_queue: Queue, name: str, log: str) -> None:
    write_odd_errors(sqlite_queue)
    number = list(ODD_ERRORS).index(name)
    add_row(sqlite_queue, f"odd_{number}")
    add_row(sqlite_queue, f"odd_{number}", 0, 1)
    add_row(sqlite_queue, "note")
    ended = sqlite_queue.worker(TASKSERVER_LOG=log)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert sqlite_queue.rows("status, attempts") == [(3, 1), (4, 1)]
    assert_kept(sqlite_queue, [ODD_ERRORS[name][1]] * 2)
    assert sqlite_queue.notes() == ["noted"]


def assert_kept(queue: Queue, beginnings: list[str | None]) -> None:
    for text, beginning in zip(queue.errors(), beginnings, strict=True):
        assert 0 < len(text) <= 1000
        text.encode()
        assert "\0" not in text
        assert beginning is None or text.startswith(beginning), text[:100]


@ONE_STORE
def test_whatever_errors_hold_a_database_takes_their_texts_and_the_log_their_tracebacks(queue: Queue) -> None:
    write_odd_errors(queue)
    for number in range(len(ODD_ERRORS)):
        add_row(queue, f"odd_{number}")
        add_row(queue, "note")
    assert_silent(queue.worker(TASKSERVER_LOG="log"))
    assert queue.rows("status, attempts") == [(3, 1)] * len(ODD_ERRORS)
    assert_kept(queue, [beginning for _, beginning in ODD_ERRORS.values()])
    assert queue.notes() == ["noted"] * len(ODD_ERRORS)


@pytest.mark.parametrize(
    "way",
    ["time.sleep(60)", pytest.param("[None for _ in iter(int, 1)]", marks=pytest.mark.long)],
    ids=["sleeps", "spins"],
)
def test_an_error_whose_text_never_comes_holds_the_worker_up_no_longer_than_a_task_may(
    sqlite_queue: Queue, way: str
) -> None:
    sqlite_queue.define(
        f"class Endless(Exception):\n    def __str__(self):\n        note('asked')\n        {way}\n\n"
        "def odd():\n    raise Endless\n",
    )
    add_row(sqlite_queue, "odd")
    process = sqlite_queue.start(TASKSERVER_LEASE="1", TASKSERVER_TIMEOUT="1")
    # Whether it is interrupted or ends its worker: it must not hang for ever. Timeout and lease are 2 s together.
    assert process.wait(12) in (0, 1)
    assert sqlite_queue.notes()


def test_a_signal_in_the_midst_of_a_failing_task_s_text_is_heard(sqlite_queue: Queue) -> None:
    sqlite_queue.define(
        "class Slow(Exception):\n    def __str__(self):\n        note('asked')\n        time.sleep(0.3)\n"
        "        return 'slow'\n\ndef odd():\n    raise Slow\n",
    )
    add_row(sqlite_queue, "odd")
    add_row(sqlite_queue, "note")
    process = sqlite_queue.start_task()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert sqlite_queue.statuses() == [3, 0]


def test_fatal_and_retry_are_errors_of_ours_that_a_task_may_catch_as_such() -> None:
    makers: list[Callable[[], Exception]] = [Fatal, Retry, lambda: Retry("text", delay=3)]
    for make in makers:
        assert isinstance(make(), TaskServerError)
    assert (str(Retry("text", delay=3)), Retry("text", delay=3).delay, Retry().delay) == ("text", 3, None)
