"""Who adds tasks in a soak run: chaos' producers by the Python API, and web pages in every other way."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from taskserver import TaskServer
from taskserver.errors import DatabaseError
from tests.faults.chaos.stage import DRIVER_ERRORS, Actor, Added, Producer
from tests.faults.soak.place import TOKEN, Place
from tests.support.rows import AFTER, Rows
from tests.support.servers import find_program

FIRST_NUMBER = 10_000_000
"""Of a page: those below are the producers'."""
TICK_SECONDS = 15
PHP = """
[, $dsn, $user, $password, $args] = $argv;
$db = new PDO($dsn, $user, $password, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
$db->prepare("INSERT INTO jobs_queue (task, args) VALUES ('tasks.page', ?)")->execute([$args]);
"""


class ApiProducer(Producer):
    """Chaos' producer at an everyday pace."""

    pause_seconds, max_backlog = 1.6, 10_000

    def group_of(self, kind: str) -> int:
        """Group 1 is not served by the long workers."""
        return 1 if kind in ("kill", "hang") else super().group_of(kind)


class Pages(Actor):
    """Web pages: each opens its own connection."""

    def __init__(self, place: Place, seed: int) -> None:
        super().__init__(place)
        self.added: list[Added] = []
        self.earliest: dict[int, float] = {}
        """When a delayed task may begin."""
        self.pipelines: list[list[int]] = []
        """The numbers of their stages."""
        self.has_upgraded = False
        self._place = place
        self._chance = random.Random(f"{seed}:pages")
        self._numbers = count(FIRST_NUMBER)

    def run(self) -> None:
        ways: dict[Callable[..., None], int] = {
            self._insert: 8,
            self._delay: 4,
            self._bulk: 2,
            self._pipeline: 2,
            self._http: 2,
            self._php: 1,
        }
        if self.stage.server is None or find_program("php") is None:
            del ways[self._php]
        while not self.stopped.wait(self._chance.uniform(0.0, 1.6)):
            way = self._chance.choices([*ways], [*ways.values()])[0] if self.has_upgraded else self._insert
            numbers = [next(self._numbers) for _ in range(3 if way in (self._bulk, self._pipeline) else 1)]
            is_added = False
            with suppress(DatabaseError, URLError, subprocess.SubprocessError, *DRIVER_ERRORS):
                way(*numbers)
                is_added = True
            # Nobody asks for these ids; only that there is one says that the add was acknowledged.
            known = [Added(number, way.__name__[1:], -number if is_added else None) for number in numbers]
            self.added += known[-1:] if way == self._pipeline else known

    def _insert(self, number: int) -> None:
        with closing(Rows(self.stage.dsn)) as rows:
            insert = "INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)"
            name = "tasks.new_page" if self._place.uploaded_at else "tasks.page"
            rows.execute(insert, [name, _args(number), self._chance.randrange(3), self._chance.choice((0, 5))])

    def _delay(self, number: int) -> None:
        seconds = self._chance.randrange(1, 30)
        self.earliest[number] = time.monotonic() + seconds
        with closing(Rows(self.stage.dsn)) as rows:
            due = AFTER[rows.kind].format(seconds)
            insert = f"INSERT INTO jobs_queue (task, args, status, due_at) VALUES ('tasks.page', ?, 5, {due})"
            rows.execute(insert, [_args(number)])

    def _bulk(self, *numbers: int) -> None:
        with TaskServer(self.stage.dsn, folder=self.stage.folder) as queue:
            queue.add_tasks({"task": "tasks.page", "args": {"number": n, "kind": "quick"}} for n in numbers)

    def _pipeline(self, *numbers: int) -> None:
        self.pipelines.append([*numbers])
        with TaskServer(self.stage.dsn, folder=self.stage.folder) as queue:
            queue.add_pipeline(["tasks.step"] * 3, {"number": numbers[-1], "numbers": numbers, "kind": "quick"})

    def _http(self, number: int) -> None:
        data = json.dumps({"task": "tasks.page", "args": json.loads(_args(number))}).encode()
        headers = {"Content-Type": "application/json", "X-Taskserver-Token": TOKEN}
        request = Request(f"http://127.0.0.1:{self._place.web_port}/tasks", data, headers)
        build_opener(ProxyHandler({})).open(request, timeout=60).close()

    def _php(self, number: int) -> None:
        at = urlsplit(self.stage.dsn)
        name = {"mysql": "mysql", "postgresql": "pgsql"}[at.scheme]
        dsn = f"{name}:host={at.hostname};port={at.port};dbname={at.path[1:]}"
        command = ["php", "-r", PHP, "--", dsn, unquote(at.username or ""), unquote(at.password or ""), _args(number)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def _args(number: int) -> str:
    return json.dumps({"number": number, "kind": "quick"})
