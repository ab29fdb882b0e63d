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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.support.browser import Browser
from tests.support.deployment import Deployment
from tests.support.pages import PASSWORD, PASSWORD_HASH
from tests.support.processes import wait_until
from tests.support.queues import Queue
from tests.support.websites import Website, gunicorn_website
from tests.support.words import HOURS_AGO

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


class PageQueue(Queue):
    """A queue with a page, from which one may act unless told otherwise."""

    def __init__(self, deployment: Deployment, dsn: str, *, acts: bool = True, tables: bool = True) -> None:
        settings = {
            "TASKSERVER_PAGE_PASSWORD": PASSWORD_HASH,
            "TASKSERVER_PAGE_ACTIONS": "yes" if acts else "no",
            "TASKSERVER_MODE": "mark",
        }
        super().__init__(deployment, dsn, TASKS, settings, tables)

    @contextmanager
    def served(self, workers: int = 2) -> Iterator[Website]:
        """The page under gunicorn, from the deployment's own folder."""
        with gunicorn_website(self.folder, "taskserver.web", workers) as website:
            yield website

    def insert(self, rows: Sequence[Mapping[str, object]], table: str = "") -> None:
        """Rows with the same columns into a table of the queue."""
        forms = ", ".join(f"({', '.join(map(self._form, row.values()))})" for row in rows)
        values = [value for row in rows for value in row.values() if not isinstance(value, (Ago, Hour))]
        self.sql(f"INSERT INTO jobs_queue{table} ({', '.join(rows[0])}) VALUES {forms}", *values)

    def _form(self, value: object) -> str:
        if isinstance(value, Ago):
            return self.ago(value.seconds)
        if not isinstance(value, Hour):
            return "?"
        return HOURS_AGO[self.kind].format(value.ago)


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


def fill_shop(site: PageQueue) -> None:
    """A small shop: letters that failed in the night, pictures that are resized, a catalogue that is imported."""
    _fill_tasks(site)
    _fill_workers(site)
    _fill_schedules(site)
    _fill_hours(site)


def _fill_tasks(site: PageQueue) -> None:
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
    site.insert([running])
    site.insert([{"task": "tasks.resize_picture", "group_id": 5, "status": 1, "claim": (SERVED << 32) + 2}])
    ready = [("tasks.resize_picture", 5), ("tasks.write_invoice", 6), ("tasks.send_letter", 3)]
    site.insert(
        [
            {"task": task, "args": json.dumps({"number": number}), "group_id": group, "priority": 10}
            | {"created_at": Ago(400 - number), "updated_at": Ago(400 - number)}
            for number, (task, group) in enumerate(chance.choices(ready, weights=(8, 2, 1), k=180))
        ]
    )
    site.insert([_failed(4, number, error) for number, error in enumerate(chance.choices(ERRORS, (7, 3, 1), k=37))])
    site.insert([_failed(3, number, DISCONNECTED) | {"due_at": Ago(-300 - number)} for number in range(4)])
    site.insert([{"task": "tasks.send_letter", "group_id": 3, "status": 5, "due_at": Ago(-7200)}])
    site.insert([{"task": "tasks.write_invoice", "group_id": 6, "status": 5}])
    ((waiting,),) = site.sql("SELECT MAX(id) FROM jobs_queue")
    site.insert([{"parent_id": 1, "child_id": waiting}], "_dependencies")
    times = {"created_at": 990, "started_at": 900, "finished_at": 890}
    done = {"task": "tasks.write_invoice", "group_id": 6, "status": 2, "attempts": 1, "result": '{"pages": 2}'}
    site.insert([done | {name: Ago(at + 60 * n) for name, at in times.items()} for n in range(60)])


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


