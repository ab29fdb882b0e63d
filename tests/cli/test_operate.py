"""What operators do to a queue: retry, cancel, priority, pause, run, errors, prune, reclaim, schedule.

Rows are written and looked at by SQL of the tests' own.
"""

from __future__ import annotations

import json
import re

import pytest

from taskserver.stores.queue.operations import CANCEL, RETRY
from tests.support.kinds_of_rows import FAR, KINDS, put, put_all_kinds
from tests.support.printed import json_of
from tests.support.processes import Run, assert_one_line
from tests.support.queues import LONG_AGO, Queue

TASKS = """
def fail(text="no luck"):
    raise ValueError(text)

def speak():
    print("it speaks")
"""


def test_retry_as_gives_a_misspelt_task_its_right_name(queue: Queue, client: Run) -> None:
    for number in range(3):
        queue.add("tasks.notte", f'["{number}"]')
    put(queue, task="tasks.notte", stages='["tasks.notte", "tasks.note"]')
    queue.worker()
    choose = ("retry", "--task", "tasks.notte", "--as", "tasks.note")
    previewed = client(*choose, "--status", "fatal", "--dry-run")
    assert previewed.stdout.endswith("3 tasks would be retried as tasks.note; nothing was changed\n")
    assert queue.statuses() == [4, 4, 4, 4]
    ended = client(*choose)
    assert ended.stdout == "3 tasks retried as tasks.note\n"
    assert ended.stderr == "1 pipeline left: add them again with the right names, and cancel these\n"
    queue.run_quietly()
    assert queue.notes() == ["0", "1", "2"]


# ---- the commands


@pytest.mark.parametrize(
    ("command", "done", "rows"),
    [
        (["retry"], "retried", 4),
        (["cancel"], "cancelled", 8),
        (["priority", "-5"], "moved to priority -5", 8),
        (["reclaim", "--force"], "taken from workers", 4),
        (["delete"], "deleted", 3),
    ],
)
def test_a_dry_run_changes_nothing(queue: Queue, client: Run, command: list[str], done: str, rows: int) -> None:
    put_all_kinds(queue)
    before = queue.rows()
    ended = client(*command, "--all", "--dry-run")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith(f"\n{rows} tasks would be {done}; nothing was changed\n")
    assert len(ended.stdout.splitlines()) == 1 + rows + 1  # a line each, under their heads
    assert queue.rows() == before
    ended = client(*command, "--all")
    assert ended.stdout.startswith(f"{rows} tasks {done}\n")


def test_a_command_without_ids_or_filters_changes_nothing(sqlite_queue: Queue) -> None:
    put_all_kinds(sqlite_queue)
    put(sqlite_queue, 4, task="tasks.evil\x1b[2J", error_text="E: \x1b[2J\x07 evil\nmore")
    before = sqlite_queue.rows()
    words = "client.py: name ids, or --group, --task, --error or another filter; --all is for every task"
    for command in (["retry"], ["cancel"], ["delete"], ["priority", "5"], ["reclaim", "--force"]):
        for more in ([], ["--limit", 3]):
            assert_one_line(sqlite_queue.here(*command, *more), 2, words)
    for command in (["retry", "--all", "--dry-run"], ["errors"]):
        printed = sqlite_queue.here(*command).stdout
        assert "\x1b" not in printed
        assert "\\x1b[2J" in printed
    assert sqlite_queue.rows() == before


def test_ids_left_as_they_are_are_named_and_if_all_are_the_code_is_1(queue: Queue, client: Run) -> None:
    ids = put_all_kinds(queue)
    given = (ids["fatal"], ids["new"], ids["done"], 999, "--group", 0)
    left = f"left as they are: {ids['new']}, {ids['done']}, 999; retry is for tasks that are {RETRY.applies_to}\n"
    ended = client("retry", *given)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1 task retried\n", left)
    ended = client("cancel", *range(1000, 1030))
    assert (ended.returncode, ended.stdout) == (1, "0 tasks cancelled\n")
    assert ended.stderr.endswith(f"1018, 1019 and 10 more; cancel is for tasks that are {CANCEL.applies_to}\n")


