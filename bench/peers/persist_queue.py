"""persist-queue: a queue of objects, which a loop of one's own takes. It is not made for several processes."""

from __future__ import annotations

from .peer import ADDING, PROGRAM, TASKS, Peer, Safety

APP = """
import os
import both
{make}
nothing, effect = "nothing", "effect"


def connect(install):
    pass


def add(task, numbers):
    for n in numbers:
        queue.put((task, n))


add_many = add
"""
WORK = """
import persistqueue
import app, both

done = 0
while True:
    try:
        task, n = item = app.queue.get(timeout=1)
    except persistqueue.Empty:
        continue
    getattr(both, task)(n)
    if hasattr(app.queue, "ack"):
        app.queue.ack(item)
        done += 1
        if done % 100 == 0:
            app.queue.clear_acked_data(keep_latest=0)
"""
SQLITE = """
from persistqueue import SQLiteAckQueue
folder, name = os.path.split(os.environ["BENCH_DATABASE"])
queue = SQLiteAckQueue(folder, db_file_name=name)
"""
MYSQL = """
from persistqueue import MySQLQueue
place = [os.environ["BENCH_" + name] for name in ("HOST", "USER", "PASSWORD", "DATABASE")]
queue = MySQLQueue(*place, port=int(os.environ["BENCH_PORT"]))
"""


def _persist_queue(
    base: str, make: str, packages: str, table: str, columns: str, safety: Safety, note: str, lead: str = ""
) -> Peer:
    return Peer(
        name="persist-queue",
        base=base,
        packages=f"persist-queue==1.1.0 {packages}".strip(),
        files={"both.py": TASKS, "app.py": APP.replace("{make}", make), "program.py": PROGRAM, "work.py": WORK},
        commands={**ADDING, "work": "python work.py"},
        tables=(table,),
        copied={column: column for column in columns.split()},
        unfinished=f"SELECT COUNT(*) FROM {table}" + (" WHERE status < 5" if "status" in columns else ""),
        safety=safety,
        notes=(note, "one process, killed and started again: several would take the same items"),
        lead=lead,
        skips=("add_many",),
        most_workers=1,
    )


PEERS = [
    _persist_queue(
        "sqlite", SQLITE, "", "ack_queue_default", "data timestamp status", Safety(True, True, "at least once"),
        "SQLiteAckQueue; acknowledged rows are cleared after each 100",
        "It has no index, taskserver four: for groups, priorities, due times and unique keys.",
    ),
    _persist_queue(
        "mysql", MYSQL, "PyMySQL==1.2.4 DBUtils==2.0.3", "queue_sql", "data timestamp",
        Safety(True, False, "at most once"), "MySQLQueue on PyMySQL",
    ),
]  # fmt: skip
