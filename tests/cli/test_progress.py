"""How far a running task has come, as status and show say it: also of what anybody wrote into the row."""

from __future__ import annotations

import json

from tests.support.queues import Queue


def running_row(queue: Queue, text: object, age_seconds: int = 0) -> None:
    """A row as that of a task that runs, and reported this."""
    queue.sql(
        "INSERT INTO jobs_queue (task, status, attempts, claim, due_at, started_at, progress) "
        f"VALUES ('tasks.resize', 1, 1, 5, {queue.now}, {queue.ago(age_seconds)}, ?)",
        text,
    )


def test_status_and_show_say_how_far_a_running_task_has_come(queue: Queue) -> None:
    running_row(queue, '{"done": 3, "total": 8, "text": "reading"}', 300)
    assert "task 1 tasks.resize has run for 5 min: 3 of 8 (37 %): reading" in queue.here("status").stdout
    (task,) = json.loads(queue.here("status", "--json").stdout)["running"]
    assert 300 <= task.pop("seconds") < 360
    reported = {"done": 3, "total": 8, "text": "reading"}
    assert task == {"id": 1, "task": "tasks.resize", "group_id": 0, "attempts": 1, "number": 0, "progress": reported}
    assert "  progress     3 of 8 (37 %): reading\n" in queue.here("show", 1).stdout


def test_an_invalid_progress_counts_as_none_and_breaks_no_command(queue: Queue) -> None:
    invalid = ["no JSON", '{"done": 1e400}', "[" * 2_000, "", '{"done": 1, "text": "\\ud800"}']
    for text in (*invalid, json.dumps({"done": 1, "text": "\x1b[2J\x07\r\n\x9b evil \u202e"})):
        running_row(queue, text)
    states = [queue.server.get(number + 1) for number in range(len(invalid))]
    assert [state and state.progress for state in states[:-1]] == [None] * (len(invalid) - 1)
    for command in (("status",), *(("show", number + 1) for number in range(len(invalid) + 1))):
        for as_json in ((), ("--json",)):
            ended = queue.here(*command, *as_json)
            assert (ended.returncode, "Error" in ended.stderr) == (0, False), command
            assert not {"\x1b", "\x07", "\r", "\x9b"} & set(ended.stdout)
    assert "evil" in ended.stdout