def test_a_retry_reports_tasks_that_are_fatal_again_because_of_parents(queue: Queue, client: Run) -> None:
    parent = put(queue, 4)
    child = queue.server.add_task("tasks.note", depends_on=[parent])
    ended = client("retry", child)
    again = "1 task fatal again, because of a fatal or cancelled parent: retry that one\n"
    assert (ended.stdout, ended.stderr) == ("1 task retried\n", again)
    assert queue.statuses() == [4, 4]
    assert client("retry", parent).stderr == ""
    assert queue.statuses() == [0, 5]


# ---- pause


def test_several_groups_are_paused_and_resumed_by_one_command(queue: Queue, client: Run) -> None:
    assert client("pause", "5").returncode == 0
    ended = client("pause", "3,5,3,7")
    assert ended.stdout.startswith("groups 3, 7 are paused from the next claim on;")
    assert ended.stdout.endswith("\ngroup 5 is paused already\n")
    assert queue.server.store.claims.paused() == ([3, 5, 7], False)
    assert client("resume", "7,4,3").stdout == "groups 7, 3 are served again\ngroup 4 is not paused\n"
    assert queue.server.store.claims.paused() == ([5], False)
    assert client("resume", "--all").stdout == "all groups are served again\n"
    assert_one_line(client("pause", "3", "--all"), 2, "name a group, or several such as 3,5, or else --all")


# ---- run


def test_run_shows_the_output_and_whole_traceback_of_a_task(queue: Queue) -> None:
    task = put(queue, task="tasks.speak", group_id=3)
    put(queue, task="tasks.note", priority=-5)
    queue.sql("INSERT INTO jobs_queue_paused (group_id) VALUES (3)")
    ended = queue.client("run", task)
    assert (ended.returncode, ended.stderr) == (0, "")
    first, last = ended.stdout.splitlines()
    assert first == "it speaks"
    assert last.startswith(f"task {task} is done after 0.")
    failing = put(queue, task="tasks.fail", args='["not today"]')
    ended = queue.client("run", failing)
    assert ended.returncode == 0
    assert "Traceback (most recent call last):" in ended.stderr
    assert ended.stderr.endswith("\n    ValueError: not today\n")
    assert re.match(rf"task {failing} failed after \d\.\d s, and will be retried at 20.* UTC\n$", ended.stdout)
    assert queue.rows("status, attempts") == [(0, 0), (3, 1)]
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue_workers") == [(0,)]  # it is no run of cron's


def test_run_refuses_other_tasks_in_one_sentence(queue: Queue, client: Run) -> None:
    ids = put_all_kinds(queue)
    queue.sql("INSERT INTO jobs_queue_dependencies VALUES (?, ?)", ids["new"], ids["waiting for others"])
    before = queue.rows()
    refused = {
        "claimed": "is in progress: a worker has it, or had it until its lease ended, at 2036-01-01",
        "running": "is in progress",
        "done": "is done: add it again",
        "waiting for others": f"waits for task {ids['new']}: run or retry that one",
        "strange": "has the status 9",
    }
    for kind, words in refused.items():
        assert_one_line(client("run", ids[kind]), 2, f"client.py: task {ids[kind]} {words}")
    assert_one_line(client("run", 999), 2, "there is no task 999 in jobs_queue or jobs_queue_done")
    assert queue.rows() == before


# ---- errors


