"""A table that tasks write to inside their own transaction, and what of it was committed."""

from __future__ import annotations

import json

from tests.support.queues import Queue

EFFECTS = {
    True: "CREATE TABLE effects (number INTEGER, CHECK (number < 1000))",
    False: "CREATE TABLE effects (number INT) ENGINE=InnoDB",
}
"""By whether it is for SQLite."""
SETTINGS = {"TASKSERVER_LEASE": "60", "TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:500"}
TASKS = """
import os
import sqlite3
import time

import taskserver

transactional = taskserver.task(transactional=True)


def wait(name="go"):
    while not (HERE / name).exists():
        time.sleep(0.005)


def run(statement):
    cursor = taskserver.connection().cursor()
    cursor.execute(statement)
    return cursor


@transactional
def effect(number, value=None):
    run(f"INSERT INTO effects (number) VALUES ({number})")
    return value

"""


def with_effects(queue: Queue) -> Queue:
    """A queue in whose database that table was made."""
    queue.sql(EFFECTS[queue.is_sqlite])
    return queue


def add(queue: Queue, name: str, *args: object) -> None:
    """A task of tasks.py."""
    queue.add(f"tasks.{name}", json.dumps(args))


def effects(queue: Queue) -> list[int]:
    """What was committed, in order."""
    return [number for (number,) in queue.sql("SELECT number FROM effects ORDER BY number")]
