"""TASKSERVER_DSN, taken apart; and its password, which must stand in no error, no repr and no traceback."""

from __future__ import annotations

import pprint
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskserver import TaskServer
from taskserver.cli import client, worker
from taskserver.errors import SettingError
from taskserver.settings.dsn import Dsn, parse_dsn
from taskserver.settings.load import load_settings
from tests.support.deployment import run_here
from tests.support.processes import assert_one_line

SECRET = "Hush4ever"


def everything_it_says(error: BaseException) -> str:
    """An error in all the ways in which it could come before somebody's eyes."""
    return "\n".join([str(error), repr(error), repr(error.args), *traceback.format_exception(error)])


def shown(thing: object) -> str:
    return "\n".join([repr(thing), str(thing), f"{thing}", f"{thing!a}", pprint.pformat([thing]), repr({1: thing})])


# ---- servers

PARTS = {  # user, password, host, port, database; of MySQL, and where PORT stands of PostgreSQL too
    "mysql://user:password@host:3307/database": ("user", "password", "host", 3307, "database"),
    "mariadb://user:password@host/database": ("user", "password", "host", 3306, "database"),
    "postgres://user:password@host/database": ("user", "password", "host", 5432, "database"),
    "  SCHEME://user:password@LocalHost/database\n": ("user", "password", "localhost", 0, "database"),
    "SCHEME://host/db": ("", "", "host", 0, "db"),
    "SCHEME://user@host/db": ("user", "", "host", 0, "db"),
    "SCHEME://:secret@host/db": ("", "secret", "host", 0, "db"),
    "SCHEME://u:p@:/?#ss@h/db": ("u", "p@:/?#ss", "h", 0, "db"),
    "SCHEME://u:100%@h/db": ("u", "100%", "h", 0, "db"),
    "SCHEME://u:pä€😀@h/größe": ("u", "pä€😀", "h", 0, "größe"),
    "SCHEME://u%3Ax%40y:p%40%2F%3F%23%25%3A,@h/my%20db": ("u:x@y", "p@/?#%:,", "h", 0, "my db"),
    "SCHEME://u:p@[2001:db8::5]:3307/db": ("u", "p", "2001:db8::5", 3307, "db"),
    "SCHEME://u:p@h:65535/db": ("u", "p", "h", 65535, "db"),
    "postgresql://u:p@/db?host=/run/postgresql": ("u", "p", "/run/postgresql", 5432, "db"),
    "postgresql://u@:5433/db?host=%2Ftmp": ("u", "", "/tmp", 5433, "db"),
    "postgresql://%2Frun%2Fpostgresql:5433/db": ("", "", "/run/postgresql", 5433, "db"),
}


@pytest.mark.parametrize("text", PARTS)
def test_a_dsn_is_split_at_the_last_at_sign_and_percent_decoded(text: str) -> None:
    for scheme, port in (("mysql", 3306), ("PostgreSQL", 5432)):
        dsn = parse_dsn(text.replace("SCHEME", scheme))
        parts = PARTS[text]
        assert (dsn.user, dsn.password, dsn.host, dsn.port, dsn.database) == (*parts[:3], parts[3] or port, parts[4])
        assert (dsn.tls_mode, dsn.tls_ca) == ("", "")


def test_bytes_that_are_no_utf8_stay_the_bytes_they_were() -> None:
    # The second as the environment hands over what a latin-1 crontab holds.
    for text in ("mysql://u:caf%E9@h/db", "mysql://u:caf\udce9@h/db"):
        assert parse_dsn(text).password.encode("utf-8", "surrogateescape") == b"caf\xe9"


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_a_password_of_its_own_is_taken_as_it_is_and_wins(scheme: str) -> None:
    assert parse_dsn(f"{scheme}://u@h/db", "100%40@h/x").password == "100%40@h/x"
    assert parse_dsn(f"{scheme}://u:other@h/db", "p%40").password == "p%40"
    assert parse_dsn(f"{scheme}://u:other@h/db", "").password == "other"
    assert parse_dsn("sqlite:///x.db", SECRET) == Dsn("sqlite", "x.db")


TLS = {  # mode, authority, whether the server is verified
    "mysql": ("", "", False),
    "mysql?ssl-mode=REQUIRED": ("required", "", False),
    "mysql?ssl-mode=verify_identity": ("verify_identity", "", True),
    "mysql?&&ssl-ca=/etc/my%20ca.pem&": ("verify_identity", "/etc/my ca.pem", True),
    "mysql?ssl-ca=/etc/ca.pem&ssl-mode=required": ("required", "/etc/ca.pem", True),
    "postgresql": ("", "", False),
    "postgresql?sslmode=disable": ("disable", "", False),
    "postgresql?sslmode=require&sslrootcert=/etc/ca.pem": ("require", "/etc/ca.pem", True),
    "postgresql?sslmode=verify-ca": ("verify-ca", "", True),
    "postgresql?sslrootcert=/etc/my%20ca.pem": ("verify-full", "/etc/my ca.pem", True),
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
    "mysql://u:p@127.0.0.1/db": (True, "", "127.0.0.1:3306/db"),
    "mysql://u:p@[::1]/db": (True, "", "::1:3306/db"),
    "mysql://u:p@127.0.0.1.example.org/db": (False, "", "127.0.0.1.example.org:3306/db"),
    "postgresql://u:p@h:5433/db": (False, "", "h:5433/db"),
    "postgresql://u:p@%2Ftmp%2F:5433/db": (True, "/tmp/.s.PGSQL.5433", "/tmp/.s.PGSQL.5433/db"),
    "sqlite:///relative.db": (True, "", "relative.db"),
}


