"""What every store does with a task that is added: by itself or among many, with a key or without, by SQL too."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.errors import Conflict, DatabaseError, InvalidTask
from taskserver.model.new_task import NewTask
from taskserver.model.task import Status
from taskserver.stores import Store
from tests.contract.verbs import PLAIN, STATES, add, add_many, claim, claim_one, ids, keyed, put_into, start, wake
from tests.support.processes import WAIT_SECONDS
from tests.support.rows import Rows, as_instant
from tests.support.servers import MariaDB


@pytest.mark.parametrize("by_sql", [False, True], ids=["api", "sql"])
def test_an_added_task_is_new_and_has_the_defaults_of_the_contract(store: Store, rows: Rows, by_sql: bool) -> None:
    args = '{"to": "ä@example.org %s ?"}'
    if by_sql:
        rows.execute(
            f"INSERT INTO jobs_queue (task, args, group_id, priority) VALUES ('tasks.send_letter', '{args}', 3, -7)"
        )
    else:
        store.producing.add(NewTask("tasks.send_letter", args, 3, -7))
    (row,) = rows.all()
    said = {"id": row["id"], "task": "tasks.send_letter", "args": args, "group_id": 3, "priority": -7}
    clocks = {name: row[name] for name in ("created_at", "updated_at")}
    assert row == dict.fromkeys(row) | said | clocks | {"status": 0, "attempts": 0, "stage": 0, "awaited": 0}
    for instant in clocks.values():
        assert rows.seconds_from_now(instant) == pytest.approx(0, abs=30)


def test_an_added_task_has_all_that_its_producer_said(store: Store, rows: Rows) -> None:
    at = "2030-02-03 04:05:06.789000"
    task_id = store.producing.add(NewTask("tasks.send", "[1]", 3, -7, 4, None, at, "kü", True, 2**63 - 1))
    row = rows.row(task_id)
    assert (row["task"], row["args"], row["group_id"], row["priority"]) == ("tasks.send", "[1]", 3, -7)
    assert (row["max_attempts"], row["version"], row["status"], row["attempts"]) == (4, 2**63 - 1, 5, 0)
    assert row["unique_key"] in ("kü", "kü".encode())
    assert as_instant(row["due_at"]) == datetime.fromisoformat(at)
    delayed = rows.row(store.producing.add(PLAIN._replace(delay_seconds=90.5)))
    assert delayed["status"] == Status.WAITING
    assert rows.seconds_from_now(delayed["due_at"]) == pytest.approx(90.5, abs=30)
    assert claim(store) == []


def test_what_a_producer_says_of_attempts_stands_before_what_the_callable_says(store: Store, rows: Rows) -> None:
    store.producing.add(PLAIN._replace(max_attempts=4))
    task = claim_one(store)
    assert task.max_attempts == 4
    assert start(store, task, 9)
    assert rows.one("max_attempts") == 4


def test_a_producer_with_plain_sql_may_say_when(store: Store, rows: Rows) -> None:
    hour, past = rows.after(3600), rows.after(-3600)
    rows.execute("INSERT INTO jobs_queue (task) VALUES ('tasks.at_once')")
    rows.execute(f"INSERT INTO jobs_queue (task, due_at) VALUES ('tasks.later', {hour})")
    rows.execute(f"INSERT INTO jobs_queue (task, due_at) VALUES ('tasks.now', {past})")
    rows.execute(f"INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.waits', 5, {hour})")
    rows.execute(f"INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.woken', 5, {past})")
    assert wake(store) == 1
    assert [task.task for task in claim(store)] == ["tasks.at_once", "tasks.now", "tasks.woken"]
    assert rows.statuses() == [1, 5, 1, 5, 1]


# ---- many


def test_many_tasks_are_added_in_order_with_the_ids_that_the_rows_have(store: Store, rows: Rows) -> None:
    assert add_many(store, []) == []
    first = add(store)
    added = add_many(store, (NewTask("tasks.send", f"[{n}]", n % 7, -n) for n in range(2500)))
    assert rows.execute(f"SELECT id, args, group_id, priority FROM jobs_queue WHERE id <> {first} ORDER BY id") == [
        (task_id, f"[{n}]", n % 7, -n) for n, task_id in enumerate(added)
    ]
    assert len(added) == 2500


def test_an_error_in_the_iterator_leaves_none_of_the_tasks(store: Store, rows: Rows) -> None:
    def broken() -> Iterator[NewTask]:
        yield from [PLAIN] * 2300
        raise ValueError("line 2301")

    with pytest.raises(ValueError, match="line 2301"):
        add_many(store, broken())
    assert rows.all() == []
    assert add_many(store, [PLAIN]) == [row["id"] for row in rows.all()]


def test_a_row_that_the_database_refuses_leaves_none_of_the_tasks(store: Store, rows: Rows) -> None:
    with pytest.raises(DatabaseError):
        add_many(store, [PLAIN] * 1500 + [PLAIN._replace(group_id=-1)])
    assert rows.all() == []


@pytest.mark.parametrize("many", [list, iter], ids=["list", "iterator"])
def test_many_tasks_of_all_kinds_are_added_with_the_ids_of_their_rows_in_order(
    store: Store, rows: Rows, many: Callable[[list[NewTask]], Any]
) -> None:
    stands, again = store.producing.add(keyed("stands", "[0]")), store.producing.add(keyed("again", "[0]"))
    tasks = [
        PLAIN._replace(args="[1]"),
        PLAIN._replace(args="[2]", delay_seconds=60.0),
        PLAIN._replace(args="[3]", due_at="2030-01-01 00:00:00.000000"),
        keyed("a", "[4]"),
        keyed("stands", "[5]"),
        keyed("a", "[6]"),
        PLAIN._replace(args="[7]", max_attempts=1),
        keyed("again", "[8]", rerun=True),
        keyed("b", "[9]", rerun=True),
        keyed("b", "[10]", rerun=True),
        keyed("again", "[11]", rerun=True, version=1),
        keyed("again", "[12]", rerun=True, version=1),
        PLAIN._replace(args="[13]"),
        *(keyed(f"key {number % 150}", f"[{100 + number % 150}]") for number in range(300)),
    ]
    added = add_many(store, many(tasks))
    args = {row["id"]: row["args"] for row in rows.all()}
    assert [added[4], added[7], added[10], added[11]] == [stands, again, again, again]
    wanted = [task.args for task in tasks]
    wanted[4], wanted[5], wanted[7], wanted[8], wanted[11] = "[0]", "[4]", "[11]", "[10]", "[11]"
    assert [args[task_id] for task_id in added] == wanted
    assert len(args) == len(set(added)) == 159
    assert rows.statuses().count(5) == 2


@pytest.mark.parametrize("letter", ["x", '"', "🦊"], ids=["ascii", "quotes", "four-bytes"])
def test_many_long_tasks_can_be_added_where_a_statement_may_hold_one_mebibyte(mariadb: MariaDB, letter: str) -> None:
    [[default]] = mariadb.execute("SELECT @@GLOBAL.max_allowed_packet")
    text = letter * (300_000 // len(json.dumps(letter)[1:-1]))
    with mariadb.database() as name:
        try:
            mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
            with TaskServer(mariadb.dsn(name)) as server:
                server.create_tables()
                added = server.add_tasks({"task": "tasks.send", "args": [number, text]} for number in range(5))
        finally:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {default}")
        found = mariadb.execute("SELECT id, args FROM jobs_queue ORDER BY id", database=name)
    assert [(task_id, json.loads(args)) for task_id, args in found] == [(one, [n, text]) for n, one in enumerate(added)]


# ---- keys: while a row has one, adding does nothing


def test_a_key_that_stands_keeps_its_row_as_it_is_whatever_its_state(store: Store, rows: Rows) -> None:
    first = store.producing.add(keyed(args="[1]"))
    for state in STATES:
        before = put_into(rows, state)
        assert store.producing.add(keyed(args="[2]", group_id=9, max_attempts=1, delay_seconds=60.0)) == first
        assert add_many(store, [keyed(args="[3]"), keyed(args="[4]")]) == [first, first]
        assert rows.all() == [before], state


KEYS = ("k", "K", "k ", " k", "k\0", "k\0a", "ä", "a\u0308", "Ä", "ß", "ss", "🦊", "%", "k%", "_", "'", '"', "\\", "0")


def test_keys_are_compared_by_their_bytes(store: Store, rows: Rows) -> None:
    keys = [key for key in KEYS if "\0" not in key or not rows.is_postgresql]
    added = add_many(store, [keyed(key) for key in keys])
    assert len(set(added)) == len(keys)
    assert [store.producing.add(keyed(key)) for key in keys] == added
    assert len(rows.all()) == len(keys)


def test_a_key_that_postgresql_cannot_hold_is_refused(emptied_postgresql_dsn: str) -> None:
    with TaskServer(emptied_postgresql_dsn) as server:
        for key in ("k\0", "k\0a"):
            with pytest.raises(InvalidTask, match="NUL"):
                server.add_task("tasks.a", unique_key=key)
        assert server.list() == []


@pytest.mark.parametrize("letter", ["k", "ä"])
def test_a_key_longer_than_its_column_is_refused_and_not_cut(store: Store, rows: Rows, letter: str) -> None:
    fits = letter * (255 // len(letter.encode()))
    task_id = store.producing.add(keyed(fits))
    for is_rerun in (False, True):
        too_long = keyed(fits + "k" * 2, rerun=is_rerun)
        for tasks in ([too_long], [keyed("other"), too_long]):
            with pytest.raises(DatabaseError):
                add_many(store, tasks)
        with pytest.raises(DatabaseError):
            store.producing.add(too_long)
    assert [row["id"] for row in rows.all()] == [task_id]


def test_a_waiting_producer_goes_on_once_the_row_of_its_key_is_let_go(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever became of the row meanwhile: it stands, it is gone, or what was done to it is undone."""
    monkeypatch.setattr("taskserver.stores.sqlite.session.LOCK_WAIT_SECONDS", 0.05)
    first = store.producing.add(keyed(args="[1]"))
    for ending, is_same in (("ROLLBACK", True), ("COMMIT", False)):
        store.close()  # the next connection waits in shorter turns
        rows.execute(rows.begin)
        rows.execute("DELETE FROM jobs_queue WHERE unique_key = 'k'")
        with awaited(store, lambda: store.producing.add(keyed(args="[2]"))) as added:
            rows.execute(ending)
        assert (added == [first]) == is_same
        assert [row["id"] for row in rows.all()] == added
    assert rows.one("args") == "[2]"