def _fill_workers(site: PageQueue) -> None:
    host = "web12.host.example"
    site.insert(
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
    site.insert([run | counts, last | counts], "_workers")


def _fill_schedules(site: PageQueue) -> None:
    nightly = {"name": "nightly import", "task": "tasks.import_catalogue", "group_id": 5, "cron": "30 3 * * *"}
    invoices = {"name": "invoices", "task": "tasks.write_invoice", "group_id": 6, "every_seconds": 3600}
    reminders = {"name": "reminders", "task": "tasks.send_letter", "group_id": 3, "cron": "0 8 * * 1"}
    site.insert([nightly | {"next_at": Ago(-5 * 3600)}, reminders | {"next_at": Ago(-90_000)}], "_schedules")
    site.insert([invoices | {"next_at": Ago(-600)}], "_schedules")
    for name, ended in (("nightly import", [2, 244.0, 0]), ("invoices", [3, 2.0, 0])):
        note = f"ran {hashlib.sha256(f'schedule:{name}'.encode()).hexdigest()[:32]}"
        site.insert([{"name": note, "value": json.dumps(ended), "noted_at": Ago(3000)}], "_notes")


def _fill_hours(site: PageQueue) -> None:
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
    site.insert(rows, "_stats")


# ---- odd texts, and many rows

SCRIPT = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\">"
ODD_TEXTS = (
    SCRIPT,
    "tasks.商品目録を読み込む・非常に長い名前の仕事" * 5,
    "tasks.مهمة_باسم_طويل_جدا",
    "tasks.🛒👩‍👩‍👧‍👦🏳️‍🌈",
    f"tasks.{'of_a_name_that_never_ends_' * 9}"[:255],
    "\u202etasks.backwards \x1b[31m'\"&amp;`${7*7}{{7*7}}",
)
SCRIPT_ERROR = f"ValueError: {SCRIPT}"


def fill_odd(site: PageQueue) -> None:
    """Rows with hostile, very long and wide texts in all places where a text may stand."""
    long = "W" * 900
    for status in (0, 1, 2, 3, 4, 5):
        site.insert(
            [
                {"task": text[:255], "args": json.dumps({"text": text}), "group_id": 4_294_967_294, "status": status}
                | {"attempts": 4_294_967_295, "max_attempts": 0, "due_at": Ago(-3600), "claim": number}
                | {"error_text": f"ValueError: {text} {long}"[:1000], "progress": json.dumps({"done": 1, "text": text})}
                | {"result": json.dumps(text), "stages": text, "finished_at": Ago(60), "started_at": Ago(61)}
                for number, text in enumerate(ODD_TEXTS)
            ]
        )
    site.insert([_failed(4, number, SCRIPT_ERROR) for number in range(3)])
    site.insert(
        [
            {"name": text[:200], "task": text[:255], "group_id": 7, "cron": "* * 31 2 *", "next_at": Ago(-60)}
            for text in ODD_TEXTS
        ],
        "_schedules",
    )
    odd_run = {"host": "h" * 200, "group_ids": ",".join(map(str, range(60))), "pid": 4_294_967_295}
    site.insert([odd_run | {"started_at": Ago(30), "reason": "<b>empty"}], "_workers")
    site.insert([odd_run | {"number": 9, "started_at": Ago(30)}], "_processes")
    site.insert([{"hour": Hour(1), "group_id": 7, "task": text[:255], "done": 10**12} for text in ODD_TEXTS], "_stats")


def fill_up(site: PageQueue, rows: int) -> None:
    """So many ready tasks and a tenth as many fatal ones, in three groups, of twenty names."""
    names = [{"task": f"tasks.number_{n}", "group_id": group} for n in range(20) for group in (3, 5, 6)]
    _multiply(site, [name | {"status": 0} for name in names], rows)
    fatal = {"status": 4, "attempts": 10, "error_text": DISCONNECTED, "finished_at": Ago(60)}
    _multiply(site, [name | fatal for name in names], rows // 10)


def _multiply(site: PageQueue, first: Sequence[Mapping[str, object]], rows: int) -> None:
    """Insert these, then as many again and again until there are so many."""
    ((last,),) = site.sql("SELECT COALESCE(MAX(id), 0) FROM jobs_queue")
    site.insert(first)
    columns, count = ", ".join(first[0]), len(first)
    while count < rows:
        more = min(count, rows - count)
        site.sql(f"INSERT INTO jobs_queue ({columns}) SELECT {columns} FROM jobs_queue WHERE id > {last} LIMIT {more}")
        count += more
