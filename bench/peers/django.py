"""Two queues of Django's: django-tasks-db, which Django's Tasks API made of django-tasks, and django-q2."""

from __future__ import annotations

from .peer import ADDING, BUILD, PROGRAM, TASKS, Peer, Safety

SETTINGS = """
import os

ENGINES = {"mysql": "mysql", "sqlite": "sqlite3", "postgresql": "postgresql"}
kind = os.environ["BENCH_URL"].split(":")[0]
DATABASES = {"default": {"ENGINE": "django.db.backends." + ENGINES[kind], "NAME": os.environ["BENCH_DATABASE"]}}
DATABASES["default"]["CONN_MAX_AGE"] = None
for key in ("HOST", "PORT", "USER", "PASSWORD"):
    DATABASES["default"][key] = os.environ["BENCH_" + key]
if kind == "sqlite":
    options = {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"}
    DATABASES["default"]["OPTIONS"] = options
if kind == "mysql":
    DATABASES["default"]["OPTIONS"] = {"charset": "utf8mb4"}
SECRET_KEY = "x" * 50
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
TASKS_DB = """
INSTALLED_APPS = ["django_tasks", "django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
"""
Q2 = """
INSTALLED_APPS = ["django.contrib.contenttypes", "django_q"]
Q_CLUSTER = {"name": "bench", "orm": "default", "timeout": 50, "retry": 60, "queue_limit": 50, "bulk": 10,
             "workers": int(os.environ["BENCH_WORKERS"]), "log_level": "WARNING"}
"""
APP = """
import django
django.setup()
from django.core.management import call_command
from django.db import connection
import both
{tasks}

def connect(install):
    if install:
        call_command("migrate", verbosity=0)
    connection.ensure_connection()


def add(task, numbers):
    for n in numbers:
        {add}


add_many = add
"""
TASKS_DB_TASKS = """
from django_tasks import task

@task()
def nothing(n):
    both.nothing(n)

@task()
def effect(n):
    both.effect(n)
"""
Q2_TASKS = """
from django_q.tasks import async_task
nothing, effect = "both.nothing", "both.effect"
"""
DRIVERS = {
    "mysql": "mysqlclient==2.3.2",
    "sqlite": "",
    "postgresql": "psycopg==3.3.9 psycopg-binary==3.3.9 typing_extensions==4.16.0",
}
UUIDS = {"mysql": "UUID()", "sqlite": "lower(hex(randomblob(16)))", "postgresql": "gen_random_uuid()"}
DJANGO = "Django==5.2.19 asgiref==3.13.0 sqlparse==0.6.1 typing_extensions==4.16.0"
TASKS_PACKAGES = "django-tasks-db==0.13.0 django-tasks==0.12.0 django-stubs-ext==6.1.2"
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": "."}
COLUMNS = "status enqueued_at args_kwargs priority task_path worker_ids queue_name backend_name run_after return_value"
COLUMNS += " exception_class_path traceback"


def _files(settings: str, tasks: str, add: str) -> dict[str, str]:
    app = APP.replace("{tasks}", tasks).replace("{add}", add)
    return {"settings.py": SETTINGS + settings, "both.py": TASKS, "app.py": app, "program.py": PROGRAM}


def _tasks_db(base: str) -> Peer:
    table = "django_tasks_database_dbtaskresult"
    return Peer(
        name="django-tasks-db",
        base=base,
        packages=f"{TASKS_PACKAGES} {DJANGO} {DRIVERS[base]}".strip(),
        debian=BUILD if base == "mysql" else "",
        files=_files(TASKS_DB, TASKS_DB_TASKS, "task.enqueue(n)"),
        commands={
            **ADDING,
            "work": "python -m django db_worker -v 0 --no-startup-delay",
            "empty": "python -m django db_worker -v 0 --no-startup-delay --batch",
        },
        tables=(table,),
        copied={"id": UUIDS[base]} | {column: column for column in COLUMNS.split()},
        unfinished=f"SELECT COUNT(*) FROM {table} WHERE status IN ('READY', 'RUNNING')",
        safety=Safety(durable=True, survives=False, runs="at most once"),
        notes=(
            "SQLite with WAL and transaction_mode IMMEDIATE; CONN_MAX_AGE=None: else it connects for each task",
            "-v 0: no log line for each task",
            "finished tasks stay in its table",
        ),
        environment=ENVIRONMENT,
        skips=("add_many",),
    )


def _q2(base: str) -> Peer:
    return Peer(
        name="django-q2",
        base=base,
        packages=f"django-q2==1.11.1 django-picklefield==3.4.0 {DJANGO} {DRIVERS[base]}",
        debian=BUILD if base == "mysql" else "",
        files=_files(Q2, Q2_TASKS, "async_task(task, n)"),
        commands={**ADDING, "work": "python -m django qcluster"},
        tables=("django_q_ormq", "django_q_task"),
        copied={
            name: name for name in (("`key`", "payload", "`lock`") if base == "mysql" else ("key", "payload", "lock"))
        },
        unfinished="SELECT COUNT(*) FROM django_q_ormq",
        safety=Safety(durable=True, survives=True, runs="at least once"),
        notes=(
            "the ORM broker with bulk 10 and queue_limit 50, as its documents show",
            "one cluster with so many worker processes, and four processes of its own",
            "CONN_MAX_AGE=None: else it connects for each task",
            "retry=60; waiting rows are copies with the ids of 250 tasks, so fewer results are written than in life",
        ),
        environment=ENVIRONMENT,
        skips=("add_many",),
        has_pool=True,
    )


PEERS = [*map(_tasks_db, DRIVERS), _q2("mysql"), _q2("postgresql")]
