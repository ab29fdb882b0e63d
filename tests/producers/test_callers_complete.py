"""`taskserver.complete` on connections of SQLAlchemy and of mysqlclient."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pymysql
import pytest

from tests.support.deployment import ROOT
from tests.support.effects import EFFECTS, add, effects
from tests.support.queues import Queue

TASKS = """
import sqlalchemy
import taskserver
from sqlalchemy.orm import Session

DSN = taskserver.TaskServer.from_env(HERE).settings.dsn
PLACE = f"{DSN.user}:{DSN.password}@{DSN.host}:{DSN.port}/{DSN.database}"
DRIVERS = {"sqlite": f"sqlite:///{DSN.database}", "mysql": f"mysql+pymysql://{PLACE}"}

def pay(by_session, commits):
    url = DRIVERS.get(DSN.kind, f"postgresql+psycopg://{PLACE}")
    with Session(sqlalchemy.create_engine(url)) as session:
        session.execute(sqlalchemy.text("INSERT INTO effects (number) VALUES (1)"))
        taskserver.complete(session if by_session else session.connection(), {"größe": "Käse"})
        session.commit() if commits else session.rollback()
"""


@pytest.mark.parametrize("by_session", [True, False])
def test_a_session_or_connection_of_sqlalchemy_completes(queue: Queue, by_session: bool) -> None:
    queue.sql(EFFECTS[queue.kind])
    for commits in (True, False):
        add(queue, "pay", by_session, commits)
    queue.run_quietly(mode="mark")
    assert (effects(queue), queue.statuses()) == ([1], [2, 3])
    assert json.loads(queue.rows("result")[0][0]) == {"größe": "Käse"}


BY_MYSQLCLIENT = """
import sys

import MySQLdb
import taskserver

server = taskserver.TaskServer(sys.argv[1], modules="__main__", mode="mark")
AT = server.settings.dsn

def pay(number):
    place = {"host": AT.host, "port": AT.port, "user": AT.user, "password": AT.password, "database": AT.database}
    connection = MySQLdb.connect(**place, charset="latin1")
    connection.cursor().execute("INSERT INTO effects (number) VALUES (%s)", [number])
    taskserver.complete(connection, {"größe": number})
    connection.commit() if number < 2 else connection.rollback()

for number in (1, 2):
    server.add_task("__main__.pay", [number])
ended = server.run()
print(ended.done, ended.failed)
"""


def test_a_connection_of_mysqlclient_completes(mysql_queue: Queue, django_python: str, tmp_path: Path) -> None:
    mysql_queue.sql(EFFECTS["mysql"])
    (tmp_path / "pymysql").symlink_to(Path(pymysql.__file__).parent)
    (tmp_path / "taskserver").symlink_to(ROOT / "taskserver")
    (tmp_path / "program.py").write_text(BY_MYSQLCLIENT)
    command = [django_python, str(tmp_path / "program.py"), mysql_queue.dsn]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "1 1\n"), ended.stderr
    assert effects(mysql_queue) == [1]
    found = [(status, result and json.loads(result)) for status, result in mysql_queue.rows("status, result")]
    assert found == [(2, {"größe": 1}), (3, None)]
