"""TASKSERVER_DSN, taken apart; and its password, which must stand in no error, no repr and no traceback."""

from __future__ import annotations

import contextlib
import pprint
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_from_bytes

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taskserver import TaskServer
from taskserver.errors import DatabaseError, SettingError
from taskserver.settings.dsn import Dsn, parse_dsn
from taskserver.settings.load import Settings, load_settings
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line
from tests.support.servers import MySQLServer

SECRET = "Hush4ever"
ODD_PASSWORD = "p@:/?#%&=+ '\"\\$[];ß"


def everything_it_says(error: BaseException) -> str:
    """An error in all the ways in which it could come before somebody's eyes."""
    return "\n".join([str(error), repr(error), repr(error.args), *traceback.format_exception(error)])


# ---- servers

PARTS = {  # user, password, host, port, database; of MySQL, and where PORT stands of PostgreSQL too
    "mysql://user:password@host:3307/database": ("user", "password", "host", 3307, "database"),
    "mariadb://user:password@host/database": ("user", "password", "host", 3306, "database"),
    "postgres://user:password@host/database": ("user", "password", "host", 5432, "database"),
    "  SCHEME://user:password@LocalHost/database\n": ("user", "password", "localhost", 0, "database"),
    "SCHEME://host/db": ("", "", "host", 0, "db"),
    "SCHEME://@host/db": ("", "", "host", 0, "db"),
    "SCHEME://user@host/db": ("user", "", "host", 0, "db"),
    "SCHEME://:secret@host/db": ("", "secret", "host", 0, "db"),
    "SCHEME://u:p@:/?#ss@h/db": ("u", "p@:/?#ss", "h", 0, "db"),
    "SCHEME://u:p?a=b&c@h/db": ("u", "p?a=b&c", "h", 0, "db"),
    "SCHEME://u:100%@h/db": ("u", "100%", "h", 0, "db"),
    "SCHEME://u:'p\"@h/db": ("u", "'p\"", "h", 0, "db"),
    "SCHEME://u:pä€😀@h/größe": ("u", "pä€😀", "h", 0, "größe"),
    "SCHEME://u%3Ax%40y:p%40%2F%3F%23%25%3A,@h/my%20db": ("u:x@y", "p@/?#%:,", "h", 0, "my db"),
    "SCHEME://u:p@[::1]/db": ("u", "p", "::1", 0, "db"),
    "SCHEME://u:p@[2001:db8::5]:3307/db": ("u", "p", "2001:db8::5", 3307, "db"),
    "SCHEME://u:p@h:65535/db": ("u", "p", "h", 65535, "db"),
    "postgresql://u:p@/db?host=/run/postgresql": ("u", "p", "/run/postgresql", 5432, "db"),
    "postgresql:///db?host=/run/postgresql": ("", "", "/run/postgresql", 5432, "db"),
    "postgresql://u@:5433/db?host=%2Ftmp": ("u", "", "/tmp", 5433, "db"),
    "postgresql://u@localhost/db?host=/tmp": ("u", "", "/tmp", 5432, "db"),
    "postgresql://%2Frun%2Fpostgresql:5433/db": ("", "", "/run/postgresql", 5433, "db"),
    "postgresql://u@h/db?host=h": ("u", "", "h", 5432, "db"),
    "postgresql:///db?host=Localhost": ("", "", "localhost", 5432, "db"),
    "postgresql:///db?host=2001:db8::5": ("", "", "2001:db8::5", 5432, "db"),
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
    "mysql?ssl-mode=preferred": ("preferred", "", False),
    "mysql?ssl-mode=REQUIRED": ("required", "", False),
    "mysql?ssl-mode=verify_identity": ("verify_identity", "", True),
    "mysql?&&ssl-ca=/etc/my%20ca.pem&": ("verify_identity", "/etc/my ca.pem", True),
    "mysql?ssl-ca=/etc/ca.pem&ssl-mode=required": ("required", "/etc/ca.pem", True),
    "postgresql": ("", "", False),
    "postgresql?sslmode=disable": ("disable", "", False),
    "postgresql?sslmode=ALLOW": ("allow", "", False),
    "postgresql?sslmode=require": ("require", "", False),
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
    "mysql://u:p@db.example.org/db": (False, "", "db.example.org:3306/db"),
    "mysql://u:p@localhost.example.org/db": (False, "", "localhost.example.org:3306/db"),
    "mysql://u:p@127.example.org/db": (False, "", "127.example.org:3306/db"),
    "mysql://u:p@127.0.0.1.example.org/db": (False, "", "127.0.0.1.example.org:3306/db"),
    "postgresql://u:p@localhost/db": (True, "", "localhost:5432/db"),
    "postgresql://u:p@h:5433/db": (False, "", "h:5433/db"),
    "postgresql://u:p@%2Ftmp%2F:5433/db": (True, "/tmp/.s.PGSQL.5433", "/tmp/.s.PGSQL.5433/db"),
    "postgresql:///db?host=/": (True, "/.s.PGSQL.5432", "/.s.PGSQL.5432/db"),
    "sqlite:///relative.db": (True, "", "relative.db"),
}


