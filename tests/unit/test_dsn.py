"""Parsing TASKSERVER_DSN, and its password, which no error, repr or traceback may show."""

from __future__ import annotations

import pprint
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from taskserver import TaskServer
from taskserver.cli import client, worker
from taskserver.errors import SettingError
from taskserver.settings.dsn import Dsn, parse_dsn
from taskserver.settings.load import load_settings
from tests.support.deployment import run_here
from tests.support.processes import assert_one_line

SECRET = "Hush4ever"


# ---- servers

PARTS = {  # user, password, host, port, database; of MySQL, and where PORT stands of PostgreSQL too
    "mysql://user:password@host:3307/database": ("user", "password", "host", 3307, "database"),
    "mariadb://host/database": ("", "", "host", 3306, "database"),
    "postgres://host/database": ("", "", "host", 5432, "database"),
    "  SCHEME://user:password@LocalHost/database\n": ("user", "password", "localhost", 0, "database"),
    "SCHEME://u:p@:/?#ss@h/db": ("u", "p@:/?#ss", "h", 0, "db"),
    "SCHEME://u:100%@h/db": ("u", "100%", "h", 0, "db"),
    "SCHEME://u:pä€😀@h/größe": ("u", "pä€😀", "h", 0, "größe"),
    "SCHEME://u%3Ax%40y:p%40%2F%3F%23%25%3A,@h/my%20db": ("u:x@y", "p@/?#%:,", "h", 0, "my db"),
    "SCHEME://u:p@[2001:db8::5]:3307/db": ("u", "p", "2001:db8::5", 3307, "db"),
    "postgresql://u:p@/db?host=/run/postgresql": ("u", "p", "/run/postgresql", 5432, "db"),
    "postgresql://%2Frun%2Fpostgresql:5433/db": ("", "", "/run/postgresql", 5433, "db"),
}


@pytest.mark.parametrize("text", PARTS)
def test_a_dsn_is_split_at_the_last_at_sign_and_percent_decoded(text: str) -> None:
    for scheme, port in (("mysql", 3306), ("PostgreSQL", 5432)):
        dsn = parse_dsn(text.replace("SCHEME", scheme))
        parts = PARTS[text]
        assert (dsn.user, dsn.password, dsn.host, dsn.port, dsn.database) == (*parts[:3], parts[3] or port, parts[4])


def test_a_separate_password_is_taken_unchanged_and_wins() -> None:
    for scheme in ("mysql", "postgresql"):
        assert parse_dsn(f"{scheme}://u:other@h/db", "100%40@h/x").password == "100%40@h/x"
        assert parse_dsn(f"{scheme}://u:other@h/db", "").password == "other"
    assert parse_dsn("sqlite:///x.db", SECRET) == Dsn("sqlite", "x.db")


TLS = {  # mode, authority, whether the server is verified
    "mysql": ("", "", False),
    "mysql?ssl-mode=REQUIRED": ("required", "", False),
    "mysql?&&ssl-ca=/etc/my%20ca.pem&": ("verify_identity", "/etc/my ca.pem", True),
    "mysql?ssl-ca=/etc/ca.pem&ssl-mode=required": ("required", "/etc/ca.pem", True),
    "postgresql?sslmode=disable": ("disable", "", False),
    "postgresql?sslmode=require&sslrootcert=/etc/ca.pem": ("require", "/etc/ca.pem", True),
    "postgresql?sslmode=verify-ca": ("verify-ca", "", True),
    "postgresql?&sslrootcert=system&": ("verify-full", "system", True),
}


@pytest.mark.parametrize("text", TLS)
def test_a_certificate_is_verified_if_its_authority_or_the_mode_says_so(text: str) -> None:
    scheme, mark, query = text.partition("?")
    dsn = parse_dsn(f"{scheme}://u:p@h/db{mark}{query}")
    assert (dsn.tls_mode, dsn.tls_ca, dsn.is_verified) == TLS[text]