def test_errors_are_grouped_by_their_first_line(queue: Queue, client: Run) -> None:
    assert client("errors").stdout == "no task is in error or fatal\n"
    first_seen, last_seen = "2026-01-02 03:04:05.000000", "2026-02-02 03:04:05.000000"
    for text, status, group, finished_at in (
        ("E: one\nhere", 4, 0, first_seen), ("E: one\nthere", 3, 0, None), ("E: two", 4, 3, first_seen),
        ("E: one", 4, 3, last_seen), (None, 3, 0, None), ("x", 0, 0, None),
    ):  # fmt: skip
        row = {"error_text": text, "group_id": group, "task": f"tasks.of_{group}", "finished_at": finished_at}
        put(queue, status, **row, due_at=FAR if status == 3 else None, updated_at="2026-01-03 00:00:00.000000")
    assert [error[:3] for error in queue.server.errors()] == [("E: one", 3, 2), ("", 1, 0), ("E: two", 1, 1)]
    _, line, *_ = client("errors").stdout.splitlines()
    assert line.split() == ["3", "2", "2026-01-02", "03:04:05", "2026-02-02", "03:04:05", "4", "E:", "one"]
    (error,) = json.loads(client("errors", "--task", "tasks.of_0", "--limit", 1, "--json").stdout)
    assert (error["line"], error["last_seen"]) == ("E: one", "2026-01-03T00:00:00.000000Z")


# ---- reclaim

DUE: list[dict[str, object]] = [
    *(KINDS["error"] | {"status": status, "due_at": due_at} for status in (3, 5) for due_at in (LONG_AGO, FAR)),
    *(KINDS["claimed"] | {"due_at": due_at} for due_at in (LONG_AGO, FAR)),
    *(KINDS["running"] | {"due_at": due_at, "max_attempts": most} for due_at, most in ((LONG_AGO, 1), (FAR, None))),
]


def test_reclaim_does_what_is_due_and_with_force_the_rest(
    queue: Queue, client: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskserver.stores.queue.due.MAX_DUE_PER_LOOK", 1)  # so that there is more than one look
    for row in DUE:
        put(queue, **row)  # type: ignore[arg-type]
    printed = "2 tasks woken, 1 unstarted reclaimed, 1 lost attempt failed\n"
    assert client("reclaim").stdout == printed
    assert queue.statuses() == [0, 3, 0, 5, 0, 1, 4, 1]
    ended = client("reclaim", "--force", 6, 8, 2)
    assert ended.stdout == "2 tasks taken from workers\n0 tasks woken, 1 unstarted reclaimed, 1 lost attempt failed\n"
    left, warning, *_ = ended.stderr.splitlines()
    assert left == "left as they are: 2; reclaim is for tasks that are in progress"
    assert warning == "a task reclaimed from a live worker may run twice"
    assert queue.statuses() == [0, 3, 0, 5, 0, 0, 4, 3]
    assert_one_line(client("reclaim", 8), 2, "choose tasks only with --force")


# ---- prune; tests/contract/test_prune.py has which rows go


def test_prune_reports_what_would_be_and_what_was_deleted(queue: Queue, client: Run) -> None:
    assert_one_line(client("prune", "--done"), 2, "--older-than")
    for status, key in ((2, None), (2, "a"), (4, None), (4, None), (7, None)):
        put(queue, status, finished_at=LONG_AGO, unique_key=key)
    queue.sql("INSERT INTO jobs_queue_done (id, task, finished_at) VALUES (7, 'tasks.note', ?)", LONG_AGO)
    queue.sql("INSERT INTO jobs_queue_stats (hour, group_id, task) VALUES (?, 0, 'tasks.note')", LONG_AGO)
    for options, words in (
        ([], "1 done task, 1 archived task"),
        (["--stats"], "1 stats row"),
        (["--fatal"], "2 fatal tasks"),
        (["--done", "--cancelled", "--keys"], "1 done task, 1 cancelled task"),
    ):
        for more, end in ((["--dry-run"], "would be deleted"), ([], "deleted")):
            printed = client("prune", "--older-than", "30d", *options, *more).stdout
            assert printed == f"{words}, older than 30 d: {end}\n"
    assert queue.rows("id") == queue.rows("id", "jobs_queue_done") == []


# ---- schedule, unschedule, and schedules in the status


def test_schedule_reports_the_next_time(client: Run) -> None:
    arguments = ("nightly", "tasks.note", '["ran"]', "--cron", "30 3 * * *", "--timezone", "Asia/Kathmandu")
    made = client("schedule", *arguments, "--group", 3, "--priority", -5)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith("nightly: next at 20")
    assert made.stdout.endswith(" 21:45:00.000000 UTC\n")
    (report,) = json.loads(client("status", "--json").stdout)["schedules"]
    assert report.pop("next_at").endswith("T21:45:00.000000Z")
    assert list(report.values())[:5] == ["nightly", "tasks.note", '["ran"]', 3, -5]
    ended = client("unschedule", "nightly")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "nightly is no longer scheduled\n", "")
    assert_one_line(client("unschedule", "nightly"), 0, "there is no schedule 'nightly'")


