"""Sentry's SDK, set up as docs/logging.md has it: it gets each failed attempt once, and cron gets nothing."""

from __future__ import annotations

import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from tests.support.documents import blocks
from tests.support.processes import assert_silent
from tests.support.queues import Queue

TASKS = """
def fail():
    secret_of_the_task = 17
    raise ValueError("no luck")

def later():
    from taskserver import Retry
    raise Retry("not yet")

def end():
    raise SystemExit(3)
"""


class Sentry(BaseHTTPRequestHandler):
    """A server on this host in place of Sentry's, which takes its time for an answer."""

    bodies: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.5)  # longer than the SDK waits without a word as the process ends
        self.bodies.append(gzip.decompress(body).decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def test_the_lines_of_the_documentation_send_each_failed_attempt_once(queue: Queue) -> None:
    (code,) = [block.text for block in blocks("docs/logging.md") if block.text.startswith("import sentry_sdk")]
    for name in ("fail", "later", "end"):
        queue.add(f"tasks.{name}")
    with ThreadingHTTPServer(("127.0.0.1", 0), Sentry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        queue.define(code.replace("https://key@sentry.example.org", f"http://key@127.0.0.1:{server.server_port}"))
        assert_silent(queue.worker())
        server.shutdown()
    found = [json.loads(line) for body in Sentry.bodies for line in body.splitlines() if '"exception"' in line]
    events = {event["extra"]["task"]: event for event in found}
    assert len(found) == len(events) == 2
    (error,) = events["tasks.fail"]["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no luck")
    (frame,) = error["stacktrace"]["frames"]
    assert (frame["function"], frame["vars"]["secret_of_the_task"]) == ("fail", "17")
    extra = {key: events["tasks.fail"]["extra"][key] for key in ("task_id", "task", "attempt")}
    assert extra == {"task_id": 1, "task": "tasks.fail", "attempt": 1}
    assert (events["tasks.fail"]["level"], events["tasks.fail"]["logger"]) == ("error", "taskserver")
    assert events["tasks.end"]["exception"]["values"][0]["type"] == "SystemExit"