@pytest.mark.parametrize("text", PLACES)
def test_a_dsn_knows_what_stays_on_this_host_and_is_shown_by_its_place(text: str) -> None:
    dsn = parse_dsn(text)
    assert (dsn.is_loopback, dsn.unix_socket, dsn.place) == PLACES[text]
    assert repr(dsn) == f"Dsn({text.partition(':')[0]} {dsn.place})"


FILES = {
    "sqlite:///var/taskserver.db": "var/taskserver.db",
    "sqlite:////absolute/path.db": "/absolute/path.db",
    "sqlite:///:memory:": ":memory:",
    "sqlite:///with%20space.db": "with space.db",
    "sqlite:///größe.db": "größe.db",
    "sqlite:///100%.db": "100%.db",
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
        ("no pq wrapper available.\nAttempts made:\n- libpq not found", "psycopg finds no libpq ("),
    ],
)
def test_without_psycopg_or_its_library_one_line_says_how_to_get_them(
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
    SECRET: "no '://'",
    f"mysql:/u:{SECRET}@h/db": "no '://'",
    f"{SECRET}://u@h/db": "scheme",
    f"oracle://u:{SECRET}@h/db": "its scheme is not mysql, postgresql or sqlite",
    f"mysql:host=h;dbname=db;password={SECRET}": "no '://'",
    **dict.fromkeys(("mysql://", f"{MYSQL}h", f"{MYSQL}h:3306/", f"{MYSQL}h/db%2Ftable"), "names no database"),
    f"{MYSQL}/db": "names no host",
    f"{MYSQL}/db?unix_socket=": "it gives unix_socket no value",
    f"mysql://u:{SECRET}/db": "port",
    **{f"{MYSQL}h:{port}/db": "port" for port in ("port", "0", "65536", "3306:3307", "٣٣٠٦")},
    f"{MYSQL}[::1/db": "IPv6",
    f"{MYSQL}h/db?charset=utf8": "something other",
    f"mysql://u:x@h/db?ssl-mode={SECRET}": "ssl-mode",
    f"{MYSQL}h/db?ssl-mode=required&ssl-mode=disabled": "it gives ssl-mode twice",
    f"{MYSQL}h/db?ssl-ca=": "it gives ssl-ca no value",
    f"{MYSQL}h/db?ssl-ca=/a&ssl-mode=preferred": "its ssl-ca is only for the ssl-modes required, v",
    f"mysql://u%00:{SECRET}@h/db": "a zero byte",
    f"{MYSQL}h/db\udce9": "not UTF-8",
    f"{POSTGRESQL}h/a/b": "names no database",
    f"{POSTGRESQL}/db": "names no host: localhost as a rule, or the folder of a socket as ?host=/run/",
    f"postgresql:///db?host={SECRET}@x": "names no database",
    **{f"{POSTGRESQL}{hosts}": "more than one host" for hosts in ("h1,h2/db", "h1%2Ch2/db", "/db?host=h1,h2")},
    f"{POSTGRESQL}h1/db?host=h2": "one host before its '?' and another one behind it",
    f"postgresql://u:{SECRET}/db": "is the @ missing",
    f"{POSTGRESQL}h/db?connect_timeout=3": "something other than host, sslmode, sslrootcert",
    f"postgresql://u:x@h/db?sslmode={SECRET}": "its sslmode is not one of disable, allow, prefer, require, verify-ca,",
    f"{POSTGRESQL}h/db?sslmode=prefer&sslrootcert=/ca": "its sslrootcert is only for the sslmodes require",
    f"{POSTGRESQL}h/db?sslmode=verify-ca&sslrootcert=system": "is only for the sslmode verify-full",
    f"postgresql://u:x@h/db?sslrootcert={SECRET}": "neither an absolute path nor system",
    f"{POSTGRESQL}/db?host=/tmp&sslmode=require": "TLS, which a socket does not have",
    f"sqlite://{SECRET}.db": "three slashes",
    **dict.fromkeys(("sqlite:///", "sqlite:///var/", "sqlite:///a\x00b", "sqlite:///?x=y"), "names no database file"),
    "sqlite:///file:memorydb_default?mode=memory&cache=shared": "database in memory, which no other connection has: in",
    f"sqlite:///x.db?{SECRET}": "something other than synchronous; in the name of a file, a '?' is written %3F",
    f"sqlite:///x.db?synchronous={SECRET}": "its synchronous is not one of full, normal",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:60] or "nothing")
