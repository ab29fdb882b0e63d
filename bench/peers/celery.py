"""Celery on the SQLAlchemy transport of kombu, which hides a message when it takes it, and never shows it again."""

from __future__ import annotations

from .peer import ADDING, BUILD, PROGRAM, TASKS, Peer, Safety

APP = """
import os
from celery import Celery
import both

url = os.environ["BENCH_URL"].replace("mysql:", "mysql+mysqldb:").replace("postgresql:", "postgresql+psycopg2:")
app = Celery("bench", broker="sqla+" + url, set_as_current=True)
app.conf.task_ignore_result = True
nothing, effect = app.task(name="nothing")(both.nothing), app.task(name="effect")(both.effect)


def connect(install):
    with app.connection_for_write() as connection:
        connection.SimpleQueue("celery").close()


def add(task, numbers):
    for n in numbers:
        task.delay(n)


add_many = add
"""
PACKAGES = (
    "celery==5.7.0 kombu==5.7.0 SQLAlchemy==2.1.9 amqp==5.4.2 billiard==4.3.2 click==8.5.1 click-didyoumean==0.3.1 "
    "click-plugins==1.1.1.2 click-repl==0.4.1 packaging==26.4 prompt_toolkit==3.0.53 python-dateutil==2.9.0.post0 "
    "six==1.17.0 typing_extensions==4.16.0 tzdata==2026.6 tzlocal==5.4.5 vine==5.1.0 wcwidth==0.9.4 "
)
WORK = "celery -q -A app worker -P solo -c 1 --without-gossip --without-mingle --without-heartbeat -l WARNING"


def _celery(base: str, driver: str, next_id: str) -> Peer:
    return Peer(
        name="Celery, SQLAlchemy transport",
        base=base,
        packages=PACKAGES + driver,
        debian=BUILD if base == "mysql" else "",
        files={"both.py": TASKS, "app.py": APP, "program.py": PROGRAM},
        commands={**ADDING, "work": WORK + " -n w{worker}@localhost"},
        tables=("kombu_message",),
        copied={"id": next_id, "visible": "TRUE", "payload": "payload", "version": "1", "queue_id": "queue_id"},
        unfinished="SELECT COUNT(*) FROM kombu_message WHERE visible",
        safety=Safety(durable=True, survives=False, runs="at most once"),
        notes=(
            "its documents call this transport experimental; on RabbitMQ it can keep the tasks of a killed worker",
            "results ignored; the pool solo, which needs no child process; no gossip, mingle and heartbeat",
            "finished messages stay in its table",
        ),
        environment={"PYTHONPATH": "."},
        skips=("add_many",),
    )


PEERS = [
    _celery("mysql", "mysqlclient==2.3.2", "NEXTVAL(message_id_sequence)"),
    _celery("postgresql", "psycopg2-binary==2.9.13", "nextval('message_id_sequence')"),
]
