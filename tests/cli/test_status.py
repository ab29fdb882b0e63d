"""client.py status, metrics and stats, and the overview behind them."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import time
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from taskserver import TaskServer
from taskserver.cli.terminal.output import MAX_LINES
from taskserver.host.process_identity import own_identity
from taskserver.model.task import Status
from taskserver.stores.queue.stats import Stats
from tests.support.deployment import Deployment
from tests.support.printed import json_of, text_of
from tests.support.processes import assert_silent, wait_until
from tests.support.queues import Queue
from tests.support.rows import HOURS_AGO, MINUTE_AND_SECOND
from tests.support.servers import free_port

NONE = {status.name.lower(): 0 for status in Status}


def test_status_counts_rows_by_group_and_status(queue: Queue) -> None:
    for group_id, status in [(3, 0), (3, 0), (3, 4), (5, 2), (5, 77), (6, 1), (6, 3), (6, 5), (6, 7)]:
        queue.sql(f"INSERT INTO jobs_queue (task, group_id, status) VALUES ('tasks.note', {group_id}, {status})")
    queue.sql(f"UPDATE jobs_queue SET created_at = {queue.ago(3 * 3600)} WHERE id = 1")
    report = json_of(queue, "status")
    ages = [group["oldest_new_seconds"] for group in report["groups"]]
    counts = [{name: group[name] for name in (*NONE, "other") if group.get(name)} for group in report["groups"]]
    of_6 = {"in_progress": 1, "error": 1, "waiting": 1, "cancelled": 1}
    assert counts == [{"new": 2, "fatal": 1}, {"done": 1, "other": 1}, of_6]
    assert {**report["total"], **dict.fromkeys(NONE, 1), "new": 2, "other": 1} == report["total"]
    assert 3 * 3600 <= ages[0] == report["oldest_new_seconds"] == report["total"]["oldest_new_seconds"] < 3 * 3600 + 60
    lines = [line.split() for line in text_of(queue, "status").splitlines()]
    assert ["5", "0", "0", "0", "1", "0", "0", "0", "0", "1"] in lines


def test_a_cancelled_task_is_shown_everywhere_and_is_no_alarm(queue: Queue) -> None:
    queue.run_here()
    queue.sql("INSERT INTO jobs_queue (task, status, error_text) VALUES ('tasks.note', 7, 'cancelled')")
    assert text_of(queue, "status").splitlines()[1] == "all is well"
    assert [task["status_name"] for task in json_of(queue, "list", "--status", "cancelled")] == ["cancelled"]
    assert queue.here("check").returncode == 0
    assert json_of(queue, "errors") == []
    assert text_of(queue, "prune", "--fatal", "--older-than", "0s").startswith("0 fatal tasks, ")
    assert text_of(queue, "prune", "--cancelled", "--older-than", "0s").startswith("1 cancelled task, ")
    assert queue.rows() == []


def test_the_largest_groups_are_shown_and_the_others_counted(queue: Queue) -> None:
    groups = range(1000, 1000 + MAX_LINES + 5)
    queue.add_many([(group_id, 0) for group_id in groups])
    queue.add_many([(groups[-1], 4), (groups[-1], 0), (groups[-2], 0)])
    lines = [line.split() for line in text_of(queue, "status").splitlines()]
    first = [line[:1] for line in lines].index(["group"]) + 1
    assert [line[:2] for line in lines[first : first + 2]] == [[str(groups[-1]), "2"], [str(groups[-2]), "2"]]
    assert lines[first + MAX_LINES][:4] == ["5", "more", "groups", "5"]
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


def test_status_shows_the_last_runs_and_why_they_ended(queue: Queue) -> None:
    queue.add("tasks.note", None, 3)
    queue.add("os.system", None, 5)
    queue.run_here(100, [3, 5, 6])
    (run,) = json_of(queue, "status")["runs"]
    assert (run["group_ids"], run["reason"]) == ("3,5,6", "empty")
    assert [run[key] for key in ("taken", "done", "fatal", "lost", "released")] == [2, 1, 1, 0, 0]
    assert run["started_at"] < run["ended_at"]
    text = text_of(queue, "status")
    for words in ("groups 3,5,6", "ended: empty (no new task is left)", "2 taken up, 1 done, 1 fatal"):
        assert words in text
    queue.sql(f"UPDATE jobs_queue_workers SET previous_started_at = {queue.ago(300)}")
    assert "released; the one before began 5 min earlier" in text_of(queue, "status")


AHEAD = "2037-12-31 00:00:00.000000"


def test_a_process_of_another_host_is_neither_alive_nor_dead(queue: Queue) -> None:
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


def test_an_invalid_process_keeps_its_tasks_until_the_lease_ends(queue: Queue) -> None:
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


# ---- how far a running task has come, as status and show say it: also of what anybody wrote into the row


def running_row(queue: Queue, text: object) -> None:
    """A row as that of a task that runs for five minutes, and reported this."""
    queue.sql(
        "INSERT INTO jobs_queue (task, status, attempts, claim, due_at, started_at, progress) "
        f"VALUES ('tasks.resize', 1, 1, 5, {queue.now}, {queue.ago(300)}, ?)",
        text,
    )


def test_status_and_show_have_the_progress_of_a_running_task(queue: Queue) -> None:
    running_row(queue, '{"done": 3, "total": 8, "text": "reading"}')
    assert "task 1 tasks.resize has run for 5 min: 3 of 8 (37 %): reading" in text_of(queue, "status")
    (task,) = json_of(queue, "status")["running"]
    assert 300 <= task.pop("seconds") < 360
    reported = {"done": 3, "total": 8, "text": "reading"}
    assert task == {"id": 1, "task": "tasks.resize", "group_id": 0, "attempts": 1, "number": 0, "progress": reported}
    assert "  progress     3 of 8 (37 %): reading\n" in text_of(queue, "show", 1)


def test_an_invalid_progress_breaks_no_command(queue: Queue) -> None:
    for text in ("no JSON", '{"done": 1e400}', json.dumps({"done": 1, "text": "\x1b[2J\r\n\x9b evil \u202e"})):
        running_row(queue, text)
    for command in ("status", *(f"show {number}" for number in (1, 2, 3))):
        assert "Error" not in text_of(queue, *command.split())
        json_of(queue, *command.split())
    shown = "task {} tasks.resize has run for 5 min (which worker"  # and no progress
    assert all(shown.format(number) in text_of(queue, "status") for number in (1, 2))


# ---- metrics: what Prometheus and node exporter read, also of a database that is away


def values_of(text: str) -> dict[str, float]:
    """The value of each sample, by its name and labels."""
    return {
        f"{sample.name} {' '.join(value for _, value in sorted(sample.labels.items()))}".strip(): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_have_tasks_runs_and_this_hour(queue: Queue) -> None:
    queue.add("tasks.note", None, 3)
    queue.add('tasks.no"ne\\\n\x1b[2J', None, 5)
    queue.run_here()
    queue.add("tasks.note", None, 3)
    queue.sql(f"UPDATE jobs_queue SET updated_at = {queue.ago(412)} WHERE status = 0")
    ended = queue.here("metrics")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    values = values_of(ended.stdout)
    assert (values["taskserver_up"], values["taskserver_level"]) == (1, 1)
    assert values["taskserver_finding fatal"] == 1
    assert [values[f"taskserver_tasks {one}"] for one in ("3 new", "5 fatal")] == [1, 1]
    assert 412 <= values["taskserver_queue_latency_seconds 3"] < 500
    assert values["taskserver_queue_latency_seconds 5"] == 0
    assert values["taskserver_last_run_timestamp_seconds all"] == pytest.approx(time.time(), abs=60)
    for name in ("attempts 3 done tasks.note", "fatal_tasks 5 (no callable)"):
        assert sum(values.get(f"taskserver_{when}_hour_{name}", 0) for when in ("this", "last")) == 1


def test_a_text_file_is_written_atomically_for_every_reader(queue: Queue) -> None:
    path = queue.folder / "taskserver.prom"
    assert_silent(queue.here("metrics", "--textfile", path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert values_of(path.read_text())["taskserver_up"] == 1
    assert [name for name in os.listdir(queue.folder) if name.endswith((".prom", ".tmp"))] == [path.name]


def test_metrics_of_an_outage_say_so_with_code_1(deployment: Deployment, tmp_path: Path) -> None:
    deployment.write_env(TASKSERVER_DSN=f"mysql://u:secret@127.0.0.1:{free_port()}/none")
    path = tmp_path / "taskserver.prom"
    path.write_text("taskserver_up 1\n")
    ended = deployment.here("metrics", "--textfile", path)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (1, "", 1)
    assert "secret" not in ended.stderr + path.read_text()
    values = values_of(path.read_text())
    assert values["taskserver_up"] == 0
    assert not [name for name in values if name.startswith("taskserver_tasks")]


# ---- stats: TaskServer.stats, `client.py stats`, and the hours in `client.py status`

ADD_HOUR = """
    INSERT INTO jobs_queue_stats (hour, group_id, task, begun, attempts, done, failed, fatal, lost,
        ran_seconds, slowest_seconds, waited_seconds, longest_wait_seconds)
    VALUES ({}, ?, ?, 6, 6, ?, 2, 1, 1, 8, 3, 16, 9.5)
