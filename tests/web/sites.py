"""Deployments with a status page: their settings, and rows of every kind in their queues, by SQL.

site = PageQueue(deployment)
fill_shop(site)     what a small shop's queue may look like, of all statuses; a picture of it can be shown
fill_odd(site)      besides: hostile and very long texts, wide characters
with site.served() as website, Browser(folder) as browser:
    sign_in(browser, website.url)
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from tests.support.browser import Browser
from tests.support.deployment import Deployment
from tests.support.pages import PASSWORD, PASSWORD_HASH, PageSite
from tests.support.processes import wait_until
from tests.support.queues import Queue
from tests.support.rows import AFTER, HOURS_AGO
from tests.support.websites import Website, gunicorn_website

VIEWS = {
    "overview": "",
    "tasks": "?view=tasks",
    "task": "?view=task&id=1",
    "errors": "?view=errors",
    "hours": "?view=hours",
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
    """A queue with a page from which one may act."""

    def __init__(self, deployment: Deployment) -> None:
        settings = {"TASKSERVER_PAGE_PASSWORD": PASSWORD_HASH, "TASKSERVER_PAGE_ACTIONS": "yes"}
        super().__init__(deployment, "sqlite:///var/taskserver.db", TASKS, settings | {"TASKSERVER_MODE": "mark"})

    def served(self) -> AbstractContextManager[Website]:
        """The page under gunicorn, from the deployment's own folder."""
        return gunicorn_website(self.folder, "taskserver.web")


Site = PageSite | Queue
"""Its tables can be filled."""


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
LETTER: dict[str, object] = {"task": "tasks.send_letter", "group_id": 3}
PICTURE: dict[str, object] = {"task": "tasks.resize_picture", "group_id": 5}
CATALOGUE: dict[str, object] = {"task": "tasks.import_catalogue", "group_id": 5}
INVOICE: dict[str, object] = {"task": "tasks.write_invoice", "group_id": 6}


def fill_shop(site: Site) -> None:
    """A small shop: letters that failed in the night, pictures that are resized, a catalogue that is imported."""
    chance = random.Random(23)
    running = CATALOGUE | {"status": 1, "attempts": 2, "max_attempts": 5, "claim": (SERVED << 32) + 1, "awaited": 1}
    running |= {"due_at": Ago(-240), "started_at": Ago(95), "created_at": Ago(4000)}
    running |= {"unique_key": "catalogue", "version": 12, "stages": json.dumps([CATALOGUE, PICTURE, LETTER])}
    running |= {"args": '{"url": "https://supplier.example.org/catalogue.xml"}'}
    running |= {"progress": '{"done": 3100, "total": 10000, "text": "reading page 31 of the catalogue"}'}
    running |= {"error_text": "ConnectionResetError: [Errno 104] Connection reset by peer"}
    insert(site, [running])
    insert(site, [PICTURE | {"status": 1, "claim": (SERVED << 32) + 2}])
    ready = enumerate(chance.choices((PICTURE, INVOICE, LETTER), weights=(8, 2, 1), k=180))
    insert(site, [one | {"args": json.dumps([n]), "priority": 10, "created_at": Ago(400 - n)} for n, one in ready])
    insert(site, [_failed(4, number, error) for number, error in enumerate(chance.choices(ERRORS, (7, 3, 1), k=37))])
    insert(site, [_failed(3, number, DISCONNECTED) | {"due_at": Ago(-300 - number)} for number in range(4)])
    insert(site, [LETTER | {"status": 5, "due_at": Ago(-7200)}])
    insert(site, [INVOICE | {"status": 5}])
    ((waiting,),) = site.sql("SELECT MAX(id) FROM jobs_queue")
    insert(site, [{"parent_id": 1, "child_id": waiting}], "_dependencies")
    times = {"created_at": 990, "started_at": 900, "finished_at": 890}
    done = INVOICE | {"status": 2, "attempts": 1, "result": '{"pages": 2}'}
    insert(site, [done | {name: Ago(at + 60 * n) for name, at in times.items()} for n in range(60)])
    _fill_workers(site)
    _fill_schedules(site)
    _fill_hours(site)


def _failed(status: int, number: int, error: str) -> dict[str, object]:
    hours = 3600 * (number % 9)
    times = {"created_at": Ago(9000 + hours), "started_at": Ago(7300 + hours), "finished_at": Ago(7200 + hours)}
    args = json.dumps({"to": f"customer{number}@example.org"})
    attempts = 10 if status == 4 else 2
    return LETTER | times | {"args": args, "status": status, "attempts": attempts, "error_text": error + TRACE}


