"""Deployments with a status page: their settings, and rows of every kind in their queues, by SQL alone.

    site = PageQueue(deployment, dsn)
    fill_shop(site)     what a small shop's queue may look like, of all statuses; a picture of it can be shown
    fill_odd(site)      besides: hostile and very long texts, wide characters
    fill_up(site, 100_000)      besides: so many ready tasks, and a tenth as many fatal ones
    with site.served() as website, Browser(folder) as browser:
        sign_in(browser, website.url)

Instants are relative to now; all else is the same each time.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from tests.support.browser import Browser
from tests.support.deployment import Deployment
from tests.support.pages import PASSWORD, PASSWORD_HASH
from tests.support.processes import wait_until
from tests.support.queues import Queue
from tests.support.websites import Website, gunicorn_website
from tests.support.words import AFTER, HOURS_AGO

VIEWS = {
    "overview": "",
    "tasks": "?view=tasks",
    "task": "?view=task&id=1",
    "failed": "?view=task&id=190",
    "fatal": "?view=tasks&status=fatal",
    "errors": "?view=errors",
    "hours": "?view=hours",
    "week": "?view=hours&days=7",
    "schedules": "?view=schedules",
    "workers": "?view=workers",
    "doctor": "?view=doctor",
    "confirm": "?view=confirm&verb=retry&all=1",
}
"""The links of all views; task 1 is the one that fill_shop makes with all that a task can have."""
TASKS = """
def send_letter(to): pass
def resize_picture(path): pass
def import_catalogue(url): pass
def write_invoice(order): pass
"""
SERVED = 7
"""The number of the worker at work."""


class Ago(NamedTuple):
    """An instant so many seconds ago; ahead where negative."""

    seconds: int


class Hour(NamedTuple):
    """The begin of the hour so many hours ago."""

    ago: int


class Site(Protocol):
    """A queue whose tables can be filled."""

    kind: str

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]: ...


class PageQueue(Queue):
    """A queue with a page, from which one may act unless told otherwise."""

    def __init__(self, deployment: Deployment, dsn: str, *, acts: bool = True, tables: bool = True) -> None:
        settings = {
            "TASKSERVER_PAGE_PASSWORD": PASSWORD_HASH,
            "TASKSERVER_PAGE_ACTIONS": "yes" if acts else "no",
            "TASKSERVER_MODE": "mark",
        }
        super().__init__(deployment, dsn, TASKS, settings, tables)

    def served(self) -> AbstractContextManager[Website]:
        """The page under gunicorn, from the deployment's own folder."""
        return gunicorn_website(self.folder, "taskserver.web")


def insert(site: Site, rows: Sequence[Mapping[str, object]], table: str = "") -> None:
    """Rows with the same columns into a table of the queue."""

    def form(value: object) -> str:
        if isinstance(value, Ago):
            return AFTER[site.kind].format(-value.seconds)
        return HOURS_AGO[site.kind].format(value.ago) if isinstance(value, Hour) else "?"

    forms = ", ".join(f"({', '.join(map(form, row.values()))})" for row in rows)
    values = [value for row in rows for value in row.values() if not isinstance(value, (Ago, Hour))]
    site.sql(f"INSERT INTO jobs_queue{table} ({', '.join(rows[0])}) VALUES {forms}", *values)


def sign_in(browser: Browser, url: str) -> None:
    """As somebody who knows the password does."""
    browser.open(f"{url}/")
    browser.write("input[type=password]", PASSWORD)
    browser.click("button")
    wait_until(lambda: browser.script("return document.querySelector('h1#verdict') !== null"))
    browser.complaints()  # of the code 403, with which the page asks for the password


# ---- a shop's queue

DISCONNECTED = "SMTPServerDisconnected: Connection unexpectedly closed"
TRACE = (
    "\nTraceback (most recent call last):\n"
    '  File "/home/shop/taskserver/tasks.py", line 31, in send_letter\n    smtp.send_message(letter)\n'
)
ERRORS = (
    DISCONNECTED,
    "TimeoutError: no answer of smtp.example.org within 30 s",
    "ValueError: 'ada@example' is no address",
)
STAGES = [
    {"task": "tasks.import_catalogue", "group_id": 5},
    {"task": "tasks.resize_picture", "group_id": 5},
    {"task": "tasks.send_letter", "group_id": 3},
]


def fill_shop(site: Site) -> None:
    """A small shop: letters that failed in the night, pictures that are resized, a catalogue that is imported."""
    _fill_tasks(site)
    _fill_workers(site)
    _fill_schedules(site)
    _fill_hours(site)


