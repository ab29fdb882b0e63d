"""A private cluster of Galera: three MariaDB servers on 127.0.0.1, which share all that is written.

    with Galera() as cluster:
        dsn = cluster.dsn(cluster.create_database())        # names the three hosts
        cluster.nodes[0].kill()         # SIGKILL; the others continue
        cluster.nodes[0].start()        # it catches up from another's cache (IST), or gets a copy (SST)
        cluster.nodes[1].bootstrap()    # what is left of a cluster that lost its quorum serves again

`make test-galera` and `make test-long` install what it needs.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql

from tests.support.rows import Rows
from tests.support.servers import NOBODY, PROGRAM_FOLDERS, START_SECONDS, MariaDB, find_program, missing_programs

NODES = 3
LIBRARY = Path("/usr/lib/galera/libgalera_smm.so")
SCRIPTS = Path(__file__).resolve().parents[2] / ".servers/mariadb-server/usr/bin"
"""These copy a node's data to another one."""
DURABLE = ("--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=fsync", "--innodb-doublewrite=1")
"""Options of nodes that flush, as one server does by its defaults."""
TIMEOUTS = "evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT2S"
"""Of docs/cluster.md: the others continue without a node that has not answered for two seconds."""
SYNCED = 4
STATE = """
    SELECT variable_name, variable_value FROM information_schema.global_status
    WHERE variable_name IN ('wsrep_ready', 'wsrep_local_state', 'wsrep_cluster_size')
"""


def missing_parts() -> list[str]:
    """What Galera() would miss on this machine."""
    programs = [name for name in ("rsync", "setpriv") if find_program(name) is None]
    return [*missing_programs(), *programs, *(str(path) for path in (LIBRARY, SCRIPTS) if not path.exists())]


def free_ports(count: int) -> int:
    """The first of so many ports of 127.0.0.1 in a row that are free now."""
    while True:
        first = random.randrange(15000, 32768 - count)
        with ExitStack() as probes, suppress(OSError):
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


LOST_CONFLICTS = """
    SELECT SUM(variable_value) FROM information_schema.global_status
    WHERE variable_name IN ('wsrep_local_cert_failures', 'wsrep_local_bf_aborts')
"""


class Node(MariaDB):
    """One server of a cluster."""

    def __init__(self, cluster: Galera, number: int, extra_args: Sequence[str] = ()) -> None:
        self.number = number
        self.path = f"{cluster.scripts}{os.pathsep}{PROGRAM_FOLDERS}"
        self._cluster = cluster
        self._group_port = free_ports(3)
        self._is_first = number == 0
        super().__init__(False, *extra_args)

    def start(self) -> None:
        """Start it, and wait until it serves; it joins the cluster, unless it is the first one."""
        self.password = self._cluster.password
        super().start()
        self._is_first = False

    def state(self) -> dict[str, str]:
        """`wsrep_ready`, `wsrep_local_state` and `wsrep_cluster_size`; empty if it does not answer."""
        try:
            with self.connect(connect_timeout=2, read_timeout=2) as connection, connection.cursor() as cursor:
                cursor.execute(STATE)
                return {str(name).lower(): str(value) for name, value in cursor.fetchall()}
        except pymysql.MySQLError:
            return {}

    def serves(self) -> bool:
        state = self.state()
        return state.get("wsrep_ready") == "ON" and state.get("wsrep_local_state") == f"{SYNCED}"

    def bootstrap(self) -> None:
        """What is left of the cluster serves again. Of several nodes, only the one that knows most may do this."""
        self.execute("SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'")

    def forget(self) -> None:
        """While it is down: from now on it knows nothing of its data, so that it gets a copy (SST) at its start."""
        for name in ("grastate.dat", "gvwstate.dat", "galera.cache"):
            (self.folder / "data" / name).unlink(missing_ok=True)

    def rows(self, database: str) -> Rows:
        return Rows(self.dsn(database))

    def lost_conflicts(self) -> int:
        """How many of its transactions were rolled back in favour of another node's."""
        return int(self.execute(LOST_CONFLICTS)[0][0])

    def log(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._group_port}"

    def _installing(self) -> list[list[str]]:
        return [["cp", "-a", f"{self._cluster.template}", f"{self.folder}/data"]]

    def _command(self) -> list[str]:
        port = self._group_port
        options = [
            f"base_port={port}",
            f"gmcast.listen_addr=tcp://{self.address}",
            f"ist.recv_addr=127.0.0.1:{port + 1}",
        ]
        options += ["gcache.size=32M", TIMEOUTS]
        own = [option for option in super()._command() if not option.startswith(("--init-file", "--skip-log-bin"))]
        own += [
            f"--server-id={self.number + 1}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--wsrep-on=ON",
        ]
        own += [f"--wsrep-provider={LIBRARY}", "--wsrep-cluster-name=tests", f"--wsrep-node-name=n{self.number + 1}"]
        own += [f"--wsrep-node-address={self.address}", f"--wsrep-provider-options={';'.join(options)}"]
        own += ["--wsrep-sst-method=rsync", f"--wsrep-sst-receive-address=127.0.0.1:{port + 2}"]
        if self._is_first:
            return [*own, "--wsrep-cluster-address=gcomm://", "--wsrep-new-cluster"]
        others = ",".join(node.address for node in self._cluster.nodes if node is not self)
        return [*own, f"--wsrep-cluster-address=gcomm://{others}", *self._position(own)]

    def _position(self, options: Sequence[str]) -> list[str]:
        """Up to where its data goes: what it lacks is sent to it, and not all of it."""
        known = self.folder / "data" / "grastate.dat"
        if not known.exists():
            return []
        self._launch([*options, "--wsrep-cluster-address=gcomm://", "--wsrep-recover"]).wait(START_SECONDS)
        found = re.findall(r"WSREP: Recovered position: (\S+)", self.log())
        return [f"--wsrep-start-position={found[-1]}"] if found else []

    def _answers(self) -> bool:
        return self.serves()