def test_a_wrong_dsn_is_refused_in_words_that_repeat_none_of_it(text: str, tmp_path: Path) -> None:
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
        assert SECRET not in everything_it_says(caught.value)


def test_the_programs_do_not_show_a_wrong_dsn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".env").write_text(f"TASKSERVER_DSN='mysql://u:p#{SECRET}@h:port/db'\n")
    for main, argument in ((worker.main, "--verbose"), (client.main, "status"), (client.main, "init")):
        ended = run_here(main, tmp_path, argument)
        said = ended.stderr or capfd.readouterr().err
        assert (ended.returncode, len(said.splitlines())) == (2, 1)
        assert "TASKSERVER_DSN is wrong" in said
        assert SECRET not in said


SHOWN = {  # and the password by itself
    f"mysql://user:{SECRET}@host/db": "",
    "mysql://user@host/db": SECRET,
    f"mysql://user:{SECRET}@/db?unix_socket=/run/x.sock": "",
    f"postgresql://user:{SECRET}@host/db": "",
}


@pytest.mark.parametrize("text", SHOWN)
def test_what_holds_a_dsn_shows_its_place_and_no_password(text: str, tmp_path: Path) -> None:
    dsn, server = parse_dsn(text, SHOWN[text]), TaskServer(text, password=SHOWN[text])
    found = load_settings(tmp_path, {"TASKSERVER_DSN": text, "TASKSERVER_PASSWORD": SHOWN[text]})
    for thing in (dsn, dsn._replace(port=1), found, found._replace(mode="mark"), server, server.store, vars(server)):
        assert SECRET not in shown(thing)
    assert dsn.place in repr(dsn)
    assert "/db" in repr(server)


# ---- whatever is written

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
HOSTS = st.sampled_from(["localhost", "db.example.org", "127.0.0.1", "[::1]", "%2Frun%2Fpostgresql"])
PORTS = st.one_of(st.just(""), st.integers(1, 65535).map(":{}".format))
QUERIES = st.sampled_from(["", "?sslmode=disable", "?sslmode=prefer", "?host=", "?host=/tmp&sslmode=allow"])


@settings(max_examples=100)
@given(user=NAMES, password=NAMES, host=HOSTS, port=PORTS, database=NAMES, query=QUERIES)
def test_percent_encoded_parts_come_back_exactly_and_libpq_takes_them_for_the_same(
    user: str, password: str, host: str, port: str, database: str, query: str
) -> None:
    conninfo = pytest.importorskip("psycopg.conninfo")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    text = f"postgresql://{login}@{host}{port}/{quote(database, safe='')}{query}"
    try:
        ours = parse_dsn(text)
    except SettingError:
        assert "/" in database or "host=" in query  # which libpq would take
        return
    theirs = conninfo.conninfo_to_dict(text)
    named = [str(theirs[key]) for key in ("user", "password", "host", "dbname")]
    assert named == [ours.user, ours.password, ours.host, ours.database]
    assert (ours.user, ours.password, ours.database) == (user, password, database)
    assert (theirs.get("port", "5432"), theirs.get("sslmode", "")) == (str(ours.port), ours.tls_mode)


@settings(max_examples=50)
@given(st.text(max_size=30))
def test_a_password_needs_no_encoding_but_of_per_cent_signs(password: str) -> None:
    assert parse_dsn(f"mysql://u:{password.replace('%', '%25')}@h/db").password == password
    assert parse_dsn("mysql://u@h/db", password).password == password


SCRAPS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            *("mysql", "sqlite", "://", "mysql://", "sqlite:///", ":", "/", "//", "@", "?", "#", "%", "postgresql://"),
            *("%00", "%E9", "&", "=", "[", "]", "::1", "h", "db", "u", ":3306", "0" * 30, "9" * 5000, "ssl-mode="),
            *("unix_socket=", "\0", "ssl-ca=", "required", "\udce9", "²", "\n", " ", ",", "%2F", "host=", "sslmode="),
        ]
    ),
)


@settings(max_examples=50)
@given(st.lists(SCRAPS, max_size=12).map("".join), st.lists(SCRAPS, max_size=12).map("".join))
def test_no_text_raises_anything_but_a_setting_error_and_none_echoes_it(before: str, after: str) -> None:
    secret = f"{before}{SECRET}{after}"
    for text in (
        secret,
        *(f"{scheme}://{login}{secret}" for scheme in ("mysql", "postgresql") for login in ("", "u:")),
    ):
        said = ""
        try:
            dsn = parse_dsn(text)
            if SECRET in dsn.password:
                said = shown(dsn)
        except SettingError as error:
            said = everything_it_says(error)
        assert SECRET not in said