def _fill_workers(site: Site) -> None:
    host = "web12.host.example"
    at_work = {"number": SERVED, "host": host, "group_ids": "5", "pid": 4720, "started_at": Ago(95), "seen_at": Ago(5)}
    gone = at_work | {"number": 8, "pid": 311, "seen_at": Ago(700), "ended_at": Ago(600)}
    insert(site, [at_work | {"taken": 41, "done": 40}], "_processes")
    insert(site, [gone | {"taken": 3, "done": 2}], "_processes")
    run = {"host": host, "group_ids": "3,6", "pid": 4711, "started_at": Ago(40), "ended_at": Ago(35)}
    last = run | {"group_ids": "5", "pid": 4720, "started_at": Ago(95), "ended_at": None}
    counts = {"reason": "empty", "taken": 12, "done": 11, "fatal": 1, "previous_started_at": Ago(100)}
    insert(site, [run | counts, last | counts], "_workers")


def _fill_schedules(site: Site) -> None:
    nightly = CATALOGUE | {"name": "nightly import", "cron": "30 3 * * *", "next_at": Ago(-5 * 3600)}
    invoices = INVOICE | {"name": "invoices", "every_seconds": 3600, "next_at": Ago(-600)}
    for schedule, ended in ((nightly, [2, 244.0, 0]), (invoices, [3, 2.0, 0])):
        insert(site, [schedule], "_schedules")
        name = hashlib.sha256(f"schedule:{schedule['name']}".encode()).hexdigest()[:32]
        insert(site, [{"name": f"ran {name}", "value": json.dumps(ended), "noted_at": Ago(3000)}], "_notes")


def _fill_hours(site: Site) -> None:
    chance = random.Random(30)
    rows: list[dict[str, object]] = []
    for hour in range(30):
        for kind in (LETTER, PICTURE, INVOICE):
            done = chance.randint(40, 90) + (200 if 4 < hour < 12 else 0)
            failed = chance.randint(5, 40) if kind is LETTER and 2 < hour < 12 else 0
            counts = {"begun": done, "attempts": done + failed, "done": done, "failed": failed, "fatal": failed // 8}
            seconds = {"ran_seconds": done * 0.2, "waited_seconds": done * 9.0, "longest_wait_seconds": 90.0}
            rows.append(kind | counts | seconds | {"hour": Hour(hour), "lost": int(hour == 9 and kind is PICTURE)})
    insert(site, rows, "_stats")


# ---- odd texts, and many rows

SCRIPT = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\">"
ODD_TEXTS = (
    SCRIPT,
    "tasks.商品目録を読み込む・非常に長い名前の仕事" * 5,
    "tasks.مهمة_باسم_طويل_جدا_🛒👩‍👩‍👧‍👦🏳️‍🌈",
    f"tasks.{'of_a_name_that_never_ends_' * 9}"[:255],
    "tasks.a\x00b\r\nSet-Cookie: x=1",
    "\u202etasks.backwards \x1b[31m'\"&amp;`${7*7}{{7*7}}",
)


def fill_odd(site: Site) -> None:
    """Rows with hostile, very long and wide texts in all places where a text may stand."""
    texts = [text.replace("\0", "") if site.kind == "postgresql" else text for text in ODD_TEXTS]
    times = {"due_at": Ago(-3600), "finished_at": Ago(60), "started_at": Ago(61)}
    counts = {"group_id": 4_294_967_294, "attempts": 4_294_967_295, "max_attempts": 0}
    schedule = {"group_id": 7, "cron": "* * 31 2 *", "next_at": Ago(-60)}
    for number, text in enumerate(texts):
        row = {"task": text[:255], "args": json.dumps({"text": text}), "claim": number} | times | counts
        row |= {"error_text": f"ValueError: {text} {'W' * 900}"[:1000], "result": json.dumps(text), "stages": text}
        row |= {"progress": json.dumps({"done": 1, "text": text})}
        insert(site, [row | {"status": status} for status in range(6)])
        insert(site, [schedule | {"name": text[:200], "task": text[:255]}], "_schedules")
    insert(site, [_failed(4, number, f"ValueError: {SCRIPT}") for number in range(3)])
    runs: list[dict[str, object]] = [
        {"host": "h" * 200, "group_ids": ",".join(map(str, range(60))), "pid": 4_294_967_295, "started_at": Ago(30)},
        {"host": SCRIPT, "group_ids": SCRIPT, "pid": 1, "started_at": Ago(30)},
    ]
    insert(site, [run | {"reason": "<b>empty"} for run in runs], "_workers")
    insert(site, [run | {"number": number} for number, run in enumerate(runs, 9)], "_processes")
    insert(site, [{"hour": Hour(1), "group_id": 7, "task": text[:255], "done": 10**12} for text in texts], "_stats")
