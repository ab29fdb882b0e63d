"""A table that tasks write to inside a transaction that completes them, and what of it was committed."""

from __future__ import annotations

import json
from typing import Any

from tests.support.queues import Queue
from tests.support.sites import Site

EFFECTS = {
    "sqlite": "CREATE TABLE effects (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER, CHECK (number < 2000))",
    "postgresql": "CREATE TABLE effects (id SERIAL PRIMARY KEY, number INT)",
    "mysql": "CREATE TABLE effects (id INT PRIMARY KEY AUTO_INCREMENT, number INT) ENGINE=InnoDB",
}
"""By the kind of the store."""
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends, is renewed or comes back while a test looks, unless it says so."""
TASKS = """
import json
import os
import sqlite3
import time

import taskserver
from taskserver.stores.queue import transactions

# In place of the minute that a worker waits for the answer to its COMMIT.
transactions.OUR_SECONDS = 1.5

transactional = taskserver.task(transactional=True)


def wait(name="go"):
    while not (HERE / name).exists():
        time.sleep(0.005)


def run(statement):
    cursor = taskserver.connection().cursor()
    cursor.execute(statement)
    return cursor


def write(number):
    run(f"INSERT INTO effects (number) VALUES ({number})")


def plain(name="plain"):
    note(name)
    wait(f"go-{name}")


@transactional
def effect(number, value=None):
    write(number)
    return value


@transactional
def hold(number, name="go"):
    write(number)
    note(f"hold {number}")
    wait(name)
    write(number + 100)
    return {"number": number}
"""


class EffectsSite(Site):
    """A site with that table; its tasks call `meanwhile` of their module, which is the test's."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows.execute("DROP TABLE IF EXISTS effects")
        self.rows.execute(EFFECTS[self.rows.kind])

    def effects(self) -> list[int]:
        """What was committed, in order."""
        return [number for (number,) in self.rows.execute("SELECT number FROM effects ORDER BY number")]

    def states(self) -> list[tuple[Any, ...]]:
        """The status and the attempts of each row."""
        return self.columns("status, attempts")


def add(queue: Queue, name: str, *args: object) -> None:
    """A task of tasks.py."""
    queue.add(f"tasks.{name}", json.dumps(args))


def effects(queue: Queue) -> list[int]:
    """What was committed, in order."""
    return [number for (number,) in queue.sql("SELECT number FROM effects ORDER BY number")]


def states(queue: Queue) -> list[tuple[Any, ...]]:
    """The status and the attempts of each row."""
    return queue.rows("status, attempts")
