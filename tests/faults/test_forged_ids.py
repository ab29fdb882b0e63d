"""Rows whose ids some program forged: at the end of the column, where no further id is left, and below 0."""

from __future__ import annotations

import json
import re

from taskserver.model.task import MAX_ID
from tests.support.printed import text_of
from tests.support.processes import assert_one_line
from tests.support.queues import Queue
from tests.support.turns import A_SERVER, ONE_STORE

FORGED = "INSERT INTO jobs_queue (id, task, status, error_text) VALUES (?, 'tasks.note', 4, 'E: x')"
USUAL = 2**62


def last_id(queue: Queue) -> int:
    """The greatest id that the database takes."""
    return 2**64 - 2 if queue.kind == "mysql" else 2**63 - 1


def forge(queue: Queue, row_id: int) -> None:
    """Insert a row with this id, behind which the database gives the next one."""
    queue.sql(FORGED, row_id)
    if queue.is_postgresql:  # there a chosen id moves no counter
        queue.sql("SELECT setval('jobs_queue_id_seq', ?)", row_id)


def found_by_doctor(queue: Queue) -> dict[str, str]:
    checks = json.loads(queue.client("doctor", "--json").stdout)["checks"]
    (found,) = [check for check in checks if check["check"] == "ids"]
    assert isinstance(found, dict)
    return found


def test_a_table_without_ids_is_told_with_the_statements_that_mend_it(queue: Queue) -> None:
    assert found_by_doctor(queue)["level"] == "ok"
    forge(queue, last_id(queue))
    queue.sql(f"DELETE FROM jobs_queue WHERE id > {USUAL}")
    added = queue.client("add", "tasks.note")
    assert_one_line(added, 1, "AUTO_INCREMENT" if queue.kind == "mysql" else "client.py doctor")
    found = found_by_doctor(queue)
    assert (found["level"], "no id is left in jobs_queue" in found["found"]) == ("broken", True)
    statements = re.findall("(?:DELETE FROM|ALTER TABLE|UPDATE|SELECT) [^;]*(?=;)", found["mend"])
    assert len(statements) == 2
    forge(queue, last_id(queue) - 2)  # as after a restart of an old server, which reckons the next id anew
    for statement in statements:
        queue.sql(statement)
    assert text_of(queue, "add", "tasks.note") == "1\n"
    assert found_by_doctor(queue)["level"] == "ok"


@ONE_STORE
def test_ids_far_from_all_others_are_a_warning_before_they_end(queue: Queue) -> None:
    forge(queue, USUAL + 7)
    queue.sql("INSERT INTO jobs_queue_done (done_id, id, task) VALUES (?, 1, 'tasks.note')", USUAL + 8)
    if queue.is_postgresql:
        queue.sql("SELECT setval('jobs_queue_done_done_id_seq', ?)", USUAL + 8)
    found = found_by_doctor(queue)
    assert found["level"] == "warning"
    for table in ("jobs_queue", "jobs_queue_done"):
        assert f"{table}, where 1 row has an id beyond {USUAL}" in found["found"]
    assert f"DELETE FROM jobs_queue_done WHERE done_id > {USUAL};" in found["mend"]


@A_SERVER
def test_an_operator_reaches_a_row_whatever_its_id(queue: Queue) -> None:
    forged = last_id(queue)
    queue.sql(FORGED, forged)
    assert f"task {forged}: fatal" in text_of(queue, "show", forged)
    assert text_of(queue, "retry", forged) == "1 task retried\n"
    assert text_of(queue, "cancel", forged).startswith("1 task")
    state = queue.server.get(forged)
    assert state is not None
    assert state.error == "cancelled"
    assert "is done" in text_of(queue, "run", forged)
    assert queue.notes() == ["noted"]


@ONE_STORE
def test_an_id_that_no_row_can_have_is_not_there(queue: Queue) -> None:
    assert queue.server.get(MAX_ID) is None
    for command in ("show", "retry"):
        ended = queue.client(command, MAX_ID)
        assert f"task {MAX_ID}" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert ended.returncode == (2 if command == "show" else 0)


def test_a_verb_to_all_tasks_reaches_those_below_0(sqlite_queue: Queue) -> None:
    for forged in (-(2**63), -5, 3):
        sqlite_queue.sql(FORGED, forged)
    assert "3 tasks would be" in text_of(sqlite_queue, "retry", "--all", "--dry-run")
    assert text_of(sqlite_queue, "retry", "--all") == "3 tasks retried\n"
