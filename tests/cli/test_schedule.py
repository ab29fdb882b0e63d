"""client.py schedule, unschedule, and schedules in the status."""

from __future__ import annotations

import json

from tests.support.processes import Run, assert_one_line
from tests.support.queues import LONG_AGO, Queue


def test_the_command_makes_a_schedule_and_says_when_it_comes(client: Run) -> None:
    arguments = ("nightly", "tasks.note", '["ran"]', "--cron", "30 3 * * *", "--timezone", "Asia/Kathmandu")
    made = client("schedule", *arguments, "--group", 3, "--priority", -5)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith("nightly: next at 20")
    assert made.stdout.endswith(" 21:45:00.000000 UTC\n")
    (report,) = json.loads(client("status", "--json").stdout)["schedules"]
    assert report.pop("next_at").endswith("T21:45:00.000000Z")
    assert 0 < report.pop("next_seconds") <= 86_400
    assert report == {
        "name": "nightly", "task": "tasks.note", "args": '["ran"]', "group_id": 3, "priority": -5,
        "every_seconds": None, "cron": "30 3 * * *", "timezone": "Asia/Kathmandu", "fault": None, "held": None,
        "is_silenced": False, "last": None,
    }  # fmt: skip
    ended = client("unschedule", "nightly")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "nightly is no longer scheduled\n", "")
    assert_one_line(client("unschedule", "nightly"), 0, "there is no schedule 'nightly'")


def test_a_mistake_is_one_line(client: Run) -> None:
    mistakes = {
        ("nightly", "tasks.note"): "neither every nor cron",
        ("nightly", "tasks.note", "--every", "5000d"): ", of seconds, nor a span such as 90s, 5m, 1h or 2d",
        ("nightly", "tasks.note", "--cron", "* * *"): "it has not five fields",
        ("nightly", "tasks.note", "--cron", "*", "*", "*"): "and EXPR too",
        ("nightly", "tasks.note", "[1", "--every", "60"): "ARGS_JSON is not valid JSON",
    }
    for arguments, fault in mistakes.items():
        assert_one_line(client("schedule", *arguments), 2, fault)


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
