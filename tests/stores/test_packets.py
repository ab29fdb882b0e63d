"""Statements that are longer than the server takes (max_allowed_packet): it hangs up on them, so none is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.errors import TooLong
from taskserver.model.task import Status
from tests.stores.test_session_variables import options
from tests.support.servers import MySQLServer, plain_connection

SIZE = 64 * 1024
TASKS = """
import taskserver
def short(number): return "s"
def long(number): return "x" * 65_000  # with the next start it is too long
def hand_on(number): return ["x" * 900_000]
@taskserver.task(transactional=True)
def hand_on_in_transaction(number): return ["x" * 900_000]
def end(text): pass
"""


@pytest.fixture
def server(mysql_dsn: str, mysql_server: MySQLServer, tmp_path: Path) -> Iterator[TaskServer]:
    (tmp_path / "packets.py").write_text(TASKS)
    with (
        mysql_server.set_globally(max_allowed_packet=SIZE),
        TaskServer(mysql_dsn, modules="packets", folder=tmp_path, mode="mark", max_attempts=3) as server,
    ):
        server.create_tables()
        yield server


def stored(mysql_server: MySQLServer, dsn: str, columns: str) -> tuple[tuple[Any, ...], ...]:
    return mysql_server.execute(f"SELECT {columns} FROM jobs_queue ORDER BY id", database=options(dsn)["database"])


@pytest.mark.parametrize("stage", ["hand_on", "hand_on_in_transaction"])
def test_a_next_stage_that_the_server_does_not_take_is_fatal_and_costs_no_other_task_its_result(
    server: TaskServer, mysql_server: MySQLServer, mysql_dsn: str, stage: str
) -> None:
    server.add_task("packets.short", [1])
    server.add_pipeline([f"packets.{stage}", "packets.end"], [2])
    server.add_task("packets.long", [3])
    server.add_task("packets.short", [4])
    thread = server.store.database.session().connection.thread_id()
    ran = server.run()
    assert server.store.database.session().connection.thread_id() == thread
    assert (ran.done, ran.failed, ran.fatal, ran.lost) == (3, 0, 1, 0)
    rows = stored(mysql_server, mysql_dsn, "status, attempts, LEFT(result, 3), error_text")
    assert [row[:2] for row in rows] == [(2, 1), (Status.FATAL, 1), (2, 1), (2, 1)]
    assert [row[2] for row in rows] == ['"s"', None, '"xx', '"s"']
    assert "longer than the server takes (max_allowed_packet)" in rows[1][3]


@pytest.mark.parametrize("length", [SIZE, 900_000])
def test_a_task_that_the_server_does_not_take_is_refused_before_it_is_sent(server: TaskServer, length: int) -> None:
    assert server.add_task("packets.short", [0]) == 1
    thread = server.store.database.session().connection.thread_id()
    with pytest.raises(TooLong, match="max_allowed_packet"):
        server.add_task("packets.short", ["x" * length])
    assert server.add_task("packets.short", ["x" * (SIZE - 200)])
    assert server.store.database.session().connection.thread_id() == thread


@pytest.mark.parametrize("key", [None, "k"])
def test_many_tasks_are_added_by_statements_as_short_as_the_server_takes_them(
    server: TaskServer, mysql_server: MySQLServer, mysql_dsn: str, key: str | None
) -> None:
    texts = [letter * 9_000 for letter in 'x"ä🦊' * 10]
    given = [
        {"task": "packets.short", "args": [text]} | ({"unique_key": f"{key}{number}"} if key else {})
        for number, text in enumerate(texts)
    ]
    ids = server.add_tasks(given)
    with plain_connection(**options(mysql_dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO jobs_queue (task) VALUES ('packets.mine')")
        with pytest.raises(TooLong, match="max_allowed_packet"):
            server.add_task("packets.short", ["x" * 900_000], connection=connection)
        del texts[3::4]  # as four bytes each become twelve characters of ASCII
        ids += server.add_tasks([{"task": "packets.short", "args": [text]} for text in texts], connection=connection)
        connection.commit()
    rows = stored(mysql_server, mysql_dsn, "id, task, args")
    assert [row[0] for row in rows if row[1] == "packets.short"] == sorted(ids)
    args = {row[0]: json.loads(row[2] or "null") for row in rows}
    assert [args[one] for one in ids] == [task["args"] for task in given] + [[text] for text in texts]
    assert len(rows) == len(ids) + 1
