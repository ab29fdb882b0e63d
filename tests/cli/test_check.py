"""client.py check as a process: its line and code for a plugin, its mails for a crontab line, and what is accepted.

Limits, the line and its words are tested one by one in tests/unit/test_judge.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskserver.health.accepted import MAX_REASON
from taskserver.stores.queue.counts import MAX_COUNTED, MAX_OF_STATUS
from tests.contract.accounts import account
from tests.support.deployment import ROOT
from tests.support.documents import REFERENCE, table
from tests.support.processes import assert_silent, end_of
from tests.support.queues import LONG_AGO, Queue
from tests.support.reader import command_of
from tests.support.servers import MySQLServer

OK, WARNING, CRITICAL, UNKNOWN = range(4)
LINE = re.compile(
    r"TASKSERVER (OK|WARNING|CRITICAL): [^|]+ \| ready=\d+;\d*;\d*;0 age=\d+s;\d+;\d+;0 fatal=\d+;\d+;\d+;0"
    r" lapsed=\d+;0;;0 silence=(U|\d+s);\d*;\d*;0"
)
AWAY = "mysql://user:secret@127.0.0.1:1/shop"


def check(queue: Queue, *options: object, **env: str) -> tuple[int, str]:
    """Its code, and its only line."""
    ended = queue.here("check", *options, env=env)
    assert ended.stderr == ""
    (line,) = ended.stdout.splitlines()
    return ended.returncode, line


def mailed(queue: Queue, *options: object, **env: str) -> tuple[int, str]:
    """Its code, and what cron would mail."""
    ended = queue.here("check", "--mail", *options, env=env)
    assert ended.stderr == ""
    return ended.returncode, ended.stdout


def report(queue: Queue, *options: object) -> Any:
    return json.loads(queue.here("check", "--json", *options).stdout)


@pytest.fixture
def served(queue: Queue) -> Queue:
    """A queue whose worker ran a moment ago."""
    queue.run_quietly()
    (queue.folder / "var").mkdir(mode=0o700)  # as worker.py does
    return queue


def become_fatal(queue: Queue, count: int = 1) -> None:
    queue.add_many([(3, 4)] * count)


# ---- the line


def test_a_queue_that_is_well_is_one_line_with_code_0(served: Queue) -> None:
    code, line = check(served)
    assert (code, line.split(",")[0]) == (OK, "TASKSERVER OK: 0 ready")
    assert LINE.fullmatch(line)


def test_a_queue_that_no_worker_serves_is_a_warning_and_critical_once_a_task_waits(queue: Queue) -> None:
    assert check(queue)[0] == WARNING
    queue.add("tasks.note")
    code, line = check(queue)
    assert (code, LINE.fullmatch(line) is not None) == (CRITICAL, True)
    assert line.startswith("TASKSERVER CRITICAL: no worker ran yet | ready=1;")
    assert_silent(queue.worker())
    assert check(queue)[0] == OK


def test_each_limit_is_held_both_ways_on_rows_of_the_database(served: Queue) -> None:
    become_fatal(served, 3)
    served.add_many([(3, 0), (3, 0), (5, 0)])
    served.sql(f"UPDATE jobs_queue SET created_at = '{LONG_AGO}' WHERE status = 0")
    served.sql(f"UPDATE jobs_queue SET updated_at = {served.ago(400)} WHERE status = 0 AND group_id = 3")
    served.sql(f"UPDATE jobs_queue SET updated_at = {served.ago(100)} WHERE status = 0 AND group_id = 5")
    served.sql(f"UPDATE jobs_queue_workers SET started_at = {served.ago(1000)}")
    well = ["--max-ready=3", "--max-age=900", "--max-fatal=3", "--max-silence=5000"]
    assert check(served, *well)[0] == OK
    for option, code, words in [
        ("--max-ready=2", WARNING, "3 ready"),
        ("--max-ready=0:2", CRITICAL, "3 ready"),
        ("--max-age=350", WARNING, "group 3 waits 4"),
        ("--max-age=5:350", CRITICAL, "group 3 waits 4"),
        ("--max-fatal=2", WARNING, "3 fatal"),
        ("--max-fatal=0:2", CRITICAL, "3 fatal"),
        ("--max-silence=900", WARNING, "no run for 1"),
        ("--max-silence=5m", CRITICAL, "no run for 1"),
    ]:
        found, line = check(served, *well, option)
        assert (found, words in line) == (code, True), line
        assert LINE.fullmatch(line)
    code, line = check(served, *well, "--group=5", "--max-ready=0:9", "--max-age=90")
    assert code == WARNING
    assert re.match(
        r"TASKSERVER WARNING: group 5 waits 1\d\d s, 1 ready \| ready=1;0;9;0 age=1\d\ds;90;270;0 fatal=0;", line
    )


def test_lapsed_leases_and_groups_that_no_worker_takes_are_warnings(queue: Queue) -> None:
    assert_silent(queue.worker(0, 3))
    queue.sql(f"INSERT INTO jobs_queue (task, status, due_at, claim) VALUES ('tasks.note', 1, '{LONG_AGO}', 5)")
    queue.add("tasks.note", None, 7)
    queue.sql("INSERT INTO jobs_queue (task, status) VALUES ('tasks.note', 5), ('tasks.note', 77)")
    code, line = check(queue)
    assert (code, " lapsed=1;0;;0 " in line) == (WARNING, True)
    assert {problem["name"] for problem in report(queue)["findings"]} == {"groups", "leases", "stray"}


def test_a_paused_group_is_neither_old_nor_ready(served: Queue) -> None:
    served.add("tasks.note", None, 3)
    served.sql(f"UPDATE jobs_queue SET updated_at = {served.ago(2 * 3600)}")
    assert check(served, "--max-age=3h")[0] == OK
    assert check(served, "--max-age=3h", "--max-ready=0")[0] == CRITICAL
    assert check(served)[0] == WARNING
    assert served.here("pause", "3").returncode == 0
    assert check(served, "--max-ready=0")[0] == OK


@pytest.mark.parametrize("groups", [[], ["--group=5"]])
def test_a_limit_above_what_an_overview_counts_is_held_all_the_same(sqlite_queue: Queue, groups: list[str]) -> None:
    sqlite_queue.sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        " INSERT INTO jobs_queue (task, group_id, status) SELECT 'tasks.note', 5, 4 FROM n",
        MAX_COUNTED + 500,
    )
    assert_silent(sqlite_queue.worker())
    accepted = f"--max-fatal={MAX_COUNTED + 400}"
    assert check(sqlite_queue, accepted, *groups)[0] == WARNING
    code, line = check(sqlite_queue, f"--max-fatal={MAX_COUNTED + 500}", *groups)
    assert (code, f" fatal={MAX_COUNTED + 500};" in line) == (OK, True)


def test_a_group_behind_those_at_which_an_overview_stops_is_judged(sqlite_queue: Queue) -> None:
    last = MAX_OF_STATUS + 10
    sqlite_queue.sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        " INSERT INTO jobs_queue (task, group_id) SELECT 'tasks.note', i FROM n",
        last,
    )
    assert check(sqlite_queue, f"--group={last}", "--max-ready=0")[1].count(" ready=1;0;0;0 ") == 1


def test_json_has_the_problems_with_what_to_do_and_the_values(served: Queue) -> None:
    become_fatal(served)
    found = report(served)
    line = check(served)[1].partition(" | ")[0]
    assert (found["level"], found["line"], found["fatal"], found["ready"]) == ("warning", line, 1, 0)
    (problem,) = found["findings"]
    assert [problem[key] for key in ("name", "level")] == ["fatal", "warning"]
    assert "client.py retry" in problem["fix"]
    assert found["oldest_ready_seconds"] is None
    assert list(found) == re.findall("`([a-z_]+)`", table(REFERENCE, "JSON of", "has")["check"][0])


# ---- what keeps it from looking


def test_a_database_that_is_away_is_critical_in_one_line_without_its_password(sqlite_queue: Queue) -> None:
    for option in ([], ["--json"]):
        ended = sqlite_queue.here("check", *option, env={"TASKSERVER_DSN": AWAY})
        assert (ended.returncode, ended.stderr) == (CRITICAL, "")
        assert "secret" not in ended.stdout
        line = json.loads(ended.stdout)["line"] if option else ended.stdout.strip()
        assert line.startswith("TASKSERVER CRITICAL: 127.0.0.1:1/shop: Can't connect")


def test_tables_that_are_missing_or_of_another_version_are_critical_with_the_way_out(queue: Queue) -> None:
    queue.sql("UPDATE jobs_queue_schema SET version = 6")
    code, line = check(queue)
    assert (code, "run client.py init" in line) == (CRITICAL, True)
    queue.sql("DROP TABLE jobs_queue_schema")
    for option in ([], ["--accept=fatal", "--reason=x"]):
        code, line = check(queue, *option)
        assert (code, "run client.py init" in line) == (CRITICAL, True)
        assert line.startswith("TASKSERVER CRITICAL: ")


def test_a_wrong_setting_or_reason_is_code_3_in_one_line(sqlite_queue: Queue) -> None:
    code, line = check(sqlite_queue, TASKSERVER_MODE="x")
    assert (code, line.partition("; ")[0]) == (UNKNOWN, "TASKSERVER UNKNOWN: TASKSERVER_MODE is wrong: 'x'")
    assert check(sqlite_queue, "--accept", "fatal")[0] == UNKNOWN
    assert check(sqlite_queue, "--reason", "so")[0] == UNKNOWN
    for reason in ("", "  \n", "x" * (MAX_REASON + 1)):
        code, line = check(sqlite_queue, "--accept", "fatal", "--reason", reason)
        assert (code, "the reason is a text" in line) == (UNKNOWN, True)


def test_an_account_that_may_only_select_checks_and_is_told_what_a_mail_takes(
    mysql_queue: Queue, mysql_server: MySQLServer
) -> None:
    assert_silent(mysql_queue.worker())
    name = mysql_queue.dsn.rpartition("/")[2]
    with account(mysql_server, name, f"SELECT ON `{name}`.*") as dsn:
        as_monitor = {"TASKSERVER_DSN": dsn}
        assert check(mysql_queue, **as_monitor)[0] == OK
        assert mailed(mysql_queue, **as_monitor) == (OK, "")  # there is nothing to note
        become_fatal(mysql_queue)
        assert check(mysql_queue, **as_monitor)[0] == WARNING
        code, said = mailed(mysql_queue, **as_monitor)
        assert (code, said.startswith("TASKSERVER WARNING: 1 fatal"), "INSERT" in said) == (OK, True, True)
        assert mailed(mysql_queue, **as_monitor)[1] == said  # each time, and says why


def test_a_letter_that_nobody_could_read_is_written_again(served: Queue) -> None:
    served.sql("INSERT INTO jobs_queue (task, status) VALUES ('tasks.note', 4)")
    full = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} {served.deployment.folder}/client.py check --mail > /dev/full"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert full.returncode == UNKNOWN
    assert "1 fatal" in mailed(served)[1]
    assert mailed(served)[1] == ""


def test_without_the_right_to_read_notes_it_checks_and_says_so_in_a_line_more(
    mysql_queue: Queue, mysql_server: MySQLServer
) -> None:
    assert_silent(mysql_queue.worker())
    name = mysql_queue.dsn.rpartition("/")[2]
    with account(mysql_server, name, f"SELECT ON `{name}`.jobs_queue") as dsn:
        user = dsn.partition("//")[2].partition(":")[0]
        for (table,) in mysql_queue.sql("SHOW TABLES"):
            if table not in ("jobs_queue", "jobs_queue_notes"):
                mysql_server.execute(f"GRANT SELECT ON `{name}`.{table} TO '{user}'@'%'")
        ended = mysql_queue.here("check", env={"TASKSERVER_DSN": dsn})
        first, second = ended.stdout.splitlines()
        assert (ended.returncode, ended.stderr) == (OK, "")
        assert LINE.fullmatch(first)
        assert second.startswith("what was accepted cannot be read: ")
        assert mysql_queue.here("status", "--json", env={"TASKSERVER_DSN": dsn}).returncode == 0


# ---- mails


def notes(queue: Queue) -> list[tuple[Any, ...]]:
    return queue.sql("SELECT name, value FROM jobs_queue_notes ORDER BY name")


def let_pass(queue: Queue, minutes: int) -> None:
    """Makes what an alarm noted so much older."""
    for name, value in notes(queue):
        alarm = json.loads(value)
        for reported in alarm.values():
            reported[:2] = [str(datetime.fromisoformat(one) - timedelta(minutes=minutes)) for one in reported[:2]]
        queue.sql("UPDATE jobs_queue_notes SET value = ? WHERE name = ?", json.dumps(alarm), name)


def test_from_well_to_critical_and_back_each_change_is_mailed_once(served: Queue) -> None:
    assert (mailed(served), notes(served)) == ((OK, ""), [])
    become_fatal(served)
    code, said = mailed(served)
    first, _, what, error, fix = said.splitlines()
    assert (code, first) == (OK, "TASKSERVER WARNING: 1 fatal")  # cron's subject would say that it failed
    assert re.fullmatch(r"fatal, seen first at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+: 1 task is fatal.*", what)
    assert error == "  1 failed with: (no words)"
    assert fix.startswith("What to do: client.py errors")
    assert mailed(served) == (OK, "")
    become_fatal(served)  # one more of the same is no change
    assert mailed(served) == (OK, "")
    become_fatal(served, 9)
    code, said = mailed(served)
    assert (code, said.splitlines()[0]) == (OK, "TASKSERVER CRITICAL: 11 fatal")
    assert what.partition(": ")[0] in said  # since the same instant
    served.sql(f"INSERT INTO jobs_queue (task, status, due_at, claim) VALUES ('tasks.note', 1, '{LONG_AGO}', 5)")
    assert mailed(served)[1].startswith("TASKSERVER CRITICAL: 11 fatal, 1 expired\n")
    served.sql("DELETE FROM jobs_queue WHERE status = 4")
    code, said = mailed(served)
    assert (code, said.splitlines()[0]) == (OK, "TASKSERVER WARNING: 1 expired")
    assert re.search(r"^over: fatal, after \d+ s$", said, re.MULTILINE)
    become_fatal(served)  # another one
    assert mailed(served)[1].startswith("TASKSERVER WARNING: 1 fatal, 1 expired\n")
    served.sql("DELETE FROM jobs_queue")
    assert re.search(r"^over: fatal, after \d+ s$", mailed(served)[1], re.MULTILINE)
    assert mailed(served) == (OK, "")  # the other may come back
    let_pass(served, 61)
    assert re.fullmatch(r"TASKSERVER OK: all is well again\n\nover: leases, after \d+ \w+\n", mailed(served)[1])
    assert (mailed(served), notes(served)) == ((OK, ""), [])


def test_a_module_that_is_broken_is_critical_for_the_groups_whose_tasks_failed_until_others_are_done(
    queue: Queue,
) -> None:
    queue.deployment.write_tasks("def note(:\n")
    queue.add("tasks.note", None, 3)
    assert queue.worker().returncode == 0
    for groups, code in (([], CRITICAL), (["--group=3"], CRITICAL), (["--group=5"], OK)):
        assert check(queue, *groups)[0] == code
    queue.sql(f"UPDATE jobs_queue SET updated_at = {queue.ago(60)}")
    queue.deployment.write_tasks("def note() -> None: ...\n")
    queue.add("tasks.note", None, 5)
    assert_silent(queue.worker())
    code, line = check(queue)
    assert (code, "could not be imported" in report(queue)["findings"][0]["words"]) == (WARNING, True), line


def test_other_limits_are_another_alarm_and_who_deletes_its_note_is_told_again(served: Queue) -> None:
    become_fatal(served)
    assert mailed(served)[1]
    assert mailed(served, "--max-fatal", 5) == (OK, "")
    assert mailed(served, "--group", 3)[1]
    assert [name for name, _ in notes(served)] == ["check", "check groups=3"]
    served.sql("DELETE FROM jobs_queue_notes WHERE name = 'check'")
    assert mailed(served)[1]
    assert mailed(served) == (OK, "")


@pytest.mark.parametrize("is_known", [False, True])
def test_of_checks_at_once_one_mails(served: Queue, is_known: bool) -> None:
    """Several hosts, or a slow one that cron starts again: all have read the same note before one writes it."""
    if is_known:
        served.sql(f"INSERT INTO jobs_queue (task, status, due_at, claim) VALUES ('tasks.note', 1, '{LONG_AGO}', 5)")
        assert mailed(served)[1]
    become_fatal(served)
    served.deployment.write_tasks(WAITING, "sitecustomize.py")
    several = [served.deployment.popen("client.py", "check", "--mail", env=waiting(served)) for _ in range(3)]
    while len(list(served.folder.glob("read-*"))) < 3:
        assert all(one.poll() is None for one in several)
        time.sleep(0.01)
    served.go()
    ends = [end_of(one) for one in several]
    assert [(code, errors) for code, _, errors in ends] == [(OK, "")] * 3
    assert len([said for _, said, _ in ends if said]) == 1


WAITING = """
import os, sys, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from taskserver.stores.queue.notes import Notes

