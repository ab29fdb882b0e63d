"""The whole projects in examples/, each copied to a folder whose queue lies in the project's own database."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

from tests.support.deployment import TIMEOUT_SECONDS, Deployment
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.websites import EXAMPLES, MINIMAL

PREPARED = {
    "django_project": "from shop.worker import setup\n\nsetup()\nfrom django.db import connection, transaction\n"
    "from shop import tasks\nfrom shop.models import Book, Order\nfrom shop.queue import queue\n",
    "flask_app": "from shop.worker import setup\n\nsetup()\n"
    "from shop import tasks\nfrom shop.db import Order, session\nfrom shop.queue import queue\n",
}
"""With what code of a test begins, which runs in a project."""


class Project(Queue):
    """A project with the settings of its .env.example, but for where the database lies."""

    def __init__(self, deployment: Deployment, name: str, server: MySQLServer | None, dsn: str) -> None:
        """Without a server the site has its SQLite file."""
        self._name = name
        shutil.copytree(EXAMPLES / name, deployment.folder, dirs_exist_ok=True)
        super().__init__(deployment, dsn, tables=False)
        text = (self.folder / ".env.example").read_text()
        if server:
            for word, ours in {
                "localhost/": f"{server.host}:{server.port}/",
                "you_site": dsn.rpartition("/")[2],
                "you_web": server.user,
                "web-password": server.password,
            }.items():
                assert word in text
                text = text.replace(word, ours)
            text += f"\nMYSQL_HOST={server.host}\nMYSQL_PORT={server.port}\n"
        else:
            left_out = ("MYSQL_", "DATABASE=", "TASKSERVER_DSN=", "TASKSERVER_PASSWORD=")
            kept = [line for line in text.splitlines() if not line.startswith(left_out)]
            text = "\n".join([*kept, f"TASKSERVER_DSN={dsn}", ""])
        deployment.write_env(text)
        if name == "django_project":
            self.program("manage.py", "migrate", "-v", "0")
        assert deployment.client("init").returncode == 0

    def program(self, *arguments: str) -> str:
        """Runs a program of the project to its end; what it prints."""
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=MINIMAL, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def run(self, code: str) -> Any:
        """Runs code with the project's models, tasks and queue; what it prints, which is JSON, or nothing."""
        printed = self.program("-c", PREPARED[self._name] + code)
        return json.loads(printed) if printed else None

    def define_beside(self, code: str) -> None:
        """Have these in a module of tasks beside the project's own."""
        self.deployment.write_tasks(code, "tasks_of_test.py")
        self.add_settings("TASKSERVER_MODULES=shop.tasks,tasks_of_test\n")

    def add_settings(self, lines: str) -> None:
        """Put these into .env, in the place of what it has of the same keys."""
        keys = tuple(f"{line.partition('=')[0]}=" for line in lines.splitlines())
        path = self.folder / ".env"
        kept = [line for line in path.read_text().splitlines() if not line.startswith(keys)]
        path.write_text("\n".join([*kept, lines]))