PLACES = {  # whether it stays on this host, the socket, what a message says
    "mysql://u:p@/db?unix_socket=/run/x.sock": (True, "/run/x.sock", "/run/x.sock/db"),
    "mysql://u:p@localhost/db": (True, "", "localhost:3306/db"),
    "mysql://u:p@[::1]/db": (True, "", "::1:3306/db"),
    "mysql://u:p@127.0.0.1.example.org/db": (False, "", "127.0.0.1.example.org:3306/db"),
    "postgresql://u:p@%2Ftmp%2F:5433/db": (True, "/tmp/.s.PGSQL.5433", "/tmp/.s.PGSQL.5433/db"),
    "mysql://u:p@localhost,127.0.0.1:3307/db": (True, "", "localhost:3306,127.0.0.1:3307/db"),
    "mysql://u:p@localhost,db2.example.org/db": (False, "", "localhost:3306,db2.example.org:3306/db"),
    "sqlite:///relative.db": (True, "", "relative.db"),
}


@pytest.mark.parametrize("text", PLACES)
def test_a_dsn_knows_whether_it_is_local_and_shows_its_place(text: str) -> None:
    dsn = parse_dsn(text)
    assert (dsn.is_loopback, dsn.unix_socket, dsn.place) == PLACES[text]
    assert repr(dsn) == f"Dsn({text.partition(':')[0]} {dsn.place})"


def test_several_hosts_are_tried_in_the_order_of_the_dsn() -> None:
    dsn = parse_dsn("mysql://u:a,b@h1,[::1]:3307,h3:3308/db?ssl-mode=required")
    assert (dsn.password, dsn.place) == ("a,b", "h1:3306,::1:3307,h3:3308/db")
    assert [(one.host, one.port) for one in dsn.by_host] == [("h1", 3306), ("::1", 3307), ("h3", 3308)]
    assert {one._replace(host="", port=0) for one in dsn.by_host} == {
        dsn._replace(host="", port=0, more_hosts=()),
    }
    dsn = parse_dsn("postgresql://u:p@h1,h2:5433/db?target_session_attrs=read-write")
    assert dsn.place == "h1:5432,h2:5433/db"
    assert parse_dsn("mysql://u:p@h1/db").by_host == [parse_dsn("mysql://u:p@h1/db")]


FILES = {
    "sqlite:///var/taskserver.db": "var/taskserver.db",
    "sqlite:////absolute/path.db": "/absolute/path.db",
    "sqlite:///:memory:": ":memory:",
    "sqlite:///with%20space.db": "with space.db",
}


@pytest.mark.parametrize("text", FILES)
def test_an_sqlite_dsn_has_three_slashes_and_a_path(text: str) -> None:
    dsn, path = parse_dsn(text), FILES[text]
    assert dsn == Dsn("sqlite", path, "full")
    assert dsn.is_verified
    assert dsn.database_file(Path("/site")) == (None if path == ":memory:" else Path("/site", path))
    assert parse_dsn("mysql://h/db").database_file(Path("/site")) is None
    assert parse_dsn("sqlite:////a/what%3F.db?&synchronous=NORMAL&") == Dsn("sqlite", "/a/what?.db", "normal")


