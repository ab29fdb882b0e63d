"""What the workers of a chaos run do, well-behaved and not: the tasks.py of their deployment."""

from __future__ import annotations

TASKS = '''
"""Each run leaves its begin and its end in the file `runs`."""

import os
import random
import signal
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import taskserver
from taskserver import task
from taskserver.stores.queue import transactions

# In place of the minute that a worker waits for the answer to its COMMIT.
transactions.OUR_SECONDS = 1.0

HERE = Path(__file__).resolve().parent
RUNS = os.open(HERE / "runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
IS_OPEN = HERE / f"open-{os.getpid()}"
QUEUE = taskserver.TaskServer(os.environ["CHAOS_DSN"], folder=HERE).settings.dsn


class Failed(Exception):
    """A task that fails on purpose."""


def record(what, number, how):
    """A line; `process` has its parent's id as the number: the workers of --processes are children of their line."""
    # One short write to the end of a file is one piece, though others write too.
    os.write(RUNS, f"{what} {number} {os.getpid()} {time.monotonic():.6f} {how}\\n".encode())


record("process", os.getppid(), "of tasks")


@contextmanager
def noted(number, kind):
    try:
        record("begin", number, kind)
        yield random.Random(f"{number}:{taskserver.current_task().attempt}")
    except BaseException as error:
        record("end", number, type(error).__name__)
        raise
    else:
        record("end", number, "done")


def play(number, kind):
    with noted(number, kind) as chance:
        if kind == "quick":
            time.sleep(chance.uniform(0.0, 0.1))
        elif taskserver.current_task().attempt == 1 or chance.random() < 0.4:
            misbehave(number, kind)


def misbehave(number, kind):
    if kind == "fail":
        raise Failed("on purpose")
    while kind == "hang":
        time.sleep(0.05)
    record("dies", number, kind)
    os.kill(os.getpid(), signal.SIGKILL)


@task(commit_every=10)
def share(number, kind):
    with noted(number, kind) as chance:
        time.sleep(chance.uniform(0.0, 0.1))


@task(commit_every=10)
def keep(number, kind, key):
    with noted(number, kind) as chance:
        time.sleep(chance.uniform(0.05, 0.3))


@task(batch=10)
def together(calls):
    for call in calls:
        record("begin", call["number"], call["kind"])
    time.sleep(0.05)
    for call in calls:
        record("end", call["number"], "done")


# Longer than a worker is frozen: it must find out that its lease is lost, not that its time is over.
@task(transactional=True, timeout=12)
def transfer(number, kind, source, target, amount):
    with noted(number, kind) as chance, opened(number):
        move(taskserver.connection(), chance, number, source, target, amount)


@task(timeout=12)
def pay(number, kind, source, target, amount):
    with noted(number, kind) as chance, opened(number), closing(connect()) as connection:
        move(connection, chance, number, source, target, amount)
        taskserver.complete(connection)
        connection.cursor().execute("COMMIT /* by a task */")


@contextmanager
def opened(number):
    """So that faults can wait for a transaction that is open."""
    IS_OPEN.write_text(str(number))
    try:
        yield
    finally:
        IS_OPEN.unlink()


def connect():
    if QUEUE.kind == "sqlite":
        connection = sqlite3.connect(QUEUE.database, isolation_level=None, timeout=60)
        connection.execute("BEGIN IMMEDIATE")
        return connection
    place = {"user": QUEUE.user, "password": QUEUE.password}
    if QUEUE.kind == "postgresql":
        import psycopg

        return psycopg.connect(dbname=QUEUE.database, host=QUEUE.host, port=QUEUE.port, **place)
    import pymysql

    *others, last = QUEUE.by_host
    for one in others:
        with suppress(pymysql.MySQLError):
            return connect_to(one, **place)
    return connect_to(last, **place)


def connect_to(one, **place):
    import pymysql

    place |= {"host": one.host, "port": one.port, "database": one.database}
    return pymysql.connect(connect_timeout=3, read_timeout=1, ssl_disabled=True, **place)


def move(connection, chance, number, source, target, amount):
    """With pauses in which anything may die; now and then it fails after its writes."""
    cursor = connection.cursor()
    for account, by in sorted([(source, -amount), (target, amount)]):  # in one order: nobody waits in a circle
        cursor.execute(f"UPDATE accounts SET balance = balance + {by} WHERE id = {account}")
        time.sleep(chance.uniform(0, 0.04))
    cursor.execute(f"INSERT INTO transfers (number, source, target, amount) VALUES {(number, source, target, amount)}")
    time.sleep(chance.uniform(0, 0.04))
    if chance.random() < 0.15:
        raise Failed("after its writes")
'''

PLAYED = {"quick": "done", "fail": "Failed", "hang": "TaskInterrupted", "kill": "dies"}
"""Kinds of tasks that `play` acts, with the outcome of a first run."""
CALLED = dict.fromkeys((*PLAYED, "child"), "play") | {"once": "transfer"}
"""The function of each kind that does not have that name."""
MONEY = ("transfer", "once", "pay")
"""These write in the transaction that completes them; `once` is a transfer of one attempt."""
WEIGHTS = {"quick": 50, "fail": 10, "hang": 1, "kill": 2, "share": 10, "together": 10, "child": 8, "keep": 5}
WEIGHTS |= {"transfer": 20, "once": 10, "pay": 15}
"""How often producers add each kind. A child is a quick task that waits for others; `keep` has a key and is rerun."""