@pytest.mark.parametrize("text", PLACES)
def test_a_dsn_knows_what_stays_on_this_host_and_is_shown_by_its_place(text: str) -> None:
    dsn = parse_dsn(text)
    assert (dsn.is_loopback, dsn.unix_socket, dsn.place) == PLACES[text]
    assert repr(dsn) == f"Dsn({text.partition(':')[0]} {dsn.place})"


# ---- SQLite

FILES = {
    "sqlite:///relative.db": "relative.db",
    "sqlite:///var/taskserver.db": "var/taskserver.db",
    "sqlite:////absolute/path.db": "/absolute/path.db",
    "sqlite:///:memory:": ":memory:",
    " SQLite:///x.db\n": "x.db",
    "sqlite:///with%20space.db": "with space.db",
    "sqlite:///größe.db": "größe.db",
    "sqlite:///100%.db": "100%.db",
}


@pytest.mark.parametrize("text", FILES)
def test_an_sqlite_dsn_has_three_slashes_and_a_path(text: str) -> None:
    dsn, path = parse_dsn(text), FILES[text]
    assert dsn == Dsn("sqlite", path)
    assert dsn.is_verified
    assert dsn.database_file(Path("/site")) == (None if path == ":memory:" else Path("/site", path))
    assert parse_dsn("mysql://h/db").database_file(Path("/site")) is None


@pytest.mark.parametrize(
    ("query", "synchronous"),
    [("", "full"), ("?", "full"), ("?synchronous=full", "full"), ("?&synchronous=NORMAL&", "normal")],
)
def test_an_sqlite_dsn_says_what_a_commit_waits_for(query: str, synchronous: str) -> None:
    assert parse_dsn(f"sqlite:////a/what%3F.db{query}") == Dsn("sqlite", "/a/what?.db", synchronous)


# ---- a driver that is missing

NO_LIBPQ = (
    "no pq wrapper available.\\nAttempts made:\\n- couldn't import psycopg 'python' implementation: libpq not found"
)


@pytest.mark.parametrize("error", ["No module named 'psycopg'", NO_LIBPQ])
def test_without_psycopg_or_its_library_one_line_says_how_to_get_them(deployment: Deployment, error: str) -> None:
    (deployment.folder / "psycopg.py").write_text(f'raise ImportError("{error}")\n')
    deployment.write_env(TASKSERVER_DSN=f"postgresql://u:{SECRET}@127.0.0.1/shop")
    for program, code in ((deployment.worker(), 1), (deployment.client("status"), 1)):
        what = "psycopg finds no libpq (" if error == NO_LIBPQ else "psycopg 3.3 or newer is missing ("
        assert_one_line(program, code, what, "pip install", "'psycopg[binary]>=3.3,<4'")
        assert SECRET not in program.stderr


