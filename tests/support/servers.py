"""Real database servers for tests and benchmarks.

MariaDB: a private one in a temporary folder, that may be killed and started again (postgresql.py has another).
ExternalServer: one that somebody else runs, named by TASKSERVER_TEST_MYSQL=mysql://root@127.0.0.1:13357/.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pymysql
import pytest
from pymysql.constants import ER

PROGRAM_FOLDERS = os.pathsep.join(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
UNPACKED = [str(folder) for folder in Path(__file__).resolve().parents[2].glob(".servers/*/usr/sbin")]
NOBODY = 65534
IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
START_SECONDS = 60.0
STOP_SECONDS = 60.0
FAST = ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-doublewrite=0"]
"""Not durable: nothing is flushed to the disk."""
FAST += ["--innodb-use-native-aio=0"]  # of which the kernel lets one user have only so much, for all servers


def without(what: str) -> NoReturn:
    """Ends a test that needs what this machine lacks."""
    if IN_CI:
        pytest.fail(f"{what}; in CI that is a failure", pytrace=False)
    pytest.skip(f"{what}; make test installs it on Debian and Ubuntu")


def needs_version(version: str, **least: tuple[int, int]) -> None:
    """Ends a test on a server that is older, by its VERSION() and the least one of mysql, mariadb and postgresql."""
    kind = next((kind for kind in ("mariadb", "postgresql") if kind in version.lower()), "mysql")
    major, minor, *_ = map(int, re.findall(r"\d+", version))
    if (major, minor) < least[kind]:
        pytest.skip(f"{kind} {version} is older than {least[kind]}")


def find_program(name: str) -> str | None:
    """Path of a server's program, also outside of an ordinary user's PATH: in /usr/sbin, or unpacked in .servers."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), PROGRAM_FOLDERS, *UNPACKED]))


def missing_programs() -> list[str]:
    """What MariaDB() would miss on this machine; my_print_defaults is called by mariadb-install-db."""
    return [name for name in ("mariadbd", "mariadb-install-db", "my_print_defaults") if find_program(name) is None]


def free_port() -> int:
    """A port of 127.0.0.1 that is free now; below 32768, since the system hands out those above by itself."""
    while True:
        port = random.randrange(15000, 32768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def plain_connection(**options: Any) -> pymysql.Connection[Any]:
    """A connection of PyMySQL's, with TLS where the login takes it: to read this machine's certificates costs 27 ms."""
    try:
        return pymysql.connect(**({"ssl_disabled": True} | options))
    except (RuntimeError, pymysql.OperationalError) as error:  # RuntimeError: PyMySQL lacks a package to encrypt with
        if isinstance(error, pymysql.OperationalError) and error.args[0] != ER.ACCESS_DENIED_ERROR:
            raise
        return pymysql.connect(**options)


class Server:
    """What a test asks of a database server."""

    scheme: str
    host = "127.0.0.1"
    port: int
    user: str
    password = ""
    quoted: str
    """How a name is quoted."""

    def dsn(self, database: str, **query: str) -> str:
        """TASKSERVER_DSN for a database of this server."""
        options = "&".join(f"{key}={quote(value, safe='/')}" for key, value in query.items())
        return f"{self.scheme}://{self.login}@{self.host}:{self.port}/{database}" + (f"?{options}" if options else "")

    @property
    def login(self) -> str:
        """User and password, as in a DSN."""
        return quote(self.user, safe="") + (":" + quote(self.password, safe="") if self.password else "")

    def execute(self, *statements: str, database: str | None = None) -> Any:
        """Runs statements on a new connection; the rows of the last one."""
        raise NotImplementedError

    def create_database(self, name: str | None = None) -> str:
        """Creates an empty database with the server's own defaults: its character set need not be utf8mb4."""
        name = name or f"t_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {self.quoted.format(name)}")
        return name

    def drop_database(self, name: str) -> None:
        """Drops it, though connections that a test left open are still in it."""
        raise NotImplementedError

    @contextmanager
    def database(self) -> Iterator[str]:
        """The name of a fresh database, dropped at the end."""
        name = self.create_database()
        try:
            yield name
        finally:
            self.drop_database(name)

    def be(self, dsn: str, port: int) -> None:
        """The server at this place. Databases named t_… come and go in it; it is never stopped."""
        parts = urlsplit(dsn)
        self.host, self.port = parts.hostname or self.host, parts.port or port
        self.user, self.password = unquote(parts.username or self.user), unquote(parts.password or "")


