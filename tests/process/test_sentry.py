"""Sentry's SDK, with a transport that writes to a file: it sees each failed attempt by its integration of `logging`."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.documents import blocks
from tests.support.processes import assert_silent
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


def test_sentry_gets_each_failed_attempt_once_with_its_exception(queue: Queue) -> None:
    (queue.folder / "var").mkdir()
    queue.add("tasks.fail")
    queue.add("tasks.end")
    queue.sql("UPDATE jobs_queue SET max_attempts = 1 WHERE id = 2")
    queue.add("tasks.later")
    ended = queue.worker(TASKSERVER_LOG="var/worker.log")
    assert (ended.returncode, ended.stderr) == (0, "task 2 tasks.end is fatal: SystemExit: 3\n")
    first, second = events_of(queue)
    (error,) = first["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no luck")
    (frame,) = error["stacktrace"]["frames"]
    assert (frame["function"], frame["vars"]["secret_of_the_task"]) == ("fail", "17")
    assert {key: first["extra"][key] for key in ("task_id", "task", "attempt")} == {
        "task_id": 1,
        "task": "tasks.fail",
        "attempt": 1,
    }
    assert (first["level"], first["logger"]) == ("error", "taskserver")
    assert second["exception"]["values"][0]["type"] == "SystemExit"


# ---- as docs/logging.md has it


class SlowSentry:
    """A server on this host in the place of Sentry's, which takes its time for an answer."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        bodies = self.bodies

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(0.5)  # longer than the SDK waits without a word as the process ends
                bodies.append(gzip.decompress(body).decode())
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def sentry() -> Iterator[SlowSentry]:
    slow = SlowSentry()
    try:
        yield slow
    finally:
        slow.server.shutdown()
        slow.server.server_close()


def test_the_lines_of_the_documentation_send_failures_to_sentry_and_nothing_to_cron(
    queue: Queue, sentry: SlowSentry
) -> None:
    (code,) = [block.text for block in blocks("docs/logging.md") if block.text.startswith("import sentry_sdk")]
    code = code.replace("https://key@sentry.example.org", f"http://key@{sentry.address}")
    queue.deployment.write_tasks(f"{code}\n\ndef fail():\n    raise ValueError('no luck')\n")
    queue.add("tasks.fail")
    assert_silent(queue.worker())
    (event,) = [json.loads(line) for body in sentry.bodies for line in body.splitlines() if '"exception"' in line]
    assert event["exception"]["values"][0]["value"] == "no luck"
    assert event["extra"]["task"] == "tasks.fail"
