"""client.py init, list, show, and what holds for any command."""

from __future__ import annotations

import json
import os
import re
import shlex

from tests.support.deployment import Deployment
from tests.support.printed import HOSTILE, json_of, text_of
from tests.support.processes import assert_one_line
from tests.support.queues import Queue

# ---- init


def test_init_writes_settings_for_sqlite_once(deployment: Deployment) -> None:
    umask = os.umask(0)
    try:
        ended = deployment.here("init")
    finally:
        os.umask(umask)
    assert (ended.returncode, ended.stderr) == (0, "")
    env_file, var = deployment.folder / ".env", deployment.folder / "var"
    assert "TASKSERVER_DSN=sqlite:///var/taskserver.db" in env_file.read_text().splitlines()
    modes = [path.stat().st_mode & 0o777 for path in (env_file, var, var / "taskserver.db")]
    assert modes == [0o600, 0o700, 0o600]
    assert "denied" in (var / ".htaccess").read_text()
    before = env_file.read_text()
    for task_id in (1, 2):  # it is safe to repeat
        assert deployment.here("add", "tasks.note").stdout == f"{task_id}\n"
        ended = deployment.here("init")
        assert (ended.returncode, ended.stderr, env_file.read_text()) == (0, "", before)
    assert [task["id"] for task in json.loads(deployment.here("list", "--json").stdout)] == [2, 1]


def test_init_does_not_overwrite_settings(deployment: Deployment) -> None:
    path = deployment.write_env("# nothing yet\n")
    assert_one_line(deployment.here("init"), 2, "TASKSERVER_DSN")
    assert path.read_text() == "# nothing yet\n"
    assert not (deployment.folder / "var").exists()


# ---- list and show


def fill(queue: Queue) -> None:
    for number in range(30):
        queue.add("tasks.note", f"[{number}]", number % 3, number)
    queue.sql("UPDATE jobs_queue SET status = 4, error_text = 'ValueError: no\nsecond line' WHERE id IN (5, 10)")
    queue.sql("UPDATE jobs_queue SET status = 9 WHERE id = 7")


def test_list_filters_by_each_of_its_options(queue: Queue) -> None:
    fill(queue)
    for line, ids in {
        "": [*range(30, 10, -1)],
        "fatal": [10, 5],
        "--status fatal new --limit 2 --group 0,1": [29, 28],
        "--task tasks.other": [],
        "--error ValueError:\\ n --since 1h": [10, 5],
        "--error rror": [],
        "--since 0s": [],
    }.items():
        assert [task["id"] for task in json_of(queue, "list", *shlex.split(line))] == ids, line
    assert "no such tasks" in text_of(queue, "list", "--since", "2037-01-31")


