"""A MySQL or MariaDB of a recipe, unpacked, installed, started and stopped in a temporary folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pymysql

from tests.contract.other_servers.fetch import NotHad, unpack
from tests.contract.other_servers.recipes import Recipe
from tests.contract.other_servers.unpacked import Unpacked
from tests.support.servers import (
    NOBODY,
    PORT_ATTEMPTS,
    PROGRAM_FOLDERS,
    START_SECONDS,
    STOP_SECONDS,
    MySQLServer,
    find_program,
    free_port,
)

INSTALL_SECONDS = 300.0
USER_EXISTS = 1396

# Files that make a server's own tables, in this order; MariaDB calls them mariadb_… since version 11.
TABLES = ("_system_tables.sql", "_performance_tables.sql", "_system_tables_data.sql")
# What these files ask for: root with an empty password rather than by the socket's owner.
BEFORE_TABLES = """CREATE DATABASE mysql;
USE mysql;
SET @auth_root_socket = NULL;
SET @current_hostname = 'localhost';
SET @skip_auth_anonymous = 1;
"""


class OtherMySQL(MySQLServer):
    """Runs from `with` to its end: on a free port of 127.0.0.1, as nobody where we are root, its own defaults kept."""

    host = "127.0.0.1"
    user = "root"
    password = ""

    def __init__(self, recipe: Recipe, cache: Path) -> None:
        self._recipe = recipe
        self._cache = cache
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OtherMySQL:
        # Not in the checkout, which root's nobody may not enter; and a socket's path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix=f"taskserver-{self._recipe.name}-", dir="/tmp"))
        self.folder.chmod(0o755)
        try:
            self._install()
            self._start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()

    @property
    def version(self) -> str:
        """As the server gives it."""
        return str(self.execute("SELECT VERSION()")[0][0])

    @property
    def environment(self) -> Mapping[str, str]:
        return {"TASKSERVER_TEST_MYSQL": self.dsn("")}

    def _install(self) -> None:
        unpack(self._recipe, self._cache, self._files.folder)
        for name in ("data", "tmp"):
            (self._own / name).mkdir(parents=True)
        if os.getuid() == 0:
            for folder in (self._own, self._own / "data", self._own / "tmp"):
                os.chown(folder, NOBODY, NOBODY)
        if self._recipe.initializes_itself:
            self._run_to_end("", "--initialize-insecure")
        else:
            self._run_to_end(BEFORE_TABLES + self._tables(), "--bootstrap")

    def _start(self) -> None:
        """On another port if it fails: one that was free when we looked may be taken by now."""
        for _ in range(PORT_ATTEMPTS):
            self.port = free_port()
            self._process = self._launch(
                subprocess.DEVNULL,
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                f"--socket={self._socket}",
                f"--pid-file={self._own}/pid",
                "--skip-log-bin",
                "--skip-name-resolve",
                "--performance-schema=OFF",
                "--innodb-flush-log-at-trx-commit=0",
            )
            if self._answers():
                self._let_root_in()
                return
            self._stop()
        raise NotHad(f"it did not start: {self._last_words()}")

    def _answers(self) -> bool:
        """Waits for it; the socket is ours alone, whoever listens on the port."""
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self._connect_to_socket().close()
                return True
            except pymysql.MySQLError:
                time.sleep(0.05)
        return False

    def _let_root_in(self) -> None:
        """From 127.0.0.1 too, without a password."""
        with self._connect_to_socket() as connection, connection.cursor() as cursor:
            try:
                cursor.execute("CREATE USER 'root'@'127.0.0.1'")
            except pymysql.MySQLError as error:
                if error.args[0] != USER_EXISTS:
                    raise
            cursor.execute("GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION")

    def _connect_to_socket(self) -> pymysql.Connection[Any]:
        return self.connect(unix_socket=str(self._socket), connect_timeout=2)

    def _stop(self) -> None:
        """An orderly shutdown; only a server that hangs is killed."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _remove(self) -> None:
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- places

    @property
    def _files(self) -> Unpacked:
        return Unpacked(self.folder / "files")

    @property
    def _own(self) -> Path:
        """What the server writes."""
        return self.folder / "own"

    @property
    def _socket(self) -> Path:
        return self._own / "s.sock"

    def _tables(self) -> str:
        folder = self._files.find(f"m*{TABLES[0]}").parent
        files = [path for end in TABLES for path in folder.glob(f"m*{end}")]
        return "".join(path.read_text(encoding="utf-8") for path in files)

    def _command(self) -> list[str]:
        program = self._files.folder / self._recipe.program
        base = program.parent.parent if program.parent.name == "sbin" else program.parent
        words = self._files.find("english/errmsg.sys").parent.parent
        return [
            *self._files.command(program),
            "--no-defaults",
            f"--basedir={base}",
            f"--lc-messages-dir={words}",
            f"--character-sets-dir={words}/charsets",
            f"--datadir={self._own}/data",
            f"--tmpdir={self._own}/tmp",
            *self._recipe.options,
        ]

    # ---- processes

    def _launch(self, stdin: int, *options: str) -> subprocess.Popen[bytes]:
        """Starts the program; if this run is killed, it goes too (--pdeathsig)."""
        drop = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
        setpriv = find_program("setpriv")
        if setpriv is None:
            raise NotHad("setpriv of util-linux is not installed")
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [setpriv, *drop, "--pdeathsig=KILL", *self._command(), *options],
                cwd=self._own,
                env={"PATH": PROGRAM_FOLDERS, "HOME": str(self._own)},
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us, who stop it in our own time
            )

    def _run_to_end(self, text: str, option: str) -> None:
        """Feeds the program with a text until it ends."""
        process = self._process = self._launch(subprocess.PIPE, option)
        try:
            process.communicate(text.encode(), timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise NotHad(f"it did not make its tables in {INSTALL_SECONDS:.0f} s") from None
        if process.returncode != 0:
            raise NotHad(f"it could not make its tables: {self._last_words()}")

    def _last_words(self) -> str:
        """The last error in the server's log, or what was said last."""
        lines = (self.folder / "log").read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()] or ["it did not say why"]
        errors = [line for line in said if "ERROR" in line and "Aborting" not in line]
        return (errors or said)[-1]
