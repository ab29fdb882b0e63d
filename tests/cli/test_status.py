"""client.py status, and the overview behind it, which whatever else watches a queue shows too."""

from __future__ import annotations

import json
import socket

from taskserver import TaskServer
from taskserver.cli.terminal.output import MAX_LINES
from taskserver.health.status import MAX_RUNNING
from taskserver.host.process_identity import own_identity
from taskserver.model.task import Status
from tests.support.printed import json_of, text_of
from tests.support.queues import Queue

NONE = {status.name.lower(): 0 for status in Status}


def test_status_counts_rows_by_group_and_status(queue: Queue) -> None:
    for group_id, status in [(3, 0), (3, 0), (3, 4), (5, 2), (5, 77), (6, 1), (6, 3), (6, 5), (6, 7)]:
        queue.sql(f"INSERT INTO jobs_queue (task, group_id, status) VALUES ('tasks.note', {group_id}, {status})")
    queue.sql(f"UPDATE jobs_queue SET created_at = {queue.ago(3 * 3600)} WHERE id = 1")
    report = json_of(queue, "status")
    ages = [group["oldest_new_seconds"] for group in report["groups"]]
    assert [
        {name: group[name] for name in ("group_id", *NONE, "other") if name in group} for group in report["groups"]
    ] == [
        NONE | {"group_id": 3, "new": 2, "fatal": 1},
        NONE | {"group_id": 5, "done": 1, "other": 1},
        NONE | {"group_id": 6, "in_progress": 1, "error": 1, "waiting": 1, "cancelled": 1},
    ]
    assert {**report["total"], **dict.fromkeys(NONE, 1), "new": 2, "other": 1} == report["total"]
    assert ages[1:] == [None, None]
    assert 3 * 3600 <= ages[0] == report["oldest_new_seconds"] == report["total"]["oldest_new_seconds"] < 3 * 3600 + 60
    assert (report["table"], report["mode"], report["runs"]) == ("jobs_queue", "delete", [])
    text = text_of(queue, "status")
    assert " other " in text
    assert "3 h" in text
    assert [(one["claimed"], one["running"]) for one in report["groups"]] == [(0, 0), (0, 0), (1, 0)]
    assert ["5", "0", "0", "0", "1", "0", "0", "0", "0", "1"] in [line.split() for line in text.splitlines()]


def test_a_cancelled_task_is_shown_everywhere_and_alarms_nobody(queue: Queue) -> None:
    queue.run_here()
    queue.sql("INSERT INTO jobs_queue (task, status, error_text) VALUES ('tasks.note', 7, 'cancelled')")
    assert text_of(queue, "status").splitlines()[1] == "all is well"
    assert [task["status_name"] for task in json_of(queue, "list", "--status", "cancelled")] == ["cancelled"]
    assert 'taskserver_tasks{group="0",status="cancelled"} 1' in text_of(queue, "metrics")
    assert json_of(queue, "show", "1")["status_name"] == "cancelled"
    assert queue.here("check").returncode == 0
    assert json_of(queue, "errors") == []
    checks = json.loads(queue.here("doctor", "--json").stdout)["findings"]
    assert [one["level"] for one in checks if one["name"] == "fatal"] == ["ok"]
    assert text_of(queue, "prune", "--fatal", "--older-than", "0s").startswith("0 fatal tasks, ")
    assert text_of(queue, "prune", "--cancelled", "--older-than", "0s").startswith("1 cancelled task, ")
    assert queue.rows() == []


def test_of_many_groups_a_person_sees_the_largest_and_how_many_more_there_are(queue: Queue) -> None:
    groups = range(1000, 1000 + MAX_LINES + 5)
    queue.add_many([(group_id, 0) for group_id in groups])
    queue.add_many([(groups[-1], 4), (groups[-1], 0), (groups[-2], 0)])
    lines = text_of(queue, "status").splitlines()
    heads = [line.partition(" ")[0] for line in lines].index("group")
    table = lines[heads : lines.index("")]
    assert len(table) == 1 + MAX_LINES + 2
    assert [line.split()[:2] for line in table[1:3]] == [[str(groups[-1]), "2"], [str(groups[-2]), "2"]]
    assert table[-2].split()[:4] == ["5", "more", "groups", "5"]
    assert table[-1].split()[:2] == ["all", str(MAX_LINES + 7)]
    assert len(json_of(queue, "status")["groups"]) == len(groups)


