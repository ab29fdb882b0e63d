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

CONNECT = {
    "MySQLdb": """
import MySQLdb, MySQLdb.cursors
from taskserver import TaskServer
server = TaskServer(place["dsn"])
at = server.settings.dsn
connection = MySQLdb.connect(
    host=at.host, port=at.port, user=at.user, password=at.password, database=at.database, charset="latin1",
    cursorclass=MySQLdb.cursors.SSDictCursor,
)
connection.query("SET time_zone = '+05:00'")
""",
    "django": """
import django
if place["without"]:
    sys.modules[place["without"]] = None  # as where it is not installed
    import django.db.backends.postgresql.base
    del sys.modules[place["without"]]
from django.conf import settings
settings.configure(DATABASES={"default": place["django"]}, USE_TZ=True, DEBUG=place["debug"])
django.setup()
from django.db import connection, transaction
from taskserver import TaskServer
server = TaskServer(place["dsn"])
""",
}
PROGRAM = """
from __future__ import annotations
import json, sys
place = json.loads(sys.argv[1])
from taskserver import DatabaseError
from datetime import datetime, timezone
from types import SimpleNamespace
ODD_TEXT, AT = place["text"], datetime.fromisoformat(place["at"])
"""
ADD_SOME = f"""
{dedent(inspect.getsource(Shop.add_some))}
_add_some = add_some

def add_some():
    cursor = connection.cursor()
    cursor.execute("INSERT INTO orders (customer) VALUES (%s)", ["Ada"])
    cursor.close()
    return _add_some(SimpleNamespace(server=server), connection)
"""
Run = Callable[..., Any]


@pytest.fixture
def run(django_python: str, tmp_path: Path) -> Run:
    """Runs code that has `connection`, `server` and `add_some`; what it prints, which is JSON."""
    path = tmp_path / "path"
    path.mkdir()
    for package in (ROOT / "taskserver", Path(pymysql.__file__).parent):
        (path / package.name).symlink_to(package)

    def run(shop: Shop, driver: str, code: str, debug: bool = False, without: str = "") -> Any:
        place = {"dsn": shop.dsn, "django": shop.place_in_django, "debug": debug, "text": ODD_TEXT, "without": without}
        place["at"] = AT.isoformat()
        if shop.is_postgresql and driver == "django":
            with psycopg.connect(shop.dsn) as connection:
                if connection.info.server_version < 140_000:
                    pytest.skip("Django 5 takes PostgreSQL from version 14 on")
        done = subprocess.run(
            [
                sys.executable if shop.is_postgresql else django_python,
                "-c",
                PROGRAM + CONNECT[driver] + ADD_SOME + code,
                json.dumps(place),
            ],
            env={"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


def assert_added(shop: Shop, ids: list[int]) -> None:
    shop.assert_added(ids)
    assert shop.added()[0] == [ODD_TEXT]
    assert shop.due_in()[:2] == [None, pytest.approx(60, abs=30)]
    assert shop.instants("due_at")[-1] == "2031-03-04 05:06:07.089000"
    assert shop.customers() == ["Ada"]


# ---- mysqlclient


def test_a_connection_of_mysqlclient_serves(mysql_shop: Shop, run: Run) -> None:
    code = "ids = add_some(); connection.commit(); add_some(); connection.rollback(); print(ids)"
    assert_added(mysql_shop, run(mysql_shop, "MySQLdb", code))


FAILED_IN_MYSQLCLIENT = """
said = []
cursor = connection.cursor()
cursor.execute("RENAME TABLE jobs_queue TO elsewhere")
cursor.close()
for _ in range(2):
    try:
        server.add_task("tasks.note", connection=connection)
    except DatabaseError as error:
        said.append(f"{type(error).__name__} {type(error.__cause__).__module__} {error}")
    if len(said) == 1:
        connection.close()
print(json.dumps(said))
"""


def test_errors_of_mysqlclient_are_ours(mysql_shop: Shop, run: Run) -> None:
    missing, closed = run(mysql_shop, "MySQLdb", FAILED_IN_MYSQLCLIENT)
    assert re.match(r"TablesMissing MySQLdb\S* the connection that was given reaches no tables of jobs_queue", missing)
    assert re.match(r"ConnectionLost MySQLdb\S* on the connection that was given: .*open another", closed)


# ---- Django

COMMITTED_AND_ROLLED_BACK = """
class Undo(Exception):
    pass

with transaction.atomic():
    ids = add_some()
    for undo in (True, False):
        try:
            with transaction.atomic():
                server.add_task("tasks.note", unique_key="inner", connection=connection)
                raise Undo
        except Undo:
            pass
try:
    with transaction.atomic():
        add_some()
        raise Undo
except Undo:
    pass
print(ids)
"""


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_djangos_own_connection_serves(shop: Shop, run: Run, debug: bool) -> None:
    assert_added(shop, run(shop, "django", COMMITTED_AND_ROLLED_BACK, debug))


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_djangos_connection_by_psycopg2_serves(postgresql_shop: Shop, run: Run, debug: bool) -> None:
    how = "from django.db.backends.postgresql import psycopg_any; assert not psycopg_any.is_psycopg3\n"
    ids = run(postgresql_shop, "django", how + COMMITTED_AND_ROLLED_BACK, debug, without="psycopg")
    assert_added(postgresql_shop, ids)


FAILED_IN_DJANGO = """
said = []
with transaction.atomic():
    connection.cursor().execute("INSERT INTO orders (customer) VALUES ('Ada')")
    try:
        with transaction.atomic():
            connection.cursor().execute("INSERT INTO orders (customer) VALUES ('Grace')")
            other = TaskServer(place["dsn"], table="elsewhere")
            other.add_task("tasks.note", connection=connection)
    except DatabaseError as error:
        said.append(f"{type(error).__name__} {type(error.__cause__).__module__} {error}")
    server.add_task("tasks.note", ["after"], connection=connection)
print(json.dumps(said))
"""


def test_an_error_in_djangos_atomic_block_rolls_that_back_and_no_more(shop: Shop, run: Run) -> None:
    (said,) = run(shop, "django", FAILED_IN_DJANGO)
    assert said.startswith("TablesMissing django.db.utils the connection that was given reaches no tables of elsewhere")
    assert (shop.customers(), shop.added()) == (["Ada"], [["after"]])