def _fill_tasks(site: Site) -> None:
    chance = random.Random(23)
    running = {
        "task": "tasks.import_catalogue",
        "args": '{"url": "https://supplier.example.org/catalogue.xml"}',
        "group_id": 5,
        "status": 1,
        "attempts": 2,
        "max_attempts": 5,
        "due_at": Ago(-240),
        "started_at": Ago(95),
        "created_at": Ago(4000),
        "unique_key": "catalogue",
        "version": 12,
        "awaited": 1,
        "claim": (SERVED << 32) + 1,
        "stages": json.dumps(STAGES),
        "progress": '{"done": 3100, "total": 10000, "text": "reading page 31 of the catalogue"}',
        "error_text": "ConnectionResetError: [Errno 104] Connection reset by peer",
    }
    insert(site, [running])
    insert(site, [{"task": "tasks.resize_picture", "group_id": 5, "status": 1, "claim": (SERVED << 32) + 2}])
    ready = [("tasks.resize_picture", 5), ("tasks.write_invoice", 6), ("tasks.send_letter", 3)]
    insert(
        site,
        [
            {"task": task, "args": json.dumps({"number": number}), "group_id": group, "priority": 10}
            | {"created_at": Ago(400 - number), "updated_at": Ago(400 - number)}
            for number, (task, group) in enumerate(chance.choices(ready, weights=(8, 2, 1), k=180))
        ],
    )
    insert(site, [_failed(4, number, error) for number, error in enumerate(chance.choices(ERRORS, (7, 3, 1), k=37))])
    insert(site, [_failed(3, number, DISCONNECTED) | {"due_at": Ago(-300 - number)} for number in range(4)])
    insert(site, [{"task": "tasks.send_letter", "group_id": 3, "status": 5, "due_at": Ago(-7200)}])
    insert(site, [{"task": "tasks.write_invoice", "group_id": 6, "status": 5}])
    ((waiting,),) = site.sql("SELECT MAX(id) FROM jobs_queue")
    insert(site, [{"parent_id": 1, "child_id": waiting}], "_dependencies")
    times = {"created_at": 990, "started_at": 900, "finished_at": 890}
    done = {"task": "tasks.write_invoice", "group_id": 6, "status": 2, "attempts": 1, "result": '{"pages": 2}'}
    insert(site, [done | {name: Ago(at + 60 * n) for name, at in times.items()} for n in range(60)])


def _failed(status: int, number: int, error: str) -> dict[str, object]:
    hours = 3600 * (number % 9)
    return {
        "task": "tasks.send_letter",
        "args": json.dumps({"to": f"customer{number}@example.org"}),
        "group_id": 3,
        "status": status,
        "attempts": 10 if status == 4 else 2,
        "error_text": error + TRACE,
        "created_at": Ago(9000 + hours),
        "started_at": Ago(7300 + hours),
        "finished_at": Ago(7200 + hours),
    }


def _fill_workers(site: Site) -> None:
    host = "web12.host.example"
    insert(
        site,
        [
            {"number": SERVED, "host": host, "group_ids": "5", "pid": 4720, "started_at": Ago(95)}
            | {"seen_at": Ago(5), "ended_at": None, "taken": 41, "done": 40},
            {"number": 8, "host": "web13.host.example", "group_ids": "all", "pid": 311, "started_at": Ago(900)}
            | {"seen_at": Ago(700), "ended_at": Ago(600), "taken": 3, "done": 2},
        ],
        "_processes",
    )
    run = {"host": host, "group_ids": "3,6", "pid": 4711, "started_at": Ago(40), "ended_at": Ago(35)}
    last = run | {"group_ids": "5", "pid": 4720, "started_at": Ago(95), "ended_at": None}
    counts = {"reason": "empty", "taken": 12, "done": 11, "fatal": 1, "previous_started_at": Ago(100)}
    insert(site, [run | counts, last | counts], "_workers")


def _fill_schedules(site: Site) -> None:
    nightly = {"name": "nightly import", "task": "tasks.import_catalogue", "group_id": 5, "cron": "30 3 * * *"}
    invoices = {"name": "invoices", "task": "tasks.write_invoice", "group_id": 6, "every_seconds": 3600}
    reminders = {"name": "reminders", "task": "tasks.send_letter", "group_id": 3, "cron": "0 8 * * 1"}
    insert(site, [nightly | {"next_at": Ago(-5 * 3600)}, reminders | {"next_at": Ago(-90_000)}], "_schedules")
    insert(site, [invoices | {"next_at": Ago(-600)}], "_schedules")
    for name, ended in (("nightly import", [2, 244.0, 0]), ("invoices", [3, 2.0, 0])):
        note = f"ran {hashlib.sha256(f'schedule:{name}'.encode()).hexdigest()[:32]}"
        insert(site, [{"name": note, "value": json.dumps(ended), "noted_at": Ago(3000)}], "_notes")