class Galera:
    """Three nodes. Their superuser has a password, as that of a server of its own."""

    def __init__(self, *extra_args: str) -> None:
        """extra_args: more options of each mariadbd."""
        if missing := missing_parts():
            raise FileNotFoundError(f"Galera is not installed: {', '.join(missing)} not found")
        self.nodes: list[Node] = []
        self._folder = Path(tempfile.mkdtemp(prefix="taskserver-db-", dir="/tmp"))
        self._folder.chmod(0o755)
        self.scripts = self._folder / "bin"
        try:
            self.scripts.mkdir()
            for name in ("wsrep_sst_common", "wsrep_sst_rsync"):  # root's nobody may not enter the checkout
                shutil.copy2(SCRIPTS / name, self.scripts)
            with MariaDB() as template:
                self.password = template.password
                template.stop()
                self.template = self._folder / "data"
                shutil.copytree(template.folder / "data", self.template)
            if os.getuid() == 0:
                for path in (self.template, *self.template.rglob("*")):
                    os.chown(path, NOBODY, NOBODY)
            for number in range(NODES):
                self.nodes.append(Node(self, number, extra_args))
        except BaseException:
            self.remove()
            raise

    def dsn(self, database: str, order: Iterable[int] = range(NODES), **query: str) -> str:
        """TASKSERVER_DSN with the hosts of these nodes, in this order."""
        hosts = ",".join(f"{self.nodes[number].host}:{self.nodes[number].port}" for number in order)
        node = self.nodes[0]
        return node.dsn(database, **query).replace(f"{node.host}:{node.port}", hosts)

    def create_database(self) -> str:
        return self.serving()[0].create_database()

    def execute(self, *statements: str, database: str | None = None) -> Any:
        """Runs statements on a node that serves; the rows of the last one."""
        return self.serving()[0].execute(*statements, database=database)

    def serving(self) -> list[Node]:
        """The nodes that serve now; waits for one."""
        deadline = time.monotonic() + START_SECONDS
        while not (found := [node for node in self.nodes if node.serves()]):
            assert time.monotonic() < deadline, "no node serves"
            time.sleep(0.05)
        return found

    def await_all(self) -> None:
        """Until each node serves, in one cluster."""
        deadline = time.monotonic() + START_SECONDS
        while {node.state().get("wsrep_cluster_size") for node in self.serving()} != {f"{NODES}"} or not all(
            node.serves() for node in self.nodes
        ):
            assert time.monotonic() < deadline, [node.state() for node in self.nodes]
            time.sleep(0.1)

    @contextmanager
    def lagging(self, node: Node, database: str) -> Iterator[Callable[[], object]]:
        """In the `with`, or until the call, a node applies nothing of the others; its own commits wait for that."""
        other = next(one for one in self.nodes if one is not node)
        made = "CREATE TABLE IF NOT EXISTS small (id INT PRIMARY KEY, x INT)", "REPLACE INTO small VALUES (1, 0)"
        other.execute(*made, database=database)
        with closing(node.rows(database)) as holder:
            deadline = time.monotonic() + START_SECONDS
            while not holder.execute("SHOW TABLES LIKE 'small'"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            holder.execute("LOCK TABLES small READ")
            other.execute("UPDATE small SET x = x + 1", database=database)
            yield lambda: holder.execute("UNLOCK TABLES")

    def heal(self) -> None:
        """Each node runs and serves, whatever was done to them."""
        for node in self.nodes:
            with suppress(AssertionError):
                node.thaw()
            for usual in ("SET GLOBAL wsrep_desync = OFF", "SET GLOBAL read_only = 0"):
                with suppress(pymysql.MySQLError, AssertionError):
                    node.execute(usual)
        if not any(node.serves() for node in self.nodes) and (left := [node for node in self.nodes if node.state()]):
            left[0].bootstrap()
        for node in self.nodes:
            node.start()
        self.await_all()

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Galera:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()
