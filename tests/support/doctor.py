"""What client.py doctor says of a deployment, and one of which it finds nothing wrong."""

from __future__ import annotations

import json

from taskserver import TaskServer
from taskserver.health.accepted import accept
from taskserver.host.files import make_private_folder
from taskserver.messages.finding import Finding
from taskserver.stores import facts
from tests.support.queues import Queue

HEALTH = {"ok": 0, "warning": 1, "critical": 2}
ACCEPTED_HERE = {"durability"}
"""The tests' PostgreSQL is quick rather than safe."""


class Report:
    """What `client.py doctor --json` said."""

    def __init__(self, queue: Queue, by_process: bool = False, **env: str) -> None:
        """By a process of its own where its rights or its imports matter."""
        self._spared = ACCEPTED_HERE if queue.is_postgresql else set()
        ended = (queue.client if by_process else queue.here)("doctor", "--json", env=env)
        assert ended.stderr == ""
        said = json.loads(ended.stdout)
        self.code = ended.returncode
        self.checks: dict[str, dict[str, str]] = {finding["name"]: finding for finding in said["findings"]}
        assert len(self.checks) == len(said["findings"])
        assert HEALTH[said["level"]] == self.code

    def worse(self) -> dict[str, str]:
        """The level of each check that is not well, but for those that are a server's of the tests."""
        levels = {name: check["level"] for name, check in self.checks.items() if name not in self._spared}
        return {name: level for name, level in levels.items() if level not in ("ok", "unknown")}

    def told(self, check: str) -> str:
        """All that it says of a check."""
        return " | ".join(self.checks[check].values())


def examined(server: TaskServer) -> dict[str, Finding]:
    """What the doctor finds of the database and its tables, by check."""
    settings = server.settings
    asked = facts.Asked(server.store.database, settings.dsn, settings.mode)
    return {one.name: one for one in facts.examine(asked)}


def made_healthy(queue: Queue) -> Queue:
    """The queue, whose worker ran; what is wrong with a server of the tests' is accepted."""
    queue.run_quietly()
    make_private_folder(queue.folder / "var")  # as worker.py does
    if queue.is_postgresql:
        for name in ACCEPTED_HERE:
            accept(queue.server.store, name, "a server for tests")
    return queue
