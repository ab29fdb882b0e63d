"""What tasks return, as it is kept in their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskserver.model.results import MAX_RESULT_BYTES
from tests.support.databases import EACH_DATABASE
from tests.support.servers import MariaDB
from tests.support.sites import Site

KEPT: list[Any] = [
    None,
    False,
    {"größe": {"k": [True, None]}},
    "\0 \x1b\u2028 ' \" \\ % %s ? {ids} :x -- ;",
    "😀" * 5461 + "xx",  # as long as may be, of twelve bytes each
]
CODE = """
import time

import taskserver

written = []

class Raises(dict):
    def items(self):
        written.append("raises")
        1 / 0

class Slow(dict):
    def items(self):
        time.sleep(60)

def give(value):
    return value

@taskserver.task(batch=50)
def give_each(items):
    return [Raises(a=1) for item in items]

def return_what_raises():
    return Raises(a=1)

@taskserver.task(timeout=0.2)
def return_what_never_ends():
    return [Slow(a=1)]

def give_a_set():
    return {1}

def give_what_is_too_long():
    return "x" * 65535

def give_long():
    return '"' * 30 * 1024  # each is two bytes of JSON
"""
CANNOT_BE_KEPT = {
    "return_what_raises": "raises ZeroDivisionError as JSON",
    "return_what_never_ends": "raises TaskInterrupted as JSON",
    "give_a_set": "is of type set, which JSON cannot hold: write str(x)",
    "give_what_is_too_long": "takes 65537 bytes as JSON; allowed: 65536",
}


@pytest.fixture(params=["move", "mark"])
def keeping(make_site: Callable[..., Site], site_dsn: str, request: pytest.FixtureRequest) -> Site:
    return make_site(site_dsn, mode=request.param)


def states(site: Site, *ids: int) -> list[tuple[int, object]]:
    found = [site.server.get(task_id) for task_id in ids]
    return [(state.status, state.result) for state in found if state]


@EACH_DATABASE
def test_what_a_task_returned_can_be_asked_for(keeping: Site) -> None:
    site = keeping
    ids = [site.add_args("give", [value]) for value in KEPT]
    site.run()
    assert states(site, *ids) == [(2, value) for value in KEPT]
    table = "jobs_queue_done" if site.mode == "move" else "jobs_queue"
    assert max(len(text.encode()) for (text,) in site.columns("result", table) if text) == MAX_RESULT_BYTES


def test_in_mode_delete_nothing_is_kept_nor_looked_at(site: Site) -> None:
    ids = [site.add_args("return_what_raises"), site.add_args("give_each")]
    assert site.run().done == 2
    assert (site.module.written, states(site, *ids)) == ([], [])


def test_a_task_whose_result_cannot_be_kept_is_done_and_that_is_told(
    keeping: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a run and callable."""
    site = keeping
    names = [*CANNOT_BE_KEPT, "give_a_set"]
    ids = [site.add_args(name) for name in names]
    last = site.add_args("give", ["the next one"])
    result = site.run()
    assert (result.done, result.failed, result.fatal) == (len(ids) + 1, 0, 0)
    assert states(site, *ids, last) == [*[(2, None)] * len(ids), (2, "the next one")]
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for task_id, (name, words), line in zip(ids, CANNOT_BE_KEPT.items(), told, strict=False):
        assert f"task {task_id} {site.name}.{name} is done, and its result is not kept: what it returned " in line
        assert words in line, name
    assert len(told) == len(CANNOT_BE_KEPT)


def test_a_result_longer_than_the_server_takes_is_dropped_and_its_task_is_done(
    mariadb: MariaDB, make_site: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    [[packet]] = mariadb.execute("SELECT @@GLOBAL.max_allowed_packet")
    with mariadb.database() as name:
        try:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {48 * 1024}")
            site = make_site(mariadb.dsn(name), mode="mark")
            ids = [site.add_args("give", [1]), site.add_args("give_long"), site.add_args("give", [2])]
            result = site.run()
        finally:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {packet}")
        assert (result.done, result.failed, result.fatal) == (3, 0, 0)
        assert states(site, *ids) == [(2, 1), (2, None), (2, 2)]
        assert "longer than the server takes (max_allowed_packet)" in caplog.text
