"""A web page in Python that adds a task and answers at once. On cPanel and others: passenger_wsgi.py.

The server is made with the first request and kept: it connects when it is first needed, each thread on a connection of
its own, and again when the host dropped an idle one.
"""

import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from urllib.parse import parse_qs

sys.path.insert(0, "/home/you/taskserver")

from taskserver import TaskServer, TaskServerError

MAX_FORM_BYTES = 100_000


@cache
def server() -> TaskServer:
    """Settings from the `.env` in that folder: of taskserver, or one with a database user that has only INSERT."""
    return TaskServer.from_env("/home/you/taskserver")


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    try:
        form = read_form(environ)
        server().add_task("tasks.send_letter", {"to": "owner@example.org", "text": form["text"]}, group_id=3)
    except (KeyError, ValueError):
        status, text = "400 Bad Request", "Please send a form with the field `text`."
    except TaskServerError as error:
        print(f"send_letter: {error}", file=environ["wsgi.errors"])  # for the site's log, not for the visitor
        status, text = "503 Service Unavailable", "Something went wrong. Please try again later."
    else:
        status, text = "202 Accepted", "Thank you! Your message is on its way."
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]


def read_form(environ: dict[str, Any]) -> dict[str, str]:
    """The fields of a form that was sent by POST."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if not 0 < length <= MAX_FORM_BYTES:
        raise ValueError("no form, or too large a one")
    body: bytes = environ["wsgi.input"].read(length)
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}