def test_status_begins_with_the_verdict_and_what_to_do(queue: Queue) -> None:
    text = text_of(queue, "status")
    assert text.splitlines()[1].startswith("warning: no worker ran yet; look whether")
    assert ("no tasks" in text, "crontab" in text) == (True, True)
    queue.add("tasks.note")
    queue.run_here()
    assert text_of(queue, "status").splitlines()[1] == "all is well"
    queue.add("tasks.none", group_id=3)
    queue.add("tasks.note", group_id=4)
    queue.run_here(1, [3])
    queue.sql("DELETE FROM jobs_queue_workers WHERE group_ids = 'all'")
    first, second = text_of(queue, "status").splitlines()[1:3]
    assert first.startswith("warning: 1 new task in group 4, which no worker takes")
    assert second.startswith("warning: 1 task is fatal: no worker retries it; client.py errors")


def test_status_tells_when_which_worker_ran_and_why_it_ended(queue: Queue) -> None:
    queue.add("tasks.note", None, 3)
    queue.add("os.system", None, 5)
    queue.run_here(100, [3, 5, 6])
    (run,) = json_of(queue, "status")["runs"]
    assert (run["group_ids"], run["reason"]) == ("3,5,6", "empty")
    assert [run[key] for key in ("taken", "done", "fatal", "lost", "released")] == [2, 1, 1, 0, 0]
    assert run["started_at"] < run["ended_at"]
    assert 0 <= run["started_seconds_ago"] < 60
    text = text_of(queue, "status")
    for words in ("groups 3,5,6", "ended: empty (no new task is left)", "2 taken up, 1 done, 1 fatal"):
        assert words in text
    assert "the one before" not in text
    queue.sql(f"UPDATE jobs_queue_workers SET previous_started_at = {queue.ago(300)}")
    assert "released; the one before began 5 min earlier" in text_of(queue, "status")


def test_an_overview_holds_some_running_tasks_and_counts_them_all(queue: Queue) -> None:
    running = "INSERT INTO jobs_queue (task, status, group_id, started_at, progress) VALUES ('tasks.note', 1, 7, {}, ?)"
    for number in range(MAX_RUNNING + 1):
        queue.sql(running.format(queue.ago(100 - number)), None)
    queue.sql(running.format(queue.now), '{"done":1,"total":4}')
    queue.sql("INSERT INTO jobs_queue (task, status, group_id) VALUES ('tasks.note', 1, 7)")
    with TaskServer(queue.dsn) as server:
        status = server.status()
    assert [task.id for task in status.running] == [MAX_RUNNING + 2, *range(1, MAX_RUNNING)]  # the oldest ones
    assert [task.progress and task.progress.fraction for task in status.running[:2]] == [0.25, None]
    assert (status.groups[7].claimed, status.groups[7].running, status.total.running) == (1, *[MAX_RUNNING + 2] * 2)
    assert "and 2 more running tasks" in text_of(queue, "status")


AHEAD = "2037-12-31 00:00:00.000000"


def test_status_of_a_process_of_another_host_says_nothing_of_its_life(queue: Queue) -> None:
    queue.sql(
        "INSERT INTO jobs_queue_processes (number, host, group_ids, pid, identity) VALUES (7, ?, 'all', 99, ?)",
        *("other\x1b[2J", own_identity()),
    )
    queue.sql(
        "INSERT INTO jobs_queue (task, status, due_at, started_at, claim) VALUES"
        + ", ".join(f" ('tasks.note', 1, '{AHEAD}', {queue.now}, {claim})" for claim in (7 << 32, 5))
    )
    (process,) = json_of(queue, "status")["workers"]
    assert (process["is_here"], process["has_ended"]) == (False, None)
    text = text_of(queue, "status")
    assert "process 99 on other\\x1b[2J for all groups" in text
    assert text.count("which worker has it is not known") == 1
    queue.run_quietly()
    assert queue.statuses() == [1, 1]  # their leases hold


def test_a_process_of_an_invalid_id_or_of_another_start_of_the_machine_is_left_to_its_lease(queue: Queue) -> None:
    own, none = own_identity(), 2**22
    processes = [(0, own), (2**22 + 1, own), (2**31, own), (2**32 - 1, own), (none, "other-boot 1 2"), (none, "")]
    for number, (pid, identity) in enumerate(processes, 1):
        queue.sql(
            "INSERT INTO jobs_queue_processes (number, host, group_ids, pid, identity) VALUES (?, ?, 'all', ?, ?)",
            *(number, socket.gethostname(), pid, identity),
        )
        queue.sql(
            "INSERT INTO jobs_queue (task, status, claim, due_at) VALUES ('tasks.note', 1, ?, ?)", number << 32, AHEAD
        )
    queue.add("tasks.note")
    queue.run_quietly()
    assert (queue.notes(), queue.statuses()) == (["noted"], [Status.IN_PROGRESS] * len(processes))
    assert [one["has_ended"] for one in json_of(queue, "status")["workers"]] == [None] * len(processes)
