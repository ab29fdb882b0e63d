"""Adding on connections of mysqlclient and Django, in a Python that has them, with taskserver in its path."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
import pymysql
import pytest

from tests.support.deployment import ROOT
from tests.support.shops import AT, ODD_TEXT, Shop

BEGIN = f"""
from __future__ import annotations
import json, sys
from datetime import datetime, timezone
from types import SimpleNamespace
place = json.loads(sys.argv[1])
if place["without"]:
    sys.modules[place["without"]] = None  # as where it is not installed
    import django.db.backends.postgresql.base
    assert not django.db.backends.postgresql.psycopg_any.is_psycopg3
    del sys.modules[place["without"]]
ODD_TEXT, AT, said = place["text"], datetime.fromisoformat(place["at"]), []
from taskserver import DatabaseError, TaskServer
server, other = TaskServer(place["dsn"]), TaskServer(place["dsn"], table="elsewhere")

def order():
    cursor = connection.cursor()
    cursor.execute("INSERT INTO orders (customer) VALUES (%s)", ["Ada"])
    cursor.close()

{dedent(inspect.getsource(Shop.add_some))}

def order_and_add():
    order()
    return add_some(SimpleNamespace(server=server), connection)

def fail(server):
    try:
        server.add_task("tasks.note", connection=connection)
    except DatabaseError as error:
        said.append(f"{{type(error).__name__}} {{type(error.__cause__).__module__}} {{error}}")
        raise
"""
BY_MYSQLCLIENT = """
import MySQLdb, MySQLdb.cursors
from contextlib import suppress
at = server.settings.dsn
connection = MySQLdb.connect(
    host=at.host, port=at.port, user=at.user, password=at.password, database=at.database, charset="latin1",
    cursorclass=MySQLdb.cursors.SSDictCursor,
)
connection.query("SET time_zone = '+05:00'")
ids = order_and_add()
connection.commit()
order_and_add()
with suppress(DatabaseError): fail(other)
connection.rollback()
connection.close()
with suppress(DatabaseError): fail(server)
print(json.dumps([ids, *said]))
"""
BY_DJANGO = """
import django
from django.conf import settings
settings.configure(DATABASES={"default": place["django"]}, USE_TZ=True, DEBUG=place["debug"])
django.setup()
from django.db import connection, transaction

def undone(work):
    try:
        with transaction.atomic():
            work()
            raise LookupError
    except LookupError:
        pass

with transaction.atomic():
    ids = order_and_add()
    undone(lambda: server.add_task("tasks.note", unique_key="inner", connection=connection))
    try:
        with transaction.atomic():
            order()
            fail(other)
    except DatabaseError:
        pass
undone(order_and_add)
print(json.dumps([ids, *said]))
"""
Run = Callable[..., Any]


@pytest.fixture
def run(django_python: str, tmp_path: Path) -> Run:
    """Runs code that orders and adds; the ids of its tasks, and what its errors said."""
    path = tmp_path / "path"
    path.mkdir()
    for package in (ROOT / "taskserver", Path(pymysql.__file__).parent):
        (path / package.name).symlink_to(package)

    def run(shop: Shop, code: str, debug: bool = False, without: str = "") -> Any:
        place = {"dsn": shop.dsn, "debug": debug, "text": ODD_TEXT, "at": AT.isoformat(), "without": without}
        ended = subprocess.run(
            [
                *(sys.executable if shop.is_postgresql else django_python, "-c", BEGIN + code),
                json.dumps(place | {"django": shop.place_in_django}),
            ],
            env={"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        ids, *said = json.loads(ended.stdout)
        shop.assert_added(ids)
        assert shop.added()[0] == [ODD_TEXT]
        assert shop.due_in()[:2] == [None, pytest.approx(60, abs=30)]
        assert shop.instants("due_at")[-1] == "2031-03-04 05:06:07.089000"
        assert shop.customers() == ["Ada"]
        return said

    return run


def test_a_connection_of_mysqlclient_serves_and_its_errors_are_ours(mysql_shop: Shop, run: Run) -> None:
    missing, closed = run(mysql_shop, BY_MYSQLCLIENT)
    assert re.match(r"TablesMissing MySQLdb\S* the connection that was given reaches no tables of elsewhere", missing)
    assert re.match(r"ConnectionLost MySQLdb\S* on the connection that was given: .*open another", closed)


MISSING = "TablesMissing django.db.utils the connection that was given reaches no tables of elsewhere"


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_djangos_own_connection_serves_and_an_error_rolls_back_its_atomic_block_only(
    shop: Shop, run: Run, debug: bool
) -> None:
    if shop.is_postgresql:
        with psycopg.connect(shop.dsn) as connection:
            if connection.info.server_version < 140_000:
                pytest.skip("Django 5 takes PostgreSQL from version 14 on")
    for without in ("", "psycopg") if shop.is_postgresql else ("",):
        (said,) = run(shop, BY_DJANGO, debug, without)
        assert said.startswith(MISSING)
        for table in ("jobs_queue", "jobs_queue_dependencies", "orders"):
            shop.sql(f"DELETE FROM {table}")