# ---- a driver that is missing


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("No module named 'psycopg'", "psycopg 3.3 or newer is missing ("),
        ("no pq wrapper\n", "psycopg finds no libpq ("),
    ],
)
def test_a_missing_psycopg_or_libpq_is_one_line_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, words: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(("psycopg", "taskserver.stores.postgresql"))]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "psycopg.py").write_text(f"raise ImportError({error!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / ".env").write_text(f"TASKSERVER_DSN=postgresql://u:{SECRET}@127.0.0.1/shop\n")
    ended = run_here(client.main, tmp_path, "status")
    assert_one_line(ended, 1, words, "pip install", "'psycopg[binary]>=3.3,<4'")
    assert SECRET not in ended.stderr


# ---- wrong ones

MYSQL, POSTGRESQL = f"mysql://u:{SECRET}@", f"postgresql://u:{SECRET}@"
WRONG = {
    "": "no '://'",
    f"mysql:/u:{SECRET}@h/db": "no '://'",
    f"{SECRET}://u@h/db": "scheme",
    f"oracle://u:{SECRET}@h/db": "its scheme is not mysql, postgresql or sqlite",
    **dict.fromkeys((f"{MYSQL}h", f"{MYSQL}h/db%2Ftable"), "names no database"),
    f"{MYSQL}/db": "names no host",
    f"mysql://u:{SECRET}/db": "port",
    **{f"{MYSQL}h:{port}/db": "port" for port in ("port", "65536", "٣٣٠٦")},
    f"{MYSQL}[::1/db": "IPv6",
    f"{MYSQL}h/db?charset=utf8": "something other",
    f"mysql://u:x@h/db?ssl-mode={SECRET}": "ssl-mode",
    f"{MYSQL}h/db?ssl-mode=required&ssl-mode=disabled": "it gives ssl-mode twice",
    f"{MYSQL}h/db?ssl-ca=/a&ssl-mode=preferred": "its ssl-ca is only for the ssl-modes required, v",
    f"mysql://u%00:{SECRET}@h/db": "a zero byte",
    f"{MYSQL}h/db\udce9": "not UTF-8",
    f"{POSTGRESQL}/db": "names no host: localhost as a rule, or the folder of a socket as ?host=/run/",
    **dict.fromkeys((f"{MYSQL}h1,,h2/db", f"{MYSQL}h1, h2/db", f"{POSTGRESQL}h1,%2Ftmp/db"), "of several hosts, each "),
    f"{MYSQL}h1,h2/db?unix_socket=/tmp/x": "none has a socket",
    f"{MYSQL}h1,h2:{SECRET}/db": "port",
    f"{POSTGRESQL}/db?host=h1,h2": "several hosts stand before its '?'",
    f"{POSTGRESQL}h1,h2/db?target_session_attrs=any": "its target_session_attrs is not one of read-write",
    f"{POSTGRESQL}h1/db?host=h2": "one host before its '?' and another one behind it",
    f"postgresql://u:{SECRET}/db": "is the @ missing",
    f"{POSTGRESQL}h/db?connect_timeout=3": "something other than host, sslmode, sslrootcert, target_",
    f"postgresql://u:x@h/db?sslmode={SECRET}": "its sslmode is not one of disable, allow, prefer, require, verify-ca,",
    f"{POSTGRESQL}h/db?sslmode=verify-ca&sslrootcert=system": "is only for the sslmode verify-full",
    f"postgresql://u:x@h/db?sslrootcert={SECRET}": "neither an absolute path nor system",
    f"{POSTGRESQL}/db?host=/tmp&sslmode=require": "TLS, which a socket does not have",
    f"sqlite://{SECRET}.db": "three slashes",
    **dict.fromkeys(("sqlite:///var/", "sqlite:///a\x00b"), "names no database file"),
    "sqlite:///file:memorydb_default?mode=memory&cache=shared": "database in memory, which no other connection has: in",
    f"sqlite:///x.db?{SECRET}": "something other than synchronous; in the name of a file, a '?' is written %3F",
    f"sqlite:///x.db?synchronous={SECRET}": "its synchronous is not one of full, normal",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:60] or "nothing")
def test_the_error_of_a_wrong_dsn_repeats_none_of_it(text: str, tmp_path: Path) -> None:
    openers: list[Callable[[str], object]] = [
        *(parse_dsn, TaskServer),
        lambda dsn: load_settings(tmp_path, {"TASKSERVER_DSN": dsn or " "}),
    ]
    for opened in openers:
        with pytest.raises(SettingError) as caught:
            opened(text)
        message = str(caught.value)
        assert message.startswith("TASKSERVER_DSN is wrong: ")
        assert WRONG[text] in message
        assert "allowed: mysql://user:password@host:3306/database" in message
        assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)


def test_the_programs_do_not_show_a_wrong_dsn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".env").write_text(f"TASKSERVER_DSN='mysql://u:p#{SECRET}@h:port/db'\n")
    for main, argument in ((worker.main, "--verbose"), (client.main, "init")):
        ended = run_here(main, tmp_path, argument)
        said = ended.stderr or capfd.readouterr().err
        assert (ended.returncode, len(said.splitlines())) == (2, 1)
        assert "TASKSERVER_DSN is wrong" in said
        assert SECRET not in said


def test_objects_with_a_dsn_show_its_place_and_no_password(tmp_path: Path) -> None:
    text = "mysql://user@host/db"
    dsn, server = parse_dsn(text, SECRET), TaskServer(text, password=SECRET)
    found = load_settings(tmp_path, {"TASKSERVER_DSN": text, "TASKSERVER_PASSWORD": SECRET})
    for thing in (dsn, dsn._replace(port=1), found, found._replace(mode="mark"), server, server.store, vars(server)):
        assert SECRET not in "\n".join([repr(thing), str(thing), f"{thing}", f"{thing!a}", pprint.pformat([thing])])
    assert dsn.place in repr(dsn)
    assert "/db" in repr(server)
