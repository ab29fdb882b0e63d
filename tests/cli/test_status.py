"""client.py status, and the overview behind it, which whatever else watches a queue shows too."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest

from taskserver import TaskServer
from taskserver.cli.commands.status import RUNS_SHOWN
from taskserver.cli.terminal.output import MAX_LINES
from taskserver.health.status import MAX_RUNNING
from taskserver.host.process_identity import own_identity
from taskserver.model.task import Status
from taskserver.worker.maintenance import VANISHED_TEXT
from tests.support.printed import json_of, text_of
from tests.support.processes import assert_silent, end_of, freeze, kill, run_on_terminal, thaw, wait_until
from tests.support.queues import Queue
from tests.support.servers import find_program

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
    assert queue.worker().returncode == 0
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


def test_of_many_runs_and_schedules_a_person_sees_some_and_how_many_more_there_are(queue: Queue) -> None:
    for number in range(MAX_LINES + 3):
        queue.sql(
            f"INSERT INTO jobs_queue_workers (host, group_ids, pid, started_at) VALUES (?, 'all', 1, {queue.now})",
            f"host-{number}",
        )
        queue.sql(
            "INSERT INTO jobs_queue_schedules (name, task, cron, timezone) VALUES (?, 'tasks.note', '0 3 * * *', ?)",
            f"name-{number}",
            "Mars",
        )
    text = text_of(queue, "status")
    assert [text.count(words) for words in ("last run on", "\nname-")] == [RUNS_SHOWN, MAX_LINES]
    assert f"and {MAX_LINES + 3 - RUNS_SHOWN} more runs" in text
    assert "and 3 more schedules" in text
    report = json_of(queue, "status")
    assert (len(report["runs"]), len(report["schedules"])) == (MAX_LINES + 3, MAX_LINES + 3)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("delete", "done tasks are deleted"),
        ("move", "done tasks stay in the archive for 30 d"),
        ("mark", "done tasks stay for 30 d"),
    ],
)
def test_status_says_for_how_long_done_tasks_stay(sqlite_queue: Queue, mode: str, words: str) -> None:
    sqlite_queue.deployment.write_env(TASKSERVER_DSN=sqlite_queue.dsn, TASKSERVER_MODE=mode, TASKSERVER_KEEP="30d")
    assert f", mode {mode} ({words})\n" in text_of(sqlite_queue, "status")


def test_status_begins_with_the_verdict_and_what_to_do(queue: Queue) -> None:
    text = text_of(queue, "status")
    assert text.splitlines()[1].startswith("warning: no worker ran yet; look whether")
    assert ("no tasks" in text, "crontab" in text) == (True, True)
    queue.add("tasks.note")
    assert queue.worker().returncode == 0
    assert text_of(queue, "status").splitlines()[1] == "all is well"
    queue.add("tasks.none", group_id=3)
    queue.add("tasks.note", group_id=4)
    assert queue.worker(1, "3").returncode == 0
    queue.sql("DELETE FROM jobs_queue_workers WHERE group_ids = 'all'")
    first, second = text_of(queue, "status").splitlines()[1:3]
    assert first.startswith("warning: 1 new task in group 4, which no worker takes")
    assert second.startswith("warning: 1 task is fatal: no worker retries it; client.py errors")
    screen = run_on_terminal(queue.deployment, "client.py", "status", columns=200, has_colours=True).screen
    assert "\x1b[33mwarning\x1b[0m: 1 task is fatal" in screen


def test_status_tells_when_which_worker_ran_and_why_it_ended(queue: Queue) -> None:
    queue.add("tasks.note", None, 3)
    queue.add("os.system", None, 5)
    queue.worker(100, "3,5,6")
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


def test_groups_that_no_run_serves_and_paused_groups_are_named_in_words(queue: Queue) -> None:
    assert_silent(queue.worker(1, "3"))
    for group_id in (3, 4, 5):
        queue.add("tasks.note", group_id=group_id)
    with TaskServer(queue.dsn) as server:
        server.pause(5)
        status = server.status()
    assert [run.groups for run in status.runs] == ["groups 3"]
    assert (list(status.paused_groups), list(status.unserved_groups)) == ([5], [4])
    text = text_of(queue, "status")
    assert "warning: 1 new task in group 4, which no worker takes" in text
    assert "paused: group 5 is paused, with 1 new task" in text


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


# ---- the workers at work

AHEAD = "2037-12-31 00:00:00.000000"

TASKS = """
import os
import time

def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)

def end_process():
    os._exit(7)
