"""What a page sends and asks in SQL, as docs/kinds/ has it: what a rerun does to rows of each state, and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from taskserver import Status, TaskServer
from tests.support.documents import blocks, sections
from tests.support.kinds_of_rows import STATES, assert_run_again, put_each_state
from tests.support.queues import Queue
from tests.support.reader import Reader
from tests.support.servers import MySQLServer
from tests.support.websites import Page

SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_BACKOFF": "fixed:500"}
BY_PDO = """
$pdo = new PDO("mysql:host=$at->host;port=$at->port;dbname=$at->database;charset=utf8mb4", $at->user, $at->password);
$pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$pdo->exec("SET time_zone = '+09:00'");
"""


@pytest.mark.parametrize(("stands", "is_newer"), [(7, True), (8, False), (None, True)])
def test_a_page_with_an_older_version_changes_nothing(
    mysql_queue: Queue, php: str, tmp_path: Path, mysql_server: MySQLServer, stands: int | None, is_newer: bool
) -> None:
    (code,) = (block.text for block in blocks("docs/kinds/unique.md") if block.kind == "php" and "$newer" in block.text)
    prepared = code.partition("->execute(")[0]
    page = Page(php, tmp_path, mysql_server, mysql_queue.dsn.rpartition("/")[2])
    put_each_state(mysql_queue, stands)
    before = mysql_queue.rows()
    values = "['tasks.note', json_encode([$key]), $key, 8]"
    page.run(f"{BY_PDO} foreach ($tasks as $key) {{ {prepared}->execute({values}); }}", list(STATES))
    if is_newer:
        assert_run_again(mysql_queue, 8)
    else:
        assert mysql_queue.rows() == before


# ---- asking for a result, with the rights of docs/security.md


@pytest.fixture
def reader(tmp_path: Path, mysql_server: MySQLServer, php: str) -> Iterator[Reader]:
    with closing(Reader(tmp_path, mysql_server, php)) as reader:
        reader.install()
        for block in dict(sections("docs/security.md"))["Least rights"]:
            reader.follow(block)
        yield reader


ASK_FOR_ALL = r"""
for ($id = 1; $id < 5; $id++) {
    $places = "(SELECT id, created_at FROM jobs_queue UNION SELECT id, created_at FROM jobs_queue_done) AS places";
    $added = $pdo->query("SELECT UNIX_TIMESTAMP(created_at) FROM $places WHERE id = $id")->fetchColumn();
    echo "\n", json_encode(task_state($pdo, [$id, $added]));
    echo "\n", json_encode(task_state($pdo, [$id, (string) ($added - 86400)]));  // another task had this id
}
"""


def test_a_page_finds_out_what_the_document_says_and_may_do_no_more(reader: Reader) -> None:
    (block,) = dict(sections("docs/kinds/results.md"))["From SQL"]
    (reader.folder / "tasks.py").write_text("def give(value): return value\ndef fail(): raise ValueError\n")
    with TaskServer(reader.dsn("you_worker", "worker-password"), folder=reader.folder, mode="move") as server:
        done = server.add_task("tasks.give", [{"größe": [1]}])
        server.add_task("tasks.fail")
        server.add_task("tasks.give", delay=600)
        server.run()
    with TaskServer(reader.dsn("you_page", "page-password"), folder=reader.folder) as page:
        state = page.get(done)
        assert state is not None
        assert (state.status, page.get(10**6)) == (Status.DONE, None)
    reader.follow(block._replace(text="$pdo->exec('SET NAMES utf8mb4');\n" + block.text + ASK_FOR_ALL))
    first, *answers = reader._printed.splitlines()
    assert first == "The report is being made."
    found = [json.loads(line) for line in answers]
    assert found[1::2] == [None] * 4
    assert found[0] == {"result": {"größe": [1]}, "status": 2, "error_text": None}
    assert [row["status"] for row in found[2::2]] == [3, 5, 0]  # the last one is what the page added
    refused = ["INSERT INTO jobs_queue (task, result) VALUES ('tasks.greet', '1')"]
    for rows in ("jobs_queue", "jobs_queue_done"):
        refused += [f"SELECT {column} FROM {rows}" for column in ("args", "claim")]
        refused += [f"UPDATE {rows} SET result = '1'", f"DELETE FROM {rows}"]
    with reader.connect("you_page", "page-password") as connection, connection.cursor() as cursor:
        for statement in refused:
            with pytest.raises(pymysql.MySQLError, match="denied"):
                cursor.execute(statement)
