"""client.py check: its line and code for a plugin, its mails for a crontab line, and what is accepted.

Limits, the line and its words are tested one by one in tests/unit/test_check.py.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from taskserver.health.accepted import MAX_REASON
from tests.contract.accounts import account
from tests.support.documents import REFERENCE, table
from tests.support.queues import LONG_AGO, Queue
from tests.support.servers import MySQLServer

OK, WARNING, CRITICAL, UNKNOWN = range(4)
LINE = re.compile(
    r"TASKSERVER (OK|WARNING|CRITICAL): [^|]+ \| ready=\d+;\d*;\d*;0 age=\d+s;\d+;\d+;0 fatal=\d+;\d+;\d+;0"
    r" lapsed=\d+;0;;0 silence=(U|\d+s);\d*;\d*;0"
)
EXPIRED = f"INSERT INTO jobs_queue (task, status, due_at, claim) VALUES ('tasks.note', 1, '{LONG_AGO}', 5)"


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


def test_a_queue_without_workers_is_a_warning_and_with_tasks_critical(queue: Queue) -> None:
    assert check(queue)[0] == WARNING
    queue.add("tasks.note")
    code, line = check(queue)
    assert (code, LINE.fullmatch(line) is not None) == (CRITICAL, True)
    assert line.startswith("TASKSERVER CRITICAL: no worker ran yet | ready=1;")
    queue.run_quietly()
    code, line = check(queue)
    assert (code, line.split(",")[0], LINE.fullmatch(line) is not None) == (OK, "TASKSERVER OK: 0 ready", True)


def test_each_limit_is_compared_with_the_rows(served: Queue) -> None:
    become_fatal(served, 3)
    served.add_many([(3, 0), (3, 0), (5, 0)])
    served.sql(f"UPDATE jobs_queue SET created_at = '{LONG_AGO}' WHERE status = 0")
    served.sql(f"UPDATE jobs_queue SET updated_at = {served.ago(400)} WHERE status = 0 AND group_id = 3")
    served.sql(f"UPDATE jobs_queue SET updated_at = {served.ago(100)} WHERE status = 0 AND group_id = 5")
    served.sql(f"UPDATE jobs_queue_workers SET started_at = {served.ago(1000)}")
    well = ["--max-ready=3", "--max-age=900", "--max-fatal=3", "--max-silence=5000"]
    assert check(served, *well)[0] == OK
    code, line = check(served, *well, "--max-ready=2", "--max-age=5:350", "--max-fatal=2")
    assert (code, LINE.fullmatch(line) is not None) == (CRITICAL, True)
    assert all(words in line for words in ("3 ready", "group 3 waits 4", "3 fatal"))
    assert "no run for 1" in check(served, *well, "--max-silence=5m")[1]
    code, line = check(served, *well, "--group=5", "--max-ready=0:9", "--max-age=90")
    assert code == WARNING
    words = r"TASKSERVER WARNING: group 5 waits 1\d\d s, 1 ready \| ready=1;0;9;0 age=1\d\ds;90;270;0 fatal=0;"
    assert re.match(words, line)
    assert served.here("pause", "3,5").returncode == 0
    assert check(served, "--max-ready=0", "--max-age=90s", "--max-fatal=3", "--max-silence=1h")[0] == OK


def test_json_has_the_findings_with_their_fixes_and_the_values(queue: Queue) -> None:
    queue.run_quietly(groups=[3])
    queue.sql(EXPIRED)
    queue.add("tasks.note", None, 7)
    queue.sql("INSERT INTO jobs_queue (task, status) VALUES ('tasks.note', 5), ('tasks.note', 77)")
    become_fatal(queue)
    found = report(queue)
    line = check(queue)[1]
    assert " lapsed=1;0;;0 " in line
    assert (found["level"], found["line"], found["fatal"]) == ("warning", line.partition(" | ")[0], 1)
    assert {problem["name"] for problem in found["findings"]} == {"groups", "leases", "stray", "fatal"}
    (problem,) = [problem for problem in found["findings"] if problem["name"] == "fatal"]
    assert "client.py retry" in problem["fix"]
    assert list(found) == re.findall("`([a-z_]+)`", table(REFERENCE, "JSON of", "has")["check"][0])


# ---- what keeps it from looking


def test_a_database_that_is_away_is_critical_in_one_line_without_its_password(queue: Queue) -> None:
    code, line = check(queue, TASKSERVER_DSN="mysql://user:secret@127.0.0.1:1/shop")
    assert code == CRITICAL
    assert line.startswith("TASKSERVER CRITICAL: 127.0.0.1:1/shop: Can't connect")
    assert "secret" not in line


def test_missing_or_old_tables_are_critical_with_the_fix(queue: Queue) -> None:
    queue.sql("UPDATE jobs_queue_schema SET version = 6")
    code, line = check(queue)
    assert (code, "run client.py init" in line) == (CRITICAL, True)
    queue.sql("DROP TABLE jobs_queue_schema")
    code, line = check(queue, "--accept=fatal", "--reason=x")
    assert (code, "run client.py init" in line) == (CRITICAL, True)


def test_a_wrong_setting_or_reason_is_code_3_in_one_line(queue: Queue) -> None:
    code, line = check(queue, TASKSERVER_MODE="x")
    assert (code, line.partition("; ")[0]) == (UNKNOWN, "TASKSERVER UNKNOWN: TASKSERVER_MODE is wrong: 'x'")
    assert check(queue, "--accept", "fatal")[0] == UNKNOWN
    for reason in ("  \n", "x" * (MAX_REASON + 1)):
        code, line = check(queue, "--accept", "fatal", "--reason", reason)
        assert (code, "the reason is a text" in line) == (UNKNOWN, True)


def test_a_read_only_account_can_check_and_learns_what_mail_needs(
    mysql_queue: Queue, mysql_server: MySQLServer
) -> None:
    mysql_queue.run_quietly()
    name = mysql_queue.dsn.rpartition("/")[2]
    with account(mysql_server, name, f"SELECT ON `{name}`.*") as dsn:
        as_monitor = {"TASKSERVER_DSN": dsn}
        assert check(mysql_queue, **as_monitor)[0] == OK
        assert mailed(mysql_queue, **as_monitor) == (OK, "")  # there is nothing to note
        become_fatal(mysql_queue)
        code, said = mailed(mysql_queue, **as_monitor)
        assert (code, said.startswith("TASKSERVER WARNING: 1 fatal"), "INSERT" in said) == (OK, True, True)
        assert mailed(mysql_queue, **as_monitor)[1] == said  # each time, and says why


# ---- mails


def test_each_change_from_ok_to_critical_and_back_is_mailed_once(served: Queue) -> None:
    assert mailed(served) == (OK, "")
    become_fatal(served)
    code, said = mailed(served)
    first, _, what, error, fix = said.splitlines()
    assert (code, first) == (OK, "TASKSERVER WARNING: 1 fatal")  # cron's subject would say that it failed
    assert re.fullmatch(r"fatal, seen first at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+: 1 task is fatal.*", what)
    assert error == "  1 failed with: (no words)"
    assert fix.startswith("What to do: client.py errors")
    assert mailed(served) == (OK, "")
    become_fatal(served, 10)
    served.sql(EXPIRED)
    said = mailed(served)[1]
    assert said.startswith("TASKSERVER CRITICAL: 11 fatal, 1 expired\n")
    assert what.partition(": ")[0] in said  # since the same instant
    served.sql("DELETE FROM jobs_queue")
    assert re.search(r"^over: fatal, after \d+ s$", mailed(served)[1], re.MULTILINE)
    assert mailed(served) == (OK, "")  # the other may come back


def test_text_of_rows_is_escaped_in_a_mail(served: Queue) -> None:
    become_fatal(served)
    served.sql("UPDATE jobs_queue SET error_text = ?", "E: \x1b[2J\rx")
    said = mailed(served)[1]
    assert "  1 failed with: E: \\x1b[2J\\rx\n" in said
    assert all(line.isprintable() for line in said.split("\n"))


def test_an_outage_and_its_end_are_mailed_once_an_hour_by_each_line(served: Queue) -> None:
    away = {"TASKSERVER_TABLE": "not_there"}
    for options in ([], ["--group=5"]):
        code, said = mailed(served, *options, **away)
        assert code == CRITICAL
        assert re.fullmatch(r"TASKSERVER CRITICAL: .*run client\.py init \(said once an hour\)\n", said)
        assert mailed(served, *options, **away) == (CRITICAL, "")
    page = ("page", "--no-doctor", "--output", served.folder / "queue.html")
    assert "said once an hour" in served.here(*page, env=away).stderr
    served.deployment.age_outages(3700)
    assert mailed(served, **away)[1] == said
    assert served.here("init", env=away).returncode == 0
    code, said = mailed(served, **away)
    assert said.splitlines()[0] == "TASKSERVER OK: the database can be used again"
    assert said.splitlines()[2] == "TASKSERVER WARNING: no worker ran yet"
    assert mailed(served, **away) == (OK, "")


# ---- what is accepted


def test_an_accepted_finding_is_shown_separately_until_withdrawn(served: Queue) -> None:
    become_fatal(served)
    assert mailed(served)[1]
    ended = served.here("check", "--accept", "fatal", "--reason", "  old letters\n🎉 \udcff")
    assert (ended.returncode, ended.stderr) == (OK, "")
    assert ended.stdout == "fatal is accepted: check, status and doctor no longer count it, and show it separately\n"
    code, line = check(served)
    assert (code, line.startswith("TASKSERVER OK: "), " (accepted: fatal) | " in line) == (OK, True, True)
    assert report(served)["accepted"][0]["reason"].startswith("old letters\\n🎉")
    assert "\naccepted: 1 task is fatal" in served.here("status").stdout
    last = [line for line in served.here("doctor").stdout.splitlines() if line.startswith("accepted")][-1]
    assert re.search(r"1 task is fatal: no worker retries it\. Accepted since 20\d\d-.*: old letters", last)
    assert mailed(served)[1].startswith("TASKSERVER OK: nothing else is wrong, but accepted: fatal")
    assert served.here("check", "--withdraw", "fatal").stdout == "fatal counts again\n"
    assert check(served)[0] == WARNING


def test_findings_that_stop_workers_cannot_be_accepted(queue: Queue) -> None:
    for name in ("tables", "database", "nothing"):
        code, line = check(queue, "--accept", name, "--reason", "it is so here")
        assert code == UNKNOWN
        assert line.startswith(f"TASKSERVER UNKNOWN: '{name}' cannot be accepted; choose from between, ")
    assert queue.sql("SELECT * FROM jobs_queue_notes") == []