def _fill_hours(site: Site) -> None:
    chance = random.Random(30)
    rows: list[dict[str, object]] = []
    for hour in range(30):
        for task, group in (("tasks.send_letter", 3), ("tasks.resize_picture", 5), ("tasks.write_invoice", 6)):
            done = chance.randint(40, 90) + (200 if 4 < hour < 12 else 0)
            failed = chance.randint(5, 40) if group == 3 and 2 < hour < 12 else 0
            row = {"hour": Hour(hour), "group_id": group, "task": task, "begun": done, "attempts": done + failed}
            row |= {"done": done, "failed": failed, "fatal": failed // 8, "lost": int(hour == 9 and group == 5)}
            waited = done * chance.random() * 30
            rows.append(row | {"ran_seconds": done * 0.2, "waited_seconds": waited, "longest_wait_seconds": 90.0})
    insert(site, rows, "_stats")


# ---- odd texts, and many rows

SCRIPT = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\">"
ODD_TEXTS = (
    SCRIPT,
    "tasks.商品目録を読み込む・非常に長い名前の仕事" * 5,
    "tasks.مهمة_باسم_طويل_جدا",
    "tasks.🛒👩‍👩‍👧‍👦🏳️‍🌈",
    f"tasks.{'of_a_name_that_never_ends_' * 9}"[:255],
    "tasks.a\x00b\r\nSet-Cookie: x=1",
    "\u202etasks.backwards \x1b[31m'\"&amp;`${7*7}{{7*7}}",
)
SCRIPT_ERROR = f"ValueError: {SCRIPT}"


def fill_odd(site: Site) -> None:
    """Rows with hostile, very long and wide texts in all places where a text may stand."""
    long = "W" * 900
    texts = [text.replace("\0", "") if site.kind == "postgresql" else text for text in ODD_TEXTS]
    for status in (0, 1, 2, 3, 4, 5):
        insert(
            site,
            [
                {"task": text[:255], "args": json.dumps({"text": text}), "group_id": 4_294_967_294, "status": status}
                | {"attempts": 4_294_967_295, "max_attempts": 0, "due_at": Ago(-3600), "claim": number}
                | {"error_text": f"ValueError: {text} {long}"[:1000], "progress": json.dumps({"done": 1, "text": text})}
                | {"result": json.dumps(text), "stages": text, "finished_at": Ago(60), "started_at": Ago(61)}
                for number, text in enumerate(texts)
            ],
        )
    insert(site, [_failed(4, number, SCRIPT_ERROR) for number in range(3)])
    insert(
        site,
        [
            {"name": text[:200], "task": text[:255], "group_id": 7, "cron": "* * 31 2 *", "next_at": Ago(-60)}
            for text in texts
        ],
        "_schedules",
    )
    runs: list[dict[str, object]] = [
        {"host": "h" * 200, "group_ids": ",".join(map(str, range(60))), "pid": 4_294_967_295, "started_at": Ago(30)},
        {"host": SCRIPT, "group_ids": SCRIPT, "pid": 1, "started_at": Ago(30)},
    ]
    insert(site, [run | {"reason": "<b>empty"} for run in runs], "_workers")
    insert(site, [run | {"number": number} for number, run in enumerate(runs, 9)], "_processes")
    insert(site, [{"hour": Hour(1), "group_id": 7, "task": text[:255], "done": 10**12} for text in texts], "_stats")


def fill_up(site: Site, rows: int) -> None:
    """So many ready tasks and a tenth as many fatal ones, in three groups, of twenty names."""
    names = [{"task": f"tasks.number_{n}", "group_id": group} for n in range(20) for group in (3, 5, 6)]
    _multiply(site, [name | {"status": 0} for name in names], rows)
    fatal = {"status": 4, "attempts": 10, "error_text": DISCONNECTED, "finished_at": Ago(60)}
    _multiply(site, [name | fatal for name in names], rows // 10)


def _multiply(site: Site, first: Sequence[Mapping[str, object]], rows: int) -> None:
    """Insert these, then as many again and again until there are so many."""
    ((last,),) = site.sql("SELECT COALESCE(MAX(id), 0) FROM jobs_queue")
    insert(site, first)
    columns, count = ", ".join(first[0]), len(first)
    while count < rows:
        more = min(count, rows - count)
        site.sql(f"INSERT INTO jobs_queue ({columns}) SELECT {columns} FROM jobs_queue WHERE id > {last} LIMIT {more}")
        count += more