@contextmanager
def awaited(store: Store, work: Callable[[], object]) -> Iterator[list[object]]:
    """Does work in another thread, which others keep from it until the end of the `with`: they were met by then."""
    outcomes: list[object] = []
    were_in_the_way = threading.Event()
    dialect = store.database.dialect
    plain_error = dialect.error

    def error(error: BaseException) -> DatabaseError:
        ours = plain_error(error)
        if isinstance(ours, Conflict):
            were_in_the_way.set()
        return ours

    def do() -> None:
        try:
            outcomes.append(work())
        except DatabaseError as failure:
            outcomes.append(failure)

    dialect.error = error  # type: ignore[assignment,method-assign]
    thread = threading.Thread(target=do)
    thread.start()
    try:
        assert were_in_the_way.wait(WAIT_SECONDS)
        assert outcomes == []
        yield outcomes
    finally:
        thread.join(WAIT_SECONDS)
        del dialect.error


# ---- a producer's time zone


@pytest.mark.parametrize("time_zone", ["+09:00", "-11:00"])
def test_a_producer_in_another_time_zone_adds_tasks_that_are_due_when_it_meant(
    mysql_store: Store, emptied_mysql_dsn: str, time_zone: str
) -> None:
    producer = Rows(emptied_mysql_dsn)
    producer.execute(f"SET time_zone = '{time_zone}'")
    producer.execute(
        "INSERT INTO jobs_queue (task, status, due_at) VALUES ('at_once', 0, NULL), "
        "('in_an_hour', 0, NOW() + INTERVAL 1 HOUR), ('an_hour_ago', 0, NOW() - INTERVAL 1 HOUR), "
        "('waits', 5, NOW() + INTERVAL 1 HOUR), ('woken', 5, NOW() - INTERVAL 1 HOUR)"
    )
    now = producer.execute("SELECT UTC_TIMESTAMP(6)")[0][0].replace(tzinfo=timezone.utc)
    producer.close()
    assert wake(mysql_store) == 1
    claimed = claim(mysql_store)
    assert [task.task for task in claimed] == ["at_once", "an_hour_ago", "woken"]
    at_once, in_an_hour = (mysql_store.views.show(ids(claimed)[0] + further) for further in (0, 1))
    assert at_once is not None
    assert in_an_hour is not None
    assert at_once.created_at is not None
    assert in_an_hour.due_at is not None
    assert abs((at_once.created_at - now).total_seconds()) < 30
    assert in_an_hour.status == Status.WAITING
    assert (in_an_hour.due_at - now).total_seconds() == pytest.approx(3600, abs=30)


def test_instants_are_in_utc_where_the_server_s_own_clock_shows_another_zone(mariadb: MariaDB) -> None:
    with mariadb.database() as name:
        try:
            mariadb.execute("SET GLOBAL time_zone = '+05:00'")
            with TaskServer(mariadb.dsn(name)) as server:
                server.create_tables()
                task_id = server.add_task("tasks.send")
                assert start(server.store, claim_one(server.store))
                shown = server.store.views.show(task_id)
        finally:
            mariadb.execute("SET GLOBAL time_zone = 'SYSTEM'")
    [[now]] = mariadb.execute("SELECT UTC_TIMESTAMP(6)")
    assert shown is not None
    for instant, lease in ((shown.created_at, 0), (shown.started_at, 0), (shown.updated_at, 0), (shown.due_at, 120)):
        assert instant is not None
        assert (instant - now.replace(tzinfo=timezone.utc)).total_seconds() == pytest.approx(lease, abs=30)
