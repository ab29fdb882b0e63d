"""Huey: deletes a task as it takes it, then runs it; the task of a worker that is killed is gone."""

from __future__ import annotations

from .peer import ADDING, BUILD, PROGRAM, TASKS, Peer, Safety

APP = """
import logging, os
import both
{make}
nothing, effect = huey.task(name="nothing")(both.nothing), huey.task(name="effect")(both.effect)


def connect(install):
    huey.pending_count()


def add(task, numbers):
    for n in numbers:
        task(n)


add_many = add
"""
SQL = """
from huey.contrib.sql_huey import SqlHuey
from peewee import MySQLDatabase
place = {name: os.environ["BENCH_" + name.upper()] for name in ("host", "user", "password")}
database = MySQLDatabase(os.environ["BENCH_DATABASE"], port=int(os.environ["BENCH_PORT"]), **place)
huey = SqlHuey("bench", database=database, results=False)
"""
SQLITE = """
from huey import SqliteHuey
huey = SqliteHuey("bench", filename=os.environ["BENCH_DATABASE"], results=False, fsync=FSYNC)
"""
POSTGRESQL = """
from huey import PostgresHuey
huey = PostgresHuey("bench", dsn=os.environ["BENCH_URL"], results=False)
"""
PACKAGES = "huey==3.5.4"
CONSUMER = "its consumer with one thread for each worker, -q (no log line for each task), results=False"
BULK = "it adds only one by one"
LEAD = "It deletes a task as it takes it and then forgets it. So it writes less, and loses the task if it is killed."


def _huey(base: str, name: str, make: str, packages: str, table: str, *notes: str, durable: bool = True) -> Peer:
    return Peer(
        name=name,
        base=base,
        packages=f"{PACKAGES} {packages}".strip(),
        debian=BUILD if base == "mysql" else "",
        files={"both.py": TASKS, "app.py": APP.replace("{make}", make), "program.py": PROGRAM},
        commands={**ADDING, "work": "huey_consumer app.huey -w 1 -q"},
        tables=(table,),
        copied={"queue": "queue", "data": "data", "priority": "priority"},
        unfinished=f"SELECT COUNT(*) FROM {table}",
        safety=Safety(durable=durable, survives=False, runs="at most once"),
        notes=(CONSUMER, BULK, *notes),
        lead=LEAD if durable else "It does not wait for the disk: a power cut may lose tasks and damage the file.",
        skips=("add_many",),
    )


PEERS = [
    _huey("mysql", "Huey", SQL, "peewee==4.5.3 mysqlclient==2.3.2", "task", "SqlHuey on peewee"),
    _huey("sqlite", "Huey", SQLITE.replace("FSYNC", "True"), "", "task", "SqliteHuey, fsync=True"),
    _huey("sqlite", "Huey, no fsync", SQLITE.replace("FSYNC", "False"), "", "task", "fsync=False", durable=False),
    _huey(
        "postgresql",
        "Huey",
        POSTGRESQL,
        "psycopg[binary]==3.3.9 psycopg-binary==3.3.9 typing_extensions==4.16.0",
        "huey_task",
        "PostgresHuey",
    ),
]