class MySQLServer(Server):
    """A MySQL or MariaDB."""

    scheme = "mysql"
    user = "root"
    quoted = "`{}`"

    def connect(self, **kwargs: Any) -> pymysql.Connection[Any]:
        """A connection of its own, independent of taskserver's code; autocommit unless asked otherwise."""
        place = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        return plain_connection(**(place | {"charset": "utf8mb4", "autocommit": True} | kwargs))

    def meet(self, user: str, password: str) -> None:
        """Log in once: newer servers of MySQL then know the password, and ask for it no more."""
        self.connect(user=user, password=password).close()

    def execute(self, *statements: str, database: str | None = None) -> tuple[tuple[Any, ...], ...]:
        with self.connect(database=database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return tuple(cursor.fetchall())

    def drop_database(self, name: str) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (connection_id,) in cursor.fetchall():
                with suppress(pymysql.MySQLError):  # it went away by itself
                    cursor.execute(f"KILL {connection_id}")  # it may hold a lock on a table
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def count_lock_waits(self) -> int:
        """How many transactions wait for a row's lock."""
        time.sleep(0.11)  # InnoDB updates what it shows only if nobody has looked for 0.1 s
        return len(self.execute("SELECT trx_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))

    @contextmanager
    def set_globally(self, **variables: object) -> Iterator[None]:
        """In the `with`, variables of the server that new connections begin with."""
        before = {name: self.execute(f"SELECT @@GLOBAL.{name}")[0][0] for name in variables}
        try:
            self.execute(*(f"SET GLOBAL {name} = {value!r}" for name, value in variables.items()))
            yield
        finally:
            self.execute(*(f"SET GLOBAL {name} = {value!r}" for name, value in before.items()))


class ExternalServer(MySQLServer):
    """A server that runs already."""

    def __init__(self, dsn: str) -> None:
        self.be(dsn, 3306)


Private = TypeVar("Private", bound="PrivateServer")


class PrivateServer(Server):
    """A server of ours on 127.0.0.1, in its own folder in /tmp, of an unprivileged user.

    Its superuser has a password: without one, every account of this machine could have it write files as that user.
    """

    stop_signal = signal.SIGTERM
    path = PROGRAM_FOLDERS
    """Where it finds the programs that it runs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.password = secrets.token_hex(16)
        # Not below pytest's own folder, which root's nobody may not enter; and a socket's path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="taskserver-db-", dir="/tmp"))
        try:
            if os.getuid() == 0:
                os.chown(self.folder, NOBODY, NOBODY)
            for command in self._installing():
                if self._launch(command).wait(START_SECONDS) != 0:
                    raise RuntimeError(self._last_words())
            self.port = free_port()
            self.start()
        except BaseException:
            self.remove()
            raise

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "the server was stopped"
        return self._process.pid

    @property
    def tree(self) -> list[int]:
        """Process ids of all its processes."""
        return [self.pid]

    def start(self) -> None:
        """Starts it on the same folder and port; returns once it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        self._process = self._launch(self._command())
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{self._last_words()}")
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL: connections break, nothing is flushed, a start() recovers."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """An orderly shutdown."""
        self._end(self.stop_signal)

    def freeze(self) -> None:
        """SIGSTOP for each of its processes: it takes connections, as the kernel does that, and answers nothing."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def remove(self) -> None:
        """Ends it, without ceremony, and removes its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self: Private) -> Private:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _installing(self) -> list[list[str]]:
        """Commands that write the server's own tables, with the superuser's password, or what sets it at the start."""
        raise NotImplementedError

    def _command(self) -> list[str]:
        """The server's program and its options."""
        raise NotImplementedError

    def _answers(self) -> bool:
        """Whether one can log in now, by the socket: another server may have got the port that ours failed to get."""
        raise NotImplementedError

    def _signal_all(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def _launch(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Starts a program of the server, as nobody where we are root, in an empty environment.

        A test run that is killed takes its server with it (--pdeathsig). The kernel counts the end of the
        thread that started it as the parent's end, so only the main thread can ask for that.
        """
        drop = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
        if find_program("setpriv") and threading.current_thread() is threading.main_thread():
            drop.append("--pdeathsig=KILL")
        with open(self.folder / "out.log", "ab") as output:
            return subprocess.Popen(
                [*(["setpriv", *drop] if drop else []), *command],
                cwd=self.folder,
                # A temporary folder of its own: servers that start at once delete each other's temporary tables.
                env={"PATH": self.path, "HOME": str(self.folder), "TMPDIR": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for pytest, which stops the server in its own time
            )

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STOP_SECONDS)
            self._process = None

    def _last_words(self) -> str:
        return "\n".join((self.folder / "out.log").read_text(errors="replace").splitlines()[-30:])


class MariaDB(PrivateServer, MySQLServer):
    """A private MariaDB.

    durable: leave flushing as MariaDB's default has it, for crash tests and benchmarks.
    extra_args: more options of mariadbd, after ours, so that they win.
    """

    def __init__(self, durable: bool = False, *extra_args: str) -> None:
        if missing := missing_programs():
            raise FileNotFoundError(f"MariaDB is not installed: {', '.join(missing)} not found")
        self._options = ([] if durable else FAST) + list(extra_args)
        super().__init__()

    @property
    def socket(self) -> Path:
        """The Unix socket that the server listens on too."""
        return self.folder / "s.sock"

    def _installing(self) -> list[list[str]]:
        """--force: even on a host whose own name does not resolve. The folder is open to its own user alone."""
        (self.folder / "init.sql").write_text(
            f"SET PASSWORD FOR root@localhost = PASSWORD('{self.password}');\n"
            f"SET PASSWORD FOR root@127.0.0.1 = PASSWORD('{self.password}');\n"
            "DELETE FROM mysql.global_priv WHERE user = '' OR host NOT IN ('localhost', '127.0.0.1');\n"
            "FLUSH PRIVILEGES;\n"
        )
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", "--force"]
        return [[*self._program("mariadb-install-db"), *options, *FAST]]

    def _command(self) -> list[str]:
        options = [f"--socket={self.socket}", f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-log-bin"]
        options += [f"--pid-file={self.folder}/pid", f"--init-file={self.folder}/init.sql", "--skip-name-resolve"]
        options += ["--innodb-buffer-pool-size=128M", "--innodb-log-file-size=16M", "--performance-schema=OFF"]
        return [*self._program("mariadbd"), *options, *self._options]

    def _program(self, name: str) -> list[str]:
        return [find_program(name) or name, "--no-defaults", f"--datadir={self.folder}/data"]

    def _answers(self) -> bool:
        try:
            self.connect(unix_socket=str(self.socket), connect_timeout=2).close()
        except pymysql.MySQLError:
            return False
        return True


class Certificates(NamedTuple):
    """A certificate for 127.0.0.1 and localhost, signed by `authority`; `stranger` signed nothing of it."""

    authority: Path
    stranger: Path
    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """For a server of TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


@contextmanager
def made_certificates() -> Iterator[Certificates]:
    """In the `with`, fresh certificates."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    with tempfile.TemporaryDirectory(prefix="taskserver-tls-", dir="/tmp") as name:
        folder = Path(name)

        def openssl(arguments: str, *more: str) -> None:
            command = ["openssl", *arguments.split(), *more]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)

        for who in ("authority", "stranger"):
            openssl(f"req -x509 -days 2 -subj /CN={who} -keyout {who}.key -out {who}.pem", *key)
        openssl("req -subj /CN=server -keyout server.key -out server.csr", *key)
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signed = "-CA authority.pem -CAkey authority.key -CAcreateserial -days 2 -extfile names"
        openssl(f"x509 -req -in server.csr -out server.pem {signed}")
        if os.getuid() == 0:
            folder.chmod(0o755)
            os.chown(folder / "server.key", NOBODY, NOBODY)
        files = [folder / name for name in ("authority.pem", "stranger.pem", "server.pem", "server.key")]
        yield Certificates(*files)
