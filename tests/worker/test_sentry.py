"""Sentry's SDK, with a transport that writes to a file: it sees each failed attempt by its integration of `logging`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.queues import Queue

TASKS = """
import json
import logging

import sentry_sdk
from sentry_sdk.transport import Transport


class ToFile(Transport):
    def capture_envelope(self, envelope):
        event = envelope.get_event()
        if event is not None:
            with open(HERE / "events", "a") as file:
                file.write(json.dumps(event, default=str) + "\\n")


sentry_sdk.init("http://key@127.0.0.1/1", transport=ToFile)


def fail(message="no luck"):
    secret_of_the_task = 17
    logging.getLogger("shop").info("before it fails")
    raise ValueError(message)


def later():
    from taskserver import Retry
    raise Retry("not yet")


def end():
    raise SystemExit(3)

"""


def events_of(queue: Queue) -> list[dict[str, Any]]:
    """What Sentry was sent, in order."""
    file = queue.folder / "events"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("log", ["", "var/worker.log"], ids=["without a log", "with a log"])
def test_sentry_gets_each_failed_attempt_once_with_its_exception(sqlite_queue: Queue, log: str) -> None:
    (sqlite_queue.folder / "var").mkdir()
    sqlite_queue.add("tasks.fail")
    sqlite_queue.add("tasks.end")
    sqlite_queue.sql("UPDATE jobs_queue SET max_attempts = 1 WHERE id = 2")
    sqlite_queue.add("tasks.later")
    ended = sqlite_queue.worker(TASKSERVER_LOG=log)
    assert (ended.returncode, ended.stderr) == (0, "task 2 tasks.end is fatal: SystemExit: 3\n")
    first, second = events_of(sqlite_queue)
    (error,) = first["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no luck")
    (frame,) = error["stacktrace"]["frames"]
    assert (frame["function"], frame["vars"]["secret_of_the_task"]) == ("fail", "17")
    assert {key: first["extra"][key] for key in ("task_id", "task", "attempt", "is_fatal")} == {
        "task_id": 1,
        "task": "tasks.fail",
        "attempt": 1,
        "is_fatal": False,
    }
    assert (first["level"], first["logger"]) == ("error", "taskserver")
    assert second["exception"]["values"][0]["type"] == "SystemExit"
    assert second["extra"]["is_fatal"] is True


SET_UPS = {
    "dictConfig": "import logging.config\nlogging.config.dictConfig({'version': 1})",
    "disable": "logging.disable()",
}


@pytest.mark.parametrize("set_up", SET_UPS)
def test_sentry_sees_failures_whatever_a_module_does_to_logging(sqlite_queue: Queue, set_up: str) -> None:
    sqlite_queue.define(f"\n{SET_UPS[set_up]}\n")
    sqlite_queue.add("tasks.fail")
    assert sqlite_queue.worker().stderr == ""
    assert [event["exception"]["values"][0]["value"] for event in events_of(sqlite_queue)] == ["no luck"]


def test_an_exception_that_hangs_when_sentry_asks_for_its_text_holds_no_worker_up(sqlite_queue: Queue) -> None:
    sqlite_queue.define(
        "\nclass Mute(Exception):\n"
        "    def __str__(self):\n        import time\n        time.sleep(60)\n"
        "\ndef mute():\n    raise Mute\n"
    )
    sqlite_queue.add("tasks.mute")
    sqlite_queue.add("tasks.fail")
    ended = sqlite_queue.worker(TASKSERVER_LEASE="4")
    assert (ended.returncode, sqlite_queue.rows("status, attempts")) == (0, [(3, 1), (3, 1)])
    assert [event["exception"]["values"][0]["value"] for event in events_of(sqlite_queue)][-1] == "no luck"