def test_list_and_show_print_tasks_as_json_alone_or_for_people(queue: Queue) -> None:
    fill(queue)
    (task,) = json_of(queue, "list", "--status", "fatal", "--limit", 1)
    assert json_of(queue, "show", 10) == task
    assert (task["id"], task["args"], task["status_name"], task["due_at"]) == (10, "[9]", "fatal", None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", task["created_at"])
    _, *lines = text_of(queue, "list", "--status", "fatal").splitlines()
    assert [line.split()[:5] for line in lines] == [["10", "fatal", "0", "9", "0"], ["5", "fatal", "1", "4", "0"]]
    assert "ValueError: no" in lines[0]
    text = text_of(queue, "show", 10)
    for words in ("tasks.note", "fatal", "[9]", "ValueError: no\n               second line\n"):
        assert words in text
    assert json_of(queue, "show", 7)["status_name"] == "status_9"


def test_list_shows_run_times_arguments_and_how_to_see_more(queue: Queue) -> None:
    queue.add("tasks.note", '["Grüße"]')
    queue.run_quietly(mode="mark")
    queue.add("tasks.note", f'["{"x" * 200}"]')
    _, waiting, more = text_of(queue, "list", "--limit", 1).splitlines()
    assert re.search(r'tasks.note  \["x{57}…$', waiting)
    assert "--limit 10 shows more" in more
    _, _, done = text_of(queue, "list", "--limit", 2).splitlines()
    assert re.search(r'done .* \d[\d.]* m?s +tasks.note  \["Grüße"\]$', done)
    assert 0 < json_of(queue, "show", 1)["run_seconds"] < 60
    queue.sql(f"UPDATE jobs_queue SET status = 1, started_at = {queue.ago(90)} WHERE id = 2")
    assert re.search(r"^  runs for     [\d.]+ (s|min)$", text_of(queue, "show", 2), re.MULTILINE)


def test_arguments_are_shown_with_their_letters_but_control_characters_escaped(queue: Queue) -> None:
    text = r"""["gr\u00fcn \uD83C\uDF89 \u0022 \u005c \\\\u00e9 \u001b \u202e \ud83c"]"""
    said = r"""["grün 🎉 \u0022 \u005c \\\\u00e9 \u001b \u202e \ud83c"]"""
    queue.sql("INSERT INTO jobs_queue (task, args) VALUES ('tasks.note', ?)", text)
    queue.sql("UPDATE jobs_queue SET error_text = ?", 'E: \x1b[2J\n  File "tasks.py"')
    shown = text_of(queue, "show", 1)
    assert f"args         {said}\n" in shown
    assert '  error_text   E: \\x1b[2J\n                 File "tasks.py"\n' in shown
    assert said[:40] in text_of(queue, "list")
    assert json_of(queue, "show", 1)["args"] == text


def test_show_finds_a_completed_task_in_the_archive(queue: Queue) -> None:
    queue.add("tasks.note", "[]", 3)
    queue.run_quietly(mode="move")
    report = json_of(queue, "show", 1)
    assert (report["status_name"], report["archived"], report["attempts"]) == ("done", True, 1)
    assert "archive" in text_of(queue, "show", 1)


def test_show_of_a_missing_task_is_one_line_and_code_2(queue: Queue) -> None:
    for json_too in ([], ["--json"]):
        ended = queue.here("show", 999, *json_too)
        assert_one_line(ended, 2, "no task 999", "a completed one may be deleted")


# ---- what rows may hold


def test_hostile_rows_are_printed_with_control_characters_escaped(queue: Queue) -> None:
    queue.sql(
        "INSERT INTO jobs_queue (task, args, error_text, unique_key, status) VALUES (?, ?, ?, ?, 4)",
        f"tasks.{HOSTILE}", json.dumps([HOSTILE], ensure_ascii=False), f"Error: {HOSTILE}", HOSTILE,
    )  # fmt: skip
    for args in (["list"], ["show", 1]):
        assert "\\x1b[2J" in text_of(queue, *args)
    task = json_of(queue, "show", 1)
    assert (task["task"], task["error_text"]) == (f"tasks.{HOSTILE}", f"Error: {HOSTILE}")


def test_list_distinguishes_claimed_and_running_tasks(queue: Queue) -> None:
    ahead = queue.ago(-3 * 3600 - 60)
    queue.sql(
        "INSERT INTO jobs_queue (task, status, started_at, due_at) VALUES"
        f" ('tasks.a', 1, NULL, {ahead}), ('tasks.b', 1, {queue.now}, {ahead}), ('tasks.c', 3, NULL, {ahead}),"
        f" ('tasks.d', 5, NULL, {queue.ago(5)}),"
        " ('tasks.e', 5, NULL, '2037-12-31 00:00:00.000000'), ('tasks.f', 0, NULL, NULL)"
    )
    listed = text_of(queue, "list").splitlines()
    lines = {name: next(line for line in listed if f"tasks.{name}" in line) for name in "abcdef"}
    assert [lines[name].split()[1] for name in "abcdef"] == ["claimed", "running", "error", "waiting", "waiting", "new"]
    assert ["in 3 h" in lines[name] for name in "abcdef"] == [False, False, True, False, False, False]
    assert "now" in lines["d"].split()
    assert [task["id"] for task in json_of(queue, "list", "running")] == [2, 1]


# ---- act


def test_schedule_now_adds_the_task_and_delete_removes_a_cancelled_one(queue: Queue) -> None:
    text_of(queue, "schedule", "nightly", "tasks.note", '["late"]', "--every", "1d", "--group", "3")
    for _ in range(2):  # its task has not run yet
        assert text_of(queue, "schedule", "nightly", "--now") == "1\n"
    assert queue.rows("id, task, args, group_id, status") == [(1, "tasks.note", '["late"]', 3, 0)]
    assert text_of(queue, "cancel", "1") == "1 task cancelled\n"
    assert text_of(queue, "delete", "1") == "1 task deleted\n"
    assert queue.rows() == []
    assert_one_line(queue.here("schedule", "weekly", "--now"), 2, "there is no schedule 'weekly'")
