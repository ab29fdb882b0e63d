"""A payment that happens once: the order and its task are one commit, and so are the payment and the task's end.

    python3 -m examples.payment

From the folder above this one; the database is a file that is gone afterwards. The worker is killed in the midst of a
payment, and a page fails after it ordered: nothing is paid twice, and nothing that was not ordered.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import taskserver

HERE = "examples.payment"
TABLES = """
    CREATE TABLE accounts (owner TEXT PRIMARY KEY, balance INTEGER NOT NULL);
    CREATE TABLE orders (id INTEGER PRIMARY KEY, buyer TEXT NOT NULL, price INTEGER NOT NULL);
    CREATE TABLE payments (order_id INTEGER NOT NULL, price INTEGER NOT NULL);
    INSERT INTO accounts VALUES ('Ada', 100), ('shop', 0);
"""


def server_in(folder: str) -> taskserver.TaskServer:
    """The queue lies in the same database as the shop's own tables."""
    return taskserver.TaskServer(f"sqlite:///{folder}/shop.db", modules=HERE, lease=1, backoff="fixed:1")


# ---- the page


def order(connection: sqlite3.Connection, server: taskserver.TaskServer, price: int) -> int:
    """The order and its task, in the page's own transaction; the task's id. On MySQL the marks are %s."""
    order_id = connection.execute("INSERT INTO orders (buyer, price) VALUES ('Ada', ?)", [price]).lastrowid
    return server.add_task(f"{HERE}.pay", [order_id], connection=connection)


# ---- the task


@taskserver.task(transactional=True)
def pay(order_id: int) -> None:
    connection = taskserver.connection()
    buyer, price = connection.execute("SELECT buyer, price FROM orders WHERE id = ?", [order_id]).fetchone()
    connection.execute("UPDATE accounts SET balance = balance - ? WHERE owner = ?", [price, buyer])
    now = taskserver.current_task()
    if now is not None and now.attempt == 1:
        print(f"order {order_id}: {price} are taken, and the power fails", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    connection.execute("UPDATE accounts SET balance = balance + ? WHERE owner = 'shop'", [price])
    connection.execute("INSERT INTO payments VALUES (?, ?)", [order_id, price])
    print(f"order {order_id}: {price} paid, by attempt {now.attempt if now else 0}", flush=True)


# ---- at work


def work(folder: str) -> None:
    """One run of a worker, as cron would start it."""
    with server_in(folder) as server:
        server.run()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, server_in(folder) as server:
        server.create_tables()
        connection = sqlite3.connect(Path(folder, "shop.db"))
        connection.executescript(TABLES)
        task_id = order(connection, server, 30)
        connection.commit()
        order(connection, server, 1000)
        connection.rollback()  # something went wrong in the page: no order, and no task
        while server.get(task_id) is not None:  # it is gone once it is done
            subprocess.run([sys.executable, "-m", HERE, folder], check=False)
            time.sleep(0.5)
        for owner, balance in connection.execute("SELECT owner, balance FROM accounts"):
            print(f"{owner} has {balance}")
        print(f"{connection.execute('SELECT COUNT(*) FROM payments').fetchone()[0]} payment was made")
        connection.close()


if __name__ == "__main__":
    work(sys.argv[1]) if len(sys.argv) > 1 else main()
