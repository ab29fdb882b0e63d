"""Adding on connections of Django and mysqlclient, in a Python that has them, with taskserver in its path."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from pathlib import Path
from textwrap import dedent

import pymysql
import pytest

from tests.support.deployment import ROOT
from tests.support.shops import AT, ODD_TEXT, Shop

PROGRAM = f"""
from __future__ import annotations
import json, sys
from contextlib import suppress
from datetime import datetime, timezone
from types import SimpleNamespace
import MySQLdb, MySQLdb.cursors
import django
from django.conf import settings
from taskserver import DatabaseError, TaskServer
place = json.loads(sys.argv[1])
ODD_TEXT, AT, said = place["text"], datetime.fromisoformat(place["at"]), []
server, other = TaskServer(place["dsn"]), TaskServer(place["dsn"], table="elsewhere")
settings.configure(DATABASES={{"default": place["django"]}}, USE_TZ=True, DEBUG=True)
django.setup()
from django.db import connection, transaction

{dedent(inspect.getsource(Shop.add_some))}

def order_and_add(connection):
    connection.cursor().execute("INSERT INTO orders (customer) VALUES (%s)", ["Ada"])
    return add_some(SimpleNamespace(server=server), connection)

def fail(server, connection):
    try:
        server.add_task("tasks.note", connection=connection)
    except DatabaseError as error:
        said.append(f"{{type(error).__name__}} {{type(error.__cause__).__module__}} {{error}}")
        raise

with transaction.atomic():
    ids = order_and_add(connection)
    with suppress(LookupError), transaction.atomic():
        server.add_task("tasks.note", unique_key="inner", connection=connection)
        raise LookupError
    with suppress(DatabaseError), transaction.atomic():
        fail(other, connection)
with suppress(LookupError), transaction.atomic():
    order_and_add(connection)
    raise LookupError

at = server.settings.dsn
bare = MySQLdb.connect(
    host=at.host, port=at.port, user=at.user, password=at.password, database=at.database, charset="latin1",
    cursorclass=MySQLdb.cursors.DictCursor,
)
bare.query("SET time_zone = '+05:00'")
ids.append(server.add_task("tasks.note", [ODD_TEXT], connection=bare))
assert server.add_task("tasks.note", unique_key="é", connection=bare) in ids
bare.commit()
order_and_add(bare)
with suppress(DatabaseError): fail(other, bare)
bare.rollback()
bare.close()
with suppress(DatabaseError): fail(server, bare)
print(json.dumps([ids, *said]))
"""


def test_connections_of_django_and_of_mysqlclient_serve_and_their_errors_are_ours(
    mysql_shop: Shop, django_python: str, tmp_path: Path
) -> None:
    for package in (ROOT / "taskserver", Path(pymysql.__file__).parent):
        (tmp_path / package.name).symlink_to(package)
    place = {"dsn": mysql_shop.dsn, "text": ODD_TEXT, "at": AT.isoformat(), "django": mysql_shop.place_in_django}
    ended = subprocess.run(
        [django_python, "-c", PROGRAM, json.dumps(place)],
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    [*ids, by_bare], of_django, missing, closed = json.loads(ended.stdout)
    assert mysql_shop.added()[-1] == [ODD_TEXT]
    mysql_shop.sql("DELETE FROM jobs_queue WHERE id = ?", by_bare)
    mysql_shop.assert_added(ids)
    assert mysql_shop.added()[0] == [ODD_TEXT]
    assert mysql_shop.due_in()[:2] == [None, pytest.approx(60, abs=30)]
    assert mysql_shop.instants("due_at")[-1] == "2031-03-04 05:06:07.089000"
    assert mysql_shop.customers() == ["Ada"]
    nowhere = "the connection that was given reaches no tables of elsewhere"
    assert of_django.startswith(f"TablesMissing django.db.utils {nowhere}")
    assert re.match(rf"TablesMissing MySQLdb\S* {nowhere}", missing)
    assert re.match(r"ConnectionLost MySQLdb\S* on the connection that was given: .*open another", closed)