# ---- wrong ones

WRONG = {
    "": "no '://'",
    SECRET: "no '://'",
    f"u:{SECRET}@h/db": "no '://'",
    f"mysql:/u:{SECRET}@h/db": "no '://'",
    f"{SECRET}://u@h/db": "scheme",
    f"oracle://u:{SECRET}@h/db": "its scheme is none of mysql, postgresql, sqlite",
    f"http://u:{SECRET}@h/db": "scheme",
    f"TASKSERVER_DSN=mysql://u:{SECRET}@h/db": "scheme",
    f"mysql:host=h;dbname=db;password={SECRET}": "no '://'",
    f"postgresql+psycopg://u:{SECRET}@h/db": "its scheme is none of mysql, postgresql, sqlite",
    f"jdbc:postgresql://h/db?password={SECRET}": "its scheme is none of",
    "mysql://": "names no database",
    f"mysql://u:{SECRET}@h": "names no database",
    f"mysql://u:{SECRET}@h:3306/": "names no database",
    f"mysql://u:{SECRET}@h//db": "names no database",
    f"mysql://u:{SECRET}@h/db%2Ftable": "names no database",
    f"mysql://u:{SECRET}@/db": "names no host",
    f"mysql://u:{SECRET}@/db?unix_socket=": "it gives unix_socket no value",
    f"mysql://u:{SECRET}/db": "port",
    f"mysql://u:{SECRET}@h:port/db": "port",
    f"mysql://u:{SECRET}@h:0/db": "port",
    f"mysql://u:{SECRET}@h:65536/db": "port",
    f"mysql://u:{SECRET}@h:3306:3307/db": "port",
    f"mysql://u:{SECRET}@h:٣٣٠٦/db": "port",
    f"mysql://u:{SECRET}@h:0000000800000/db": "port",
    f"mysql://u:{SECRET}@::1/db": "",
    f"mysql://u:{SECRET}@[::1/db": "IPv6",
    f"mysql://u:{SECRET}@[::1]3306/db": "IPv6",
    f"mysql://u:{SECRET}@h/db?charset=utf8": "something other",
    f"mysql://u:x@h/db?{SECRET}": "something other",
    f"mysql://u:x@h/db?ssl-mode={SECRET}": "ssl-mode",
    f"mysql://u:{SECRET}@h/db?ssl-mode=verify_ca": "ssl-mode",
    f"mysql://h/db?u:{SECRET}@": "names no database",
    f"mysql://u:{SECRET}@h/db?ssl-mode=required&ssl-mode=disabled": "it gives ssl-mode twice",
    f"mysql://u:{SECRET}@h/db?ssl-ca=/a&ssl-ca=/b": "it gives ssl-ca twice",
    f"mysql://u:{SECRET}@h/db?ssl-ca=": "it gives ssl-ca no value",
    f"mysql://u:{SECRET}@h/db?ssl-mode&ssl-ca=/a": "it gives ssl-mode no value",
    f"mysql://u:{SECRET}@h/db?ssl-ca=/a&ssl-mode=preferred": "its ssl-ca is only for the ssl-modes required, v",
    f"mysql://u%00:{SECRET}@h/db": "a zero byte",
    f"mysql://u:{SECRET}@h/db\udce9": "no UTF-8",
    "postgresql://": "names no host",
    f"postgresql://u:{SECRET}@h": "names no database",
    f"postgresql://u:{SECRET}@h/a/b": "names no database",
    f"postgresql://u:{SECRET}@/db": "names no host: localhost as a rule, or the folder of a socket as ?host=/run/",
    "postgresql:///db": "names no host",
    f"postgresql://u:{SECRET}@/db?host=": "it gives host no value",
    f"postgresql://u:{SECRET}@%40abstract/db": "names no host",
    f"postgresql:///db?host={SECRET}@x": "names no database",
    f"postgresql://u:{SECRET}@h1,h2/db": "more than one host",
    f"postgresql://u:{SECRET}@h1:5432,h2:5433/db": "port",
    f"postgresql://u:{SECRET}@h1%2Ch2/db": "more than one host",
    f"postgresql://u:{SECRET}@/db?host=h1,h2": "more than one host",
    f"postgresql://u:{SECRET}@h1/db?host=h2": "one host before its '?' and another one behind it",
    f"postgresql://u:{SECRET}@h/db?host=/tmp": "one host before its '?' and another one behind it",
    f"postgresql://u:{SECRET}/db": "is the @ missing",
    f"postgresql://u:{SECRET}@h:port/db": "port",
    f"postgresql://u:{SECRET}@[::1/db": "IPv6",
    f"postgresql://u:{SECRET}@h/db?connect_timeout=3": "something other than host, sslmode, sslrootcert",
    f"postgresql://u:{SECRET}@h/db?sslmode=require&channel_binding=require": "something other than host",
    f"postgresql://u:{SECRET}@h/db?ssl-mode=required": "something other than host",
    f"postgresql://u:{SECRET}@h/db?a={SECRET}": "something other than host, sslmode, sslrootcert",
    f"postgresql://h/db?user=u&password={SECRET}": "something other than host",
    f"postgresql://u:x@h/db?sslmode={SECRET}": "its sslmode is none of disable, allow, prefer, require, verify-ca,",
    f"postgresql://u:{SECRET}@h/db?sslmode=": "it gives sslmode no value",
    f"postgresql://u:{SECRET}@h/db?sslmode=require&sslmode=allow": "it gives sslmode twice",
    f"postgresql://u:{SECRET}@h/db?sslmode=prefer&sslrootcert=/ca": "its sslrootcert is only for the sslmodes require",
    f"postgresql://u:{SECRET}@h/db?sslmode=verify-ca&sslrootcert=system": "is only for the sslmode verify-full",
    f"postgresql://u:x@h/db?sslrootcert={SECRET}": "neither an absolute path nor system",
    f"postgresql://u:{SECRET}@/db?host=/tmp&sslmode=require": "TLS, which a socket does not have",
    f"postgresql://u:{SECRET}@/db?host=/tmp&sslrootcert=/ca": "TLS, which a socket does not have",
    f"postgresql://u:{SECRET}%00@h/db": "a zero byte",
    f"postgresql://u:{SECRET}%E9@h/db": "no UTF-8",
    f"postgresql://u:{SECRET}@h/db\udce9": "no UTF-8",
    f"sqlite://{SECRET}.db": "three slashes",
    "sqlite://": "three slashes",
    "sqlite:///": "names no database file",
    "sqlite:///var/": "names no database file",
    "sqlite:///a\0b": "names no database file",
    "sqlite:///?synchronous=normal": "names no database file",
    "sqlite:///file:memorydb_default?mode=memory&cache=shared": "database in memory, which no other connection has: in",
    f"sqlite:///x.db?{SECRET}": "something other than synchronous; in the name of a file, a '?' is written %3F",
    f"sqlite:///x.db?synchronous={SECRET}": "its synchronous is none of full, normal",
    "sqlite:///x.db?synchronous=off": "its synchronous is none of full, normal",
    "sqlite:///x.db?synchronous=": "it gives synchronous no value",
    "sqlite:///x.db?synchronous=full&synchronous=normal": "it gives synchronous twice",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:60] or "nothing")