"""


def hours_ago(queue: Queue, number: int) -> str:
    """SQL for the hour so many hours ago."""
    return HOURS_AGO[queue.kind].format(number)


@pytest.fixture
def known(queue: Queue) -> Queue:
    """A queue with figures of this hour, of the one before, of three hours ago, and of a week ago."""
    # If the hour ends before a test does, it waits.
    wait_until(lambda: int(queue.sql(f"SELECT {MINUTE_AND_SECOND[queue.kind]}")[0][0]) < 5945)
    for number, group, task, done in (
        (0, 0, "tasks.a", 4),
        (1, 0, "tasks.a", 40),
        (1, 3, "tasks.b", 2),
        (3, 3, "tasks.b", 7),
        (168, 5, "", 1),
    ):
        queue.sql(ADD_HOUR.format(hours_ago(queue, number)), group, task, done)
    return queue


def test_since_takes_instants_in_any_time_zone(known: Queue) -> None:
    with TaskServer(known.dsn) as server:
        this_hour = Stats(server.store).recent()[0].hour
        since = (this_hour - timedelta(minutes=30)).astimezone(timezone(timedelta(hours=5, minutes=30)))
        assert sorted(one.done for one in server.stats(since)) == [2, 4, 40]
        assert sorted(one.done for one in server.stats()) == [1, 2, 4, 7, 40]
    assert [one["done"] for one in json_of(known, "stats", "--since", f"{since:%Y-%m-%dT%H:%M}+05:30")] == [42, 4]
    days = json_of(known, "stats", f"--since={this_hour - timedelta(days=8):%Y-%m-%d}")
    assert [one["done"] for one in days] == [1, 7, 42, 4]


# ---- client.py stats


def test_the_table_has_a_line_for_each_hour_and_one_for_all(known: Queue) -> None:
    head, *hours, last = text_of(known, "stats").splitlines()
    assert head.split("  ")[0] == "hour (UTC)"
    assert [line.split()[2:6] for line in hours] == [["7", "2", "1", "1"], ["42", "4", "2", "2"], ["4", "2", "1", "1"]]
    assert re.split(" {2,}", last) == ["all", "53", "8", "4", "4", "32 s", "525 ms", "3.0 s", "1.0 s", "9.5 s"]


def test_stats_are_filtered_and_grouped_by_group_or_task(known: Queue) -> None:
    def firsts(*args: object) -> list[list[str]]:
        return [re.split(" {2,}", line.strip())[:2] for line in text_of(known, "stats", *args).splitlines()[1:]]

    assert firsts("--by", "group", "--since", "4w") == [["0", "44"], ["3", "9"], ["5", "1"], ["all", "54"]]
    assert firsts("--by", "group", "--task", "tasks.a", "--since", "0s") == [["0", "4"]]
    assert firsts("--by", "task", "--group", "5,3", "--since", "8d")[0] == ["(no callable)", "1"]


def test_status_shows_this_hour_and_the_last(known: Queue) -> None:
    this_hour = r"since \d\d:00 UTC: 4 done, 2 failed, 1 fatal, 1 lost"
    assert re.search(rf"{this_hour}; in the hour before: 42 done, 4 failed, 2 fatal, 2 lost", text_of(known, "status"))