def test_status_shows_when_each_schedule_comes_and_what_is_wrong_with_it(queue: Queue, client: Run) -> None:
    assert "schedule" not in client("status").stdout
    for name, timing in (("soon", ("--every", 600)), ("nightly", ("--cron", "30 3 * * *"))):
        assert client("schedule", name, "tasks.note", *timing).returncode == 0
    queue.sql("INSERT INTO jobs_queue_schedules (name, task, next_at) VALUES (?, 'x', ?)", "bad\x1b[1m", LONG_AGO)
    queue.sql("INSERT INTO jobs_queue (task, unique_key, status) VALUES ('tasks.note', 'schedule:soon', 3)")
    printed = client("status").stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("soon ")]
    assert line.split() == ["soon", "tasks.note", "every", "10", "minutes", "in", "10", "min"]
    assert all(words in printed for words in ("daily 03:30 UTC", "never", "late by", "task 1 has its key and is error"))
    assert "schedule bad\\x1b[1m: name is" in printed


# ---- what waits for what, and the stages of a pipeline, as show, list and run say it


def test_show_and_list_name_parents_and_children(queue: Queue) -> None:
    parents = [queue.server.add_task("tasks.note") for _ in range(3)]
    child = queue.server.add_task("tasks.note", depends_on=parents)
    grandchild = queue.server.add_task("tasks.note", depends_on=[child])
    lines = queue.here("show", child).stdout.splitlines()
    assert f"  awaited_by   {grandchild}" in lines
    assert f"  waits_for    {', '.join(map(str, parents))}" in lines
    listed = {row["id"]: row for row in json_of(queue, "list")}
    assert (listed[child]["waits_for"], listed[child]["awaited_by"]) == (parents, [grandchild])
    assert [listed[parent]["awaited_by"] for parent in parents] == [[child]] * 3


def test_show_has_the_state_of_each_stage(queue: Queue) -> None:
    failing = {"task": "tasks.fail", "group_id": 5, "priority": 2, "max_attempts": 1}
    task_id = queue.server.add_pipeline(["tasks.note", failing, "tasks.note"])
    for status, states in (("new", ("new", "to come")), ("fatal", ("done", "fatal"))):
        lines = [line.strip() for line in queue.here("show", task_id).stdout.splitlines()]
        assert lines[0].startswith(f"task {task_id}: {status}, ")
        assert f"stage        {1 if status == 'new' else 2} of 3" in lines
        priority = "" if status == "new" else ", priority 0"  # where it is not the row's
        assert f"stages       1 tasks.note, group 0{priority}: {states[0]}" in lines
        priority = ", priority 2" if status == "new" else ""
        assert f"2 tasks.fail, group 5{priority}, max_attempts 1: {states[1]}" in lines
        assert any(line.startswith("3 tasks.note, group 0") and line.endswith(": to come") for line in lines)
        queue.run_here()
    assert "tasks.fail (stage 2 of 3)" in queue.here("list").stdout


def test_run_runs_one_stage_of_a_pipeline(queue: Queue) -> None:
    task_id = queue.server.add_pipeline(["tasks.note"] * 3)
    ended = queue.here("run", task_id)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"task {task_id} has done stage 1 after" in ended.stdout
    assert ", and is new for the next one" in ended.stdout
    assert queue.rows("status, stage, attempts") == [(0, 1, 0)]