"""


def test_status_tells_what_runs_in_which_process_of_which_host_and_how_long_the_rest_takes(queue: Queue) -> None:
    queue.define("import time\n\ndef slow():\n    time.sleep(0.3)\n")
    queue.deployment.claim_at_once()
    queue.add("tasks.slow", None, 3)
    assert_silent(queue.worker(0, 3))
    for _ in range(3):
        queue.add("tasks.hold", None, 3)
    assert json_of(queue, "status")["groups"][0]["seconds_left"] is None
    worker = queue.start_task(0, 3)
    report = json_of(queue, "status")
    (process,), (task,), (group,) = report["workers"], report["running"], report["groups"]
    assert [process[key] for key in ("host", "group_ids", "pid", "is_here", "has_ended", "number")] == [
        *(socket.gethostname(), "3", worker.pid, True, False, task["number"])
    ]
    assert [task[key] for key in ("id", "task", "attempts", "progress")] == [2, "tasks.hold", 1, None]
    assert (process["claimed"], group["claimed"], group["running"]) == (2, 2, 1)
    assert 3 * 0.3 <= group["seconds_left"] < 3 * 2
    text = text_of(queue, "status")
    assert f"at work: process {worker.pid} on {socket.gethostname()} (this host) for groups 3, since " in text
    assert "  task 2 tasks.hold has run for " in text
    assert "is at work" in text
    (line,) = [line.split() for line in text.splitlines() if line.startswith("3 ")]
    assert line[-1] == "s"
    queue.go()
    assert end_of(worker) == (0, "", "")
    assert json_of(queue, "status")["workers"] == []


def test_status_tells_the_counts_of_a_run_that_goes_on(sqlite_queue: Queue) -> None:
    for _ in range(3):
        sqlite_queue.add("tasks.note")
    worker = sqlite_queue.start("--linger", 60)
    wait_until(lambda: [one["done"] for one in json_of(sqlite_queue, "status")["workers"]] == [3])
    assert "3 done, 0 fatal" in text_of(sqlite_queue, "status")
    worker.terminate()
    assert end_of(worker) == (0, "", "")


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
    assert_silent(queue.worker())
    assert queue.statuses() == [1, 1]  # their leases hold


# ---- processes that are gone


def test_a_task_that_ends_its_process_is_told_by_the_next_run_and_others_come_back(queue: Queue) -> None:
    queue.add("tasks.end_process")
    for _ in range(2):
        queue.add("tasks.note")
    ended = queue.start()
    assert end_of(ended) == (7, "", "")
    text = text_of(queue, "status")
    assert f"gone: process {ended.pid} on {socket.gethostname()} (this host)" in text
    assert "task 1 tasks.end_process was running there: once its lease is over, that attempt has failed" in text
    done = queue.worker()
    assert (done.returncode, done.stdout) == (0, "")
    (told,) = done.stderr.splitlines()
    assert told.startswith(f"process {ended.pid} ended while it ran task 1 tasks.end_process: once the lease is over")
    assert queue.notes() == ["noted"] * 2
    assert_silent(queue.worker())  # told once; the task itself waits for its lease
    assert queue.statuses() == [Status.IN_PROGRESS]
    (process,) = json_of(queue, "status")["workers"]
    assert process["ended_at"] is not None
    queue.end_leases()
    assert_silent(queue.worker())
    assert queue.errors() == [VANISHED_TEXT.format(ended.pid)]
    assert_silent(queue.worker())
    assert json_of(queue, "status")["workers"] == []


def test_after_a_kill_the_verdict_says_what_the_line_of_the_process_says(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.hold")
    worker = sqlite_queue.start_task()
    kill(worker)
    words = "1 worker is gone: killed, or a task hung or exited"
    text = text_of(sqlite_queue, "status")
    assert f"not ended (pid {worker.pid} is gone)" in text
    assert f"\ngone: process {worker.pid} " in text
    assert (words in text, "ll is well" in text) == (True, False)
    assert json_of(sqlite_queue, "status")["findings"][0]["name"] == "lost"


def test_claims_of_a_process_that_only_stands_still_are_left_alone(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.hold")
    worker = sqlite_queue.start_task()
    freeze(worker)
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.statuses() == [Status.IN_PROGRESS]
    thaw(worker)
    sqlite_queue.go()
    assert end_of(worker) == (0, "", "")
    assert sqlite_queue.rows() == []


def test_a_process_of_a_forged_id_or_of_another_start_of_the_machine_is_left_to_its_lease(sqlite_queue: Queue) -> None:
    own, none = own_identity(), 2**22
    processes = [(0, own), (2**22 + 1, own), (2**31, own), (2**32 - 1, own), (none, "other-boot 1 2"), (none, "")]
    for number, (pid, identity) in enumerate(processes, 1):
        sqlite_queue.sql(
            "INSERT INTO jobs_queue_processes (number, host, group_ids, pid, identity) VALUES (?, ?, 'all', ?, ?)",
            *(number, socket.gethostname(), pid, identity),
        )
        sqlite_queue.sql(
            "INSERT INTO jobs_queue (task, status, claim, due_at) VALUES ('tasks.note', 1, ?, ?)", number << 32, AHEAD
        )
    sqlite_queue.add("tasks.note")
    assert_silent(sqlite_queue.worker())
    assert (sqlite_queue.notes(), sqlite_queue.statuses()) == (["noted"], [Status.IN_PROGRESS] * len(processes))
    assert [one["has_ended"] for one in json_of(sqlite_queue, "status")["workers"]] == [None] * len(processes)


def test_a_process_that_nobody_has_heard_of_for_long_may_be_gone(sqlite_queue: Queue) -> None:
    assert_silent(sqlite_queue.worker())
    sqlite_queue.sql("UPDATE jobs_queue_workers SET host = ?, pid = 77, ended_at = NULL, reason = NULL", "h\x1b[2J")
    sqlite_queue.sql(
        "INSERT INTO jobs_queue_processes (number, host, group_ids, pid, seen_at)"
        f" VALUES (7, ?, 'all', 77, {sqlite_queue.ago(7200)})",
        "h\x1b[2J",
    )
    (run,) = json_of(sqlite_queue, "status")["runs"]
    assert (run["host"], run["ended_at"], run["reason"]) == ("h\x1b[2J", None, None)
    text = text_of(sqlite_queue, "status")
    assert "at work, or gone: process 77 on h\\x1b[2J for all groups: it gave its last sign of life 2 h ago" in text
    assert "not ended (pid 77 runs, or was killed)" in text


def test_a_process_of_whose_end_its_parent_has_not_heard_is_gone(sqlite_queue: Queue) -> None:
    """As in a container whose first process waits for nobody."""
    sqlite_queue.add("tasks.end_process")
    ended = sqlite_queue.start()
    wait_until(lambda: Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    (process,) = json_of(sqlite_queue, "status")["workers"]
    assert process["has_ended"] is True


def test_where_proc_is_another_namespace_s_no_worker_is_taken_for_gone(sqlite_queue: Queue) -> None:
    sqlite_queue.deployment.claim_at_once()
    unshare = find_program("unshare")
    if os.getuid() != 0 or unshare is None:
        pytest.skip("a process namespace needs root, and unshare of util-linux")
    script = f"{sqlite_queue.deployment.python} {sqlite_queue.folder}/worker.py"
    for _ in range(2):
        sqlite_queue.add("tasks.hold")
    both = subprocess.Popen([unshare, "--pid", "--fork", "sh", "-c", f"{script} 0 --batch 2 & sleep 2; {script}; wait"])
    wait_until(lambda: sqlite_queue.notes() == ["started"])
    time.sleep(4)  # the second worker has looked, and left
    assert sqlite_queue.sql("SELECT ended_at FROM jobs_queue_processes") == [(None,)]
    assert sqlite_queue.statuses() == [Status.IN_PROGRESS] * 2
    sqlite_queue.go()
    assert both.wait(30) == 0


def test_status_and_doctor_show_a_schedule_at_the_last_instant(sqlite_queue: Queue) -> None:
    assert sqlite_queue.worker().returncode == 0
    sqlite_queue.sql(
        "INSERT INTO jobs_queue_schedules (name, task, every_seconds, next_at)"
        " VALUES ('never', 'tasks.note', 3600, '9999-12-31 23:59:59.999999')"
    )
    for command in (["status"], ["status", "--json"], ["doctor"]):
        ended = sqlite_queue.here(*command)
        assert (ended.stderr, ended.returncode in (0, 1)) == ("", True), command
        assert ended.stdout


def test_a_task_whose_process_is_gone_is_shown_so_with_the_end_of_its_lease(sqlite_queue: Queue) -> None:
    sqlite_queue.define("import os\n\ndef leave():\n    os._exit(7)\n")
    sqlite_queue.add("tasks.leave")
    sqlite_queue.worker(TASKSERVER_LEASE="9m")
    table = text_of(sqlite_queue, "list")
    assert re.search(r"^ 1  gone +.*in [89] min +tasks\.leave", table, re.MULTILINE)
    assert table.endswith("gone: the process has ended; the attempt has failed once its lease is over\n")
    (task,) = json_of(sqlite_queue, "list")
    assert task["status_name"] == "in_progress"
    shown = text_of(sqlite_queue, "show", "1")
    gone = r"gone +its process has ended; the attempt has failed once its lease is over \(in [89] min\)"
    assert re.search(gone, shown)
    assert "runs for" not in shown
