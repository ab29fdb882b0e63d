"""on_fatal: what is called once the last attempt has failed, and decides whether the task is done."""

from __future__ import annotations

from tests.support.queues import Queue

TASKS = """
from taskserver import Fatal, Retry, TaskServer, task

def fail():
    raise ValueError("the first one")

def rescue(*args, error, **kwargs):
    note(f"rescued {args} {kwargs} {type(error).__name__}: {error}")

def tries_again(error):
    note("called")
    raise Retry("the second one", delay=0)

@task(on_fatal="tasks.rescue")
def named(*args, **kwargs): fail()

@task(on_fatal=rescue, max_attempts=2)
def given(*args, **kwargs): fail()

@task(on_fatal="tasks.rescue")
def gives_up(): raise Fatal("at once")

@task(on_fatal="os.system")
def unlisted(command): fail()

@task(on_fatal="tasks.rescue")
def strict(number): fail()

@task(on_fatal="tasks.in_a_circle")
def in_a_circle(error=None):
    note("round")
    fail()

@task(on_fatal=tries_again)
def wants_retry(): fail()

class Desk:
    @classmethod
    def rescue(cls, text, error):
        note(f"{cls.__name__} {text} {error}")

@task(on_fatal="tasks:Desk.rescue")
def by_method(text): fail()
"""


def test_a_task_whose_rescue_returns_counts_as_done(queue: Queue) -> None:
    queue.add("tasks.named", '{"to": "a@example.org"}')
    queue.add("tasks.given", "[1, 2]")
    queue.sql("UPDATE jobs_queue SET attempts = 1 WHERE task = 'tasks.given'")
    queue.add("tasks.gives_up")
    queue.add("tasks.by_method", '{"text": "hello"}')
    assert queue.run_here(mode="mark", max_attempts=1).done == 4
    assert queue.notes() == [
        "rescued () {'to': 'a@example.org'} ValueError: the first one",
        "rescued (1, 2) {} ValueError: the first one",
        "rescued () {} Fatal: at once",
        "Desk hello the first one",
    ]
    assert queue.rows("status, attempts, error_text, due_at, claim") == [
        (2, attempts, None, None, None) for attempts in (1, 2, 1, 1)
    ]


FAILING_RESCUES = [
    ("unlisted", '["touch evil"]', "BadTask: 'os.system' is in none of the modules", []),
    ("in_a_circle", None, "ValueError: the first one", ["round", "round"]),
    ("wants_retry", None, "Retry: the second one", ["called"]),
]


def test_a_rescue_that_fails_makes_the_task_fatal_with_both_errors(queue: Queue) -> None:
    for name, args, *_ in FAILING_RESCUES:
        queue.add(f"tasks.{name}", args)
    assert queue.run_here(max_attempts=1).fatal == len(FAILING_RESCUES)
    assert queue.rows("status, attempts, claim, due_at") == [(4, 1, None, None)] * len(FAILING_RESCUES)
    for text, (_, _, second, _) in zip(queue.errors(), FAILING_RESCUES, strict=True):
        assert text.startswith("ValueError: the first one\n")
        assert f"\n{second}" in text
    assert queue.notes() == [note for *_, notes in FAILING_RESCUES for note in notes]


def test_a_rescue_is_not_called_for_lost_tasks_and_bad_rows(queue: Queue) -> None:
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
    queue.define(
        "@task(on_fatal='tasks.rescue')\ndef loses_its_claim():\n    with TaskServer.from_env(HERE) as server:\n"
        "        server.store.database.change('UPDATE {table} SET claim = 7')\n    fail()\n",
    )
    queue.add("tasks.loses_its_claim")
    result = queue.run_here(max_attempts=1)
    assert (result.lost, result.done, result.fatal, queue.notes()) == (1, 0, 0, [])
    assert queue.rows("status, attempts, claim, error_text") == [(1, 1, 7, None)]
