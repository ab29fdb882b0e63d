"""What `TaskServer.status`, `list` and `errors` return: what the commands of these names tell, with typed instants."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskserver import InvalidTask, Level, Progress, SettingError, Status
from taskserver.messages.text import plain
from tests.support.processes import wait_until
from tests.support.queues import Queue
from tests.support.sites import Site

CODE = """
from taskserver import Fatal, current_task, progress

def well(n):
    return [n]

def fails():
    raise ValueError("no luck")

def gone():
    raise Fatal("gone\\nfor good")

def looks():
    progress(1, 4, "reading")
    look()
"""


def is_now(instant: datetime | None) -> bool:
    """Whether an instant is aware, and of these minutes."""
    assert instant is not None
    assert instant.utcoffset() == timedelta(0)
    return abs(datetime.now(timezone.utc) - instant) < timedelta(minutes=5)


def test_a_listed_task_has_its_columns_with_their_types(make_site: Any, site_dsn: str) -> None:
    site: Site = make_site(site_dsn, mode="mark")
    done = site.add_args(
        "well", {"n": 1}, unique_key="k", rerun=True, version=7, priority=-2, group_id=3, max_attempts=4
    )
    site.run()
    waiting = site.add_args("well", [2], delay=600)
    later, row = site.server.list()
    assert (later.id, row.id) == (waiting, done)
    assert row._replace(created_at=None, started_at=None, finished_at=None, updated_at=None) == (
        *(done, f"{site.name}.well", {"n": 1}, 3, -2, Status.DONE, 1, 4, None, "k", None, None, None, None, None),
        *(7, [1], None),
    )
    assert isinstance(row.status, Status)
    assert all(map(is_now, (row.created_at, row.started_at, row.finished_at, row.updated_at)))
    assert row.started_at is not None
    assert row.finished_at is not None
    assert row.started_at <= row.finished_at
    assert (later.args, later.status, later.started_at, later.result) == ([2], Status.WAITING, None, None)
    assert later.due_at is not None
    assert is_now(later.due_at - timedelta(seconds=600))


@pytest.mark.parametrize(
    ("chosen", "kind", "words"),
    [
        ({"status": 9}, InvalidTask, "status is 9; allowed: one of taskserver.Status, or several"),
        ({"groups": ["a"]}, SettingError, "a group is 'a'; allowed"),
        ({"error": b"x"}, InvalidTask, "error is b'x'; allowed: a text"),
        ({"since": datetime.fromisoformat("2026-01-01")}, SettingError, "since is .*; allowed"),
        ({"limit": 0}, SettingError, "limit is 0; allowed: a whole number from 1"),
    ],
)
def test_a_wrong_choice_is_named_with_what_is_allowed(
    make_site: Any, sqlite_dsn: str, chosen: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        make_site(sqlite_dsn).server.list(**chosen)


def test_errors_have_instants_and_print_as_before(make_site: Any, site_dsn: str) -> None:
    site: Site = make_site(site_dsn)
    for name in ("fails", "gone", "fails"):
        site.add_args(name)
    site.run()
    first, second = site.server.errors()
    assert (first.line, first.rows, first.fatal, first.example_id) == ("ValueError: no luck", 2, 0, 3)
    assert (second.line, second.fatal) == ("Fatal: gone", 1)
    assert first.first_seen is not None
    assert first.last_seen is not None
    assert first.first_seen <= first.last_seen
    assert is_now(first.first_seen)
    (only,) = site.server.errors(task=f"{site.name}.gone", limit=1)
    assert only == second
    printed = plain(second)
    assert printed["first_seen"] == f"{second.first_seen:%Y-%m-%dT%H:%M:%S.%f}Z"


def test_the_status_is_what_the_command_prints(sqlite_queue: Queue) -> None:
    queue = sqlite_queue
    queue.define("def fails(): raise ValueError('no luck')\n")
    for task, group in (("tasks.note", 0), ("tasks.fails", 0), ("tasks.missing", 0), ("tasks.note", 3)):
        queue.add(task, group_id=group)
    queue.run_here(groups=[0])
    with queue.server as server:
        server.pause(5)
        server.schedule("nightly", "tasks.note", every=86_400)
        status = server.status()
    told = json.loads(queue.here("status", "--json").stdout)
    assert (status.table, status.mode, str(status.level), status.words) == tuple(
        told[name] for name in ("table", "mode", "level", "words")
    )
    assert [finding.as_dict() for finding in status.findings] == told["findings"]
    assert {str(number): rows for number, rows in status.total.rows.items()}.items() <= told["total"].items()
    assert status.groups[3].oldest_ready_seconds is not None
    assert (status.paused_groups, status.are_all_paused) == ([5], False)
    (run,) = status.runs
    assert f"{run.ended_at:%Y-%m-%dT%H:%M:%S.%f}Z" == told["runs"][0]["ended_at"]
    (schedule,) = status.schedules
    assert schedule.next_at is not None
    assert is_now(schedule.next_at - timedelta(days=1))
    assert [error.line for error in status.errors] == [error["line"] for error in told["errors"]]


def test_the_status_tells_of_the_worker_at_work_and_its_running_task(make_site: Any, site_dsn: str) -> None:
    site: Site = make_site(site_dsn)
    seen: list[Any] = []

    def look() -> None:
        wait_until(lambda: site.server.status().running[0].progress is not None)
        seen.append(site.server.status())

    site.module.look = look
    task_id = site.add_args("looks")
    site.run()
    (status,) = seen
    (worker,), (running,) = status.workers, status.running
    assert (running.id, running.progress, running.number) == (task_id, Progress(1, 4, "reading"), worker.number)
    assert (worker.is_here, worker.has_ended, worker.ended_at, worker.group_ids) == (True, False, None, "all")
    assert is_now(worker.started_at)
    assert (status.total.running, status.groups[0].running, status.groups[0].claimed) == (1, 1, 0)


def test_an_empty_queue_has_a_status_too(make_site: Any, sqlite_dsn: str) -> None:
    site: Site = make_site(sqlite_dsn)
    status = site.server.status()
    assert (status.groups, status.runs, status.workers, status.lapsed) == ({}, [], [], 0)
    assert (status.level, status.words) == (Level.WARNING, "No worker ran yet")
    assert status.total.oldest_new_seconds is None
