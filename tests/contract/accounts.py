"""Accounts of a server with few rights, and the errors of databases that cannot be used, which contain no password."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

import pymysql
import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.errors import TablesMissing
from tests.support.servers import MySQLServer

SECRET = "s3cret/ä@?#"
QUOTED_SECRET = quote(SECRET, safe="")


def failure(dsn: str, password: str = "") -> str:
    """The error of a server that cannot be used: one line, without its password."""
    with TaskServer(dsn, password=password) as server, pytest.raises(DatabaseError) as raised:
        server.add_task("tasks.a")
    assert not isinstance(raised.value, TablesMissing), "it can be used, and has no tables"
    text = str(raised.value)
    assert text
    assert "\n" not in text
    for written in (SECRET, QUOTED_SECRET, "s3cret"):
        for shown in (text, repr(raised.value), "".join(traceback.format_exception(raised.value))):
            assert written not in shown
    return text


@contextmanager
def account(server: MySQLServer, database: str, rights: str = "", requires: str = "") -> Iterator[str]:
    """DSN of a database for a user of its own with some rights, whose password is another than SECRET."""
    name, password = f"u_{secrets.token_hex(4)}", f"{SECRET}x"
    quoted = pymysql.converters.escape_string(password)
    server.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{quoted}' {requires}")
    try:
        if rights:
            server.execute(f"GRANT {rights} TO '{name}'@'%'")
        with suppress(pymysql.MySQLError):
            # MySQL 8 asks for the password itself once, which goes to no server of a foreign account without a CA.
            server.connect(user=name, password=password.encode()).close()
        yield f"mysql://{name}:{quote(password, safe='')}@{server.host}:{server.port}/{database}"
    finally:
        server.execute(f"DROP USER '{name}'@'%'")