HERE = Path(__file__).parent
find = Notes.find

def find_and_wait(self, name):
    note = find(self, name)
    (HERE / f"read-{os.getpid()}").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return note

Notes.find = find_and_wait
"""


def waiting(queue: Queue) -> dict[str, str]:
    return {"PYTHONPATH": str(queue.folder)}


def test_a_database_that_is_away_is_mailed_once_an_hour_and_so_is_its_end(served: Queue) -> None:
    away = {"TASKSERVER_TABLE": "not_there"}
    code, said = mailed(served, **away)
    assert code == CRITICAL
    assert re.fullmatch(r"TASKSERVER CRITICAL: .*run client\.py init \(said once an hour\)\n", said)
    assert mailed(served, **away) == (CRITICAL, "")
    served.deployment.age_outages(3700)
    assert mailed(served, **away)[1] == said
    assert served.here("init", env=away).returncode == 0
    code, said = mailed(served, **away)
    assert said.splitlines()[0] == "TASKSERVER OK: the database can be used again"
    assert said.splitlines()[2] == "TASKSERVER WARNING: no worker ran yet"
    assert mailed(served, **away) == (OK, "")


def test_each_line_of_a_crontab_tells_of_a_database_that_is_away_for_itself(served: Queue) -> None:
    away = {"TASKSERVER_TABLE": "not_there"}
    page = ("page", "--output", served.folder / "queue.html")
    assert "said once an hour" in served.here(*page, env=away).stderr
    assert served.worker(**away).stderr
    served.deployment.age_outages(3700)
    assert served.worker(**away).stderr
    assert "said once an hour" in served.here(*page, env=away).stderr
    assert served.here(*page, env=away).stderr == ""
    for options in ([], ["--group=5"]):
        assert mailed(served, *options, **away)[1].startswith("TASKSERVER CRITICAL: ")
        assert mailed(served, *options, **away) == (CRITICAL, "")
    with open("/dev/full", "w") as full:
        served.sql("DROP TABLE jobs_queue_schema")
        line = [str(served.deployment.python), str(served.folder / "client.py"), "check", "--mail"]
        assert subprocess.run(line, stdout=full, stderr=subprocess.PIPE).returncode != OK
    assert mailed(served)[1]  # nobody had heard of it


def test_the_line_of_the_crontab_example_is_that_of_the_help_and_says_nothing_while_all_is_well(served: Queue) -> None:
    example = (ROOT / "crontab.example").read_text(encoding="utf-8")
    (line,) = re.findall(r"^# (.*/client\.py check .*)$", example, re.MULTILINE)
    help_text = served.client("check", "--help")
    assert (help_text.returncode, line in help_text.stdout) == (OK, True)
    assert_silent(served.client(*command_of(line).partition("client.py ")[2].split()))


# ---- what is accepted


def test_what_is_accepted_is_shown_apart_with_its_reason_until_it_is_withdrawn(served: Queue) -> None:
    become_fatal(served)
    assert mailed(served)[1]
    assert served.here("check", "--accept", "fatal", "--reason", "an earlier reason").returncode == OK
    ended = served.here("check", "--accept", "fatal", "--reason", "  old letters\n🎉 \udcff")
    assert (ended.returncode, ended.stderr) == (OK, "")
    assert ended.stdout == "fatal is accepted: check, status and doctor count it no more, and show it apart\n"
    code, line = check(served)
    assert (code, line.startswith("TASKSERVER OK: "), " (accepted: fatal) | " in line) == (OK, True, True)
    (accepted,) = report(served)["accepted"]
    assert [accepted[key] for key in ("name", "level")] == ["fatal", "warning"]
    assert accepted["reason"].startswith("old letters\\n🎉")
    assert re.fullmatch(r"20\d\d-.*Z", accepted["since"])
    status = json.loads(served.here("status", "--json").stdout)
    assert (status["findings"], [one["name"] for one in status["accepted"]]) == ([], ["fatal"])
    assert "\naccepted: 1 task is fatal" in served.here("status").stdout
    assert mailed(served)[1].startswith("TASKSERVER OK: nothing else is wrong, but accepted: fatal")
    assert served.here("check", "--withdraw", "fatal").stdout == "fatal counts again\n"
    assert served.here("check", "--withdraw", "fatal").stdout == "fatal was not accepted; nothing is\n"
    assert check(served)[0] == WARNING


def test_the_doctor_shows_what_is_accepted_at_its_end_and_does_not_count_it(served: Queue) -> None:
    become_fatal(served)
    (served.folder / ".env").chmod(0o644)
    assert served.here("doctor").returncode == 1
    others = ["durability"] if served.is_postgresql else []  # of a server for tests
    for name in ("fatal", "env_file", "disk", *others):
        assert served.here("check", "--accept", name, "--reason", f"of {name}").returncode == 0
    ended = served.here("doctor")
    *lines, verdict = ended.stdout.splitlines()
    assert ended.returncode == 0
    accepted = [line.split()[1] for line in lines[-2 - len(others) :] if line.startswith("accepted")]
    assert [name for name in accepted if name not in others] == ["env_file", "fatal"]
    assert re.search(r"1 task is fatal: no worker retries it\. Accepted since 20\d\d-.*: of fatal$", lines[-1])
    assert verdict == f"all is well, in {len(lines) - len(accepted)} checks, and {len(accepted)} accepted"
    found = json.loads(served.here("doctor", "--json").stdout)
    assert (found["level"], len(found["findings"])) == ("ok", len(lines) - len(accepted))
    assert [(one["name"], one["level"], one["reason"]) for one in found["accepted"]] == [
        (name, "warning", f"of {name}") for name in accepted
    ]


def test_what_was_never_accepted_can_be_withdrawn_without_harm(queue: Queue) -> None:
    assert queue.here("check", "--accept", "disk", "--reason", "it is small").returncode == 0
    for name in ("ümlaut", "\udcff", "", "x" * 300, "fatal' OR '1'='1"):
        ended = queue.here("check", "--withdraw", name)
        assert (ended.returncode, ended.stderr) == (OK, "")
        assert ended.stdout.endswith(" was not accepted; accepted: disk\n")


def test_what_workers_cannot_do_without_is_not_accepted(queue: Queue) -> None:
    following = "code" if queue.is_sqlite else "character_set"
    for name in ("rights", "tables", "settings", "database", "nothing"):
        code, line = check(queue, "--accept", name, "--reason", "it is so here")
        assert code == UNKNOWN
        assert line.startswith(f"TASKSERVER UNKNOWN: '{name}' cannot be accepted; choose from between, {following}, ")
    assert notes(queue) == []