def test_a_wrong_dsn_is_refused_in_words_that_repeat_none_of_it(text: str, tmp_path: Path) -> None:
    openers: list[Callable[[str], object]] = [
        parse_dsn,
        TaskServer,
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


def test_the_programs_do_not_show_a_wrong_dsn(deployment: Deployment) -> None:
    deployment.write_env(TASKSERVER_DSN=f"mysql://u:p#{SECRET}@h:port/db")
    for program in (deployment.worker("--verbose"), deployment.client("status"), deployment.here("init")):
        assert program.returncode == 2
        assert program.stdout == ""
        assert len(program.stderr.splitlines()) == 1
        assert "TASKSERVER_DSN is wrong" in program.stderr
        assert SECRET not in program.stderr


# ---- what is shown of a right one


def shown(thing: object) -> str:
    return "\n".join(
        [repr(thing), str(thing), f"{thing}", f"{thing!a}", pprint.pformat([thing]), repr([thing, {1: thing}])]
    )


@pytest.mark.parametrize(
    ("text", "password"),
    [
        (f"mysql://user:{SECRET}@host/db", ""),
        ("mysql://user@host/db", SECRET),
        (f"mysql://user:a@{SECRET}@host/db", ""),
        (f"mysql://user:{SECRET}@/db?unix_socket=/run/x.sock", ""),
        (f"postgresql://user:{SECRET}@host/db", ""),
        ("postgresql://user@/db?host=/run/postgresql", SECRET),
    ],
)
def test_what_holds_a_dsn_shows_its_place_and_no_password(text: str, password: str, tmp_path: Path) -> None:
    dsn = parse_dsn(text, password)
    settings = load_settings(tmp_path, {"TASKSERVER_DSN": text, "TASKSERVER_PASSWORD": password})
    server = TaskServer(text, password=password)
    for thing in (
        dsn,
        dsn._replace(port=1),
        settings,
        settings._replace(mode="mark"),
        server,
        server.store,
        vars(server),
    ):
        assert SECRET not in shown(thing)
    assert dsn.place in repr(dsn)
    assert "/db" in repr(server)
    assert isinstance(settings, Settings)


def test_a_refused_login_is_told_without_the_password(mysql_server: MySQLServer) -> None:
    address = f"{mysql_server.host}:{mysql_server.port}"
    for password in (SECRET, f"{SECRET}%E9", f"{SECRET}€😀"):
        with (
            TaskServer(f"mysql://nobody_known:{password}@{address}/db") as server,
            pytest.raises(DatabaseError) as caught,
        ):
            server.add_task("tasks.send")
        assert SECRET not in everything_it_says(caught.value)


@pytest.mark.parametrize("way", ["percent-encoded", "as it is", "in single quotes"])
def test_an_odd_password_opens_the_database_however_it_is_written(
    mysql_server: MySQLServer, mysql_dsn: str, deployment: Deployment, way: str
) -> None:
    user = "odd_one"
    database = mysql_dsn.partition("?")[0].rpartition("/")[2]
    with mysql_server.connect(database=None) as connection:
        literal = connection.escape(ODD_PASSWORD)
    mysql_server.execute(
        f"DROP USER IF EXISTS {user}@'%'",
        f"CREATE USER {user}@'%' IDENTIFIED BY {literal}",
        f"GRANT ALL ON {database}.* TO {user}@'%'",
    )
    address = f"{mysql_server.host}:{mysql_server.port}/{database}"
    escaped = ODD_PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    if way == "percent-encoded":
        deployment.write_env(f"TASKSERVER_DSN=mysql://{user}:{quote(ODD_PASSWORD, safe='')}@{address}\n")
    elif way == "as it is":
        # A bare per cent sign followed by no two hexadecimal digits stands for itself.
        deployment.write_env(f"TASKSERVER_DSN='mysql://{user}:{escaped}@{address}'\n")
    else:
        deployment.write_env(f"TASKSERVER_DSN=mysql://{user}@{address}\nTASKSERVER_PASSWORD='{escaped}'\n")
    try:
        init = deployment.here("init")
        assert init.returncode == 0, init.stderr
        assert ODD_PASSWORD not in init.stdout
    finally:
        mysql_server.execute(f"DROP USER {user}@'%'")


# ---- whatever is written

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


@given(user=TEXTS, password=TEXTS, database=TEXTS.filter(lambda text: text and "/" not in text))
def test_percent_encoded_parts_come_back_exactly(user: str, password: str, database: str) -> None:
    assume("\0" not in user + password + database)
    for scheme in ("mysql", "postgresql"):
        parts = [quote(part, safe="") for part in (user, password, database)]
        dsn = parse_dsn("{}://{}:{}@h/{}".format(scheme, *parts))
        assert (dsn.user, dsn.password, dsn.host, dsn.database) == (user, password, "h", database)


@given(st.binary(max_size=30))
def test_percent_encoded_bytes_come_back_exactly(password: bytes) -> None:
    dsn = parse_dsn(f"mysql://u:{quote_from_bytes(password, safe='')}@h/db")
    assert dsn.password.encode("utf-8", "surrogateescape") == password


@given(st.text(max_size=30).filter(lambda text: "%" not in text))
def test_a_password_without_per_cent_signs_needs_no_encoding(password: str) -> None:
    assert parse_dsn(f"mysql://u:{password}@h/db").password == password


@given(st.text(max_size=30))
def test_a_password_of_its_own_needs_no_encoding_at_all(password: str) -> None:
    assert parse_dsn("mysql://u@h/db", password).password == password


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
HOSTS = st.sampled_from(["localhost", "db.example.org", "127.0.0.1", "[::1]", "%2Frun%2Fpostgresql"])
PORTS = st.one_of(st.just(""), st.integers(1, 65535).map(":{}".format))
QUERIES = st.sampled_from(["", "?sslmode=disable", "?sslmode=prefer", "?host=", "?host=/tmp&sslmode=allow"])


def test_libpq_takes_a_dsn_for_the_same_as_we_do() -> None:
    from psycopg.conninfo import conninfo_to_dict

    @given(user=NAMES, password=NAMES, host=HOSTS, port=PORTS, database=NAMES, query=QUERIES)
    def compare(user: str, password: str, host: str, port: str, database: str, query: str) -> None:
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        text = f"postgresql://{login}@{host}{port}/{quote(database, safe='')}{query}"
        try:
            ours = parse_dsn(text)
        except SettingError:
            assert "/" in database or "host=" in query  # which libpq would take
            return
        theirs = conninfo_to_dict(text)
        named = [str(theirs[key]) for key in ("user", "password", "host", "dbname")]
        assert named == [ours.user, ours.password, ours.host, ours.database]
        assert (theirs.get("port", "5432"), theirs.get("sslmode", "")) == (str(ours.port), ours.tls_mode)

    compare()


SCRAPS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            *("mysql", "sqlite", "mariadb", "://", "mysql://", "sqlite:///", ":", "/", "//", "@", "?", "#", "%"),
            *("%00", "%E9", "&", "=", "[", "]", "::1", "h", "db", "u", ":3306", "0" * 30, "9" * 5000, "ssl-mode="),
            *("unix_socket=", "\0", "ssl-ca=", "required", "\udce9", "²", "\n", " ", ",", "%2F", "host=", "sslmode="),
            *("postgresql://", "postgres", "pgsql:", "dbname=", "sslrootcert=", "verify-full", "system", "/run"),
        ]
    ),
)


@given(st.lists(SCRAPS, max_size=12).map("".join), st.lists(SCRAPS, max_size=12).map("".join))
def test_no_text_raises_anything_but_a_setting_error_and_none_echoes_it(before: str, after: str) -> None:
    for text in (
        before + SECRET + after,
        f"mysql://{before}{SECRET}{after}",
        f"mysql://u:{before}{SECRET}{after}@h/db",
        f"postgresql://{before}{SECRET}{after}",
        f"postgresql://u:{before}{SECRET}{after}@h/db",
    ):
        said = ""
        try:
            dsn = parse_dsn(text)
            if SECRET in dsn.password:
                said = shown(dsn)
        except SettingError as error:
            said = everything_it_says(error)
        assert SECRET not in said


@given(st.text())
def test_a_text_of_any_kind_is_a_dsn_or_a_setting_error(text: str) -> None:
    with contextlib.suppress(SettingError):
        parse_dsn(text)
