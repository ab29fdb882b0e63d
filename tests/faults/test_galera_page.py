"""docs/cluster.md on a real cluster: its options, its accounts and addresses, and its HAProxy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError
from tests.support.deployment import Deployment
from tests.support.documents import blocks
from tests.support.galera import TIMEOUTS, Galera
from tests.support.processes import wait_until
from tests.support.rows import Rows
from tests.support.servers import find_program, free_port, without

pytestmark = pytest.mark.long

OF_EACH_SITE = {"bind_address", "wsrep_node_address", "wsrep_cluster_address", "wsrep_cluster_name"}
BLOCKS = {block.kind: block.text for block in reversed(blocks("docs/cluster.md"))}
"""The first of each kind."""


def here(text: str, cluster: Galera, name: str = "you_queue") -> str:
    """The words of the page, as they are on this machine."""
    for node, address in zip(cluster.nodes, ("10.0.0.1", "10.0.0.2", "10.0.0.3"), strict=True):
        text = text.replace(f"{address}:3306", address).replace(address, f"127.0.0.1:{node.port}")
    return text.replace("10.0.0.%", "127.0.0.%").replace("you_queue", name)


def test_its_options_are_those_of_the_cluster_that_the_tests_kill(cluster: Galera) -> None:
    options = dict(line.split(" = ", 1) for line in BLOCKS["ini"].splitlines()[1:])
    *_, keepalive, suspect = options.pop("wsrep_provider_options").strip('"').split(";")
    assert f"{keepalive};{suspect}" == TIMEOUTS
    shared = {name: value for name, value in options.items() if name not in OF_EACH_SITE}
    for name, value in shared.items():
        ((used,),) = cluster.execute(f"SELECT @@{name}")
        assert str(used) == {"ON": "1"}.get(value, value), name


def test_its_accounts_and_addresses_lead_to_a_queue_on_all_hosts(cluster: Galera, deployment: Deployment) -> None:
    first, *others = cluster.nodes
    try:
        first.execute(*filter(str.strip, here(BLOCKS["sql"], cluster).split(";")))
        deployment.write_env(here(BLOCKS["dotenv"], cluster))
        assert deployment.client("init").returncode == 0
        assert BLOCKS["text"] in deployment.client("doctor").stdout
        others[0].kill()
        found = deployment.client("doctor").stdout
        assert "2 of 3 hosts serve, in a Galera cluster of" in found
        assert f"127.0.0.1:{others[0].port}/you_queue: " in found
    finally:
        cluster.heal()
        first.execute("DROP DATABASE you_queue", "DROP USER 'you_worker'@'127.0.0.%'")


def test_its_bootstrap_is_the_one_that_the_tests_use(cluster: Galera) -> None:
    assert "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'" in blocks("docs/cluster.md")[-1].text


@contextmanager
def haproxy(cluster: Galera, folder: Path) -> Iterator[int]:
    """With the page's settings; the port that it listens to."""
    program = find_program("haproxy")
    if program is None:
        without("haproxy is not installed")
    port, check = free_port(), folder / "galera-check"
    login = folder / "galera-check.cnf"
    login.write_text(f"[client]\nuser={cluster.nodes[0].user}\npassword={cluster.nodes[0].password}\n")
    check.write_text(BLOCKS["sh"].replace("/etc/galera-check.cnf", str(login)))
    check.chmod(0o755)
    settings = here(BLOCKS["haproxy"], cluster).replace("/usr/local/bin/galera-check", str(check))
    (folder / "haproxy.cfg").write_text(settings.replace("127.0.0.1:3307", f"127.0.0.1:{port}"))
    with open(folder / "haproxy.log", "w") as log:
        process = subprocess.Popen([program, "-db", "-f", str(folder / "haproxy.cfg")], stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


def test_its_haproxy_leads_to_the_first_node_and_to_a_backup_while_that_is_away(
    cluster: Galera, name: str, tmp_path: Path
) -> None:
    first, second, _ = cluster.nodes
    with haproxy(cluster, tmp_path) as port:
        dsn = first.dsn(name).replace(f":{first.port}/", f":{port}/")

        def leads_to() -> int:
            with suppress(DatabaseError), TaskServer(dsn) as server:
                return int(server.store.database.fetch_value("SELECT @@port"))
            return 0

        wait_until(lambda: leads_to() == first.port)
        with TaskServer(dsn) as server:
            server.add_task("tasks.a")
            first.freeze()
            wait_until(lambda: leads_to() == second.port)
            first.thaw()
            cluster.await_all()  # at first it does not know that the others went on without it
            wait_until(lambda: leads_to() == first.port)
            first.execute("SET GLOBAL wsrep_desync = ON")  # it runs, and is not synced
            wait_until(lambda: leads_to() == second.port)
            server.add_task("tasks.b")
    with closing(Rows(second.dsn(name))) as rows:
        assert [row["task"] for row in rows.all()] == ["tasks.a", "tasks.b"]
