#!/usr/bin/python3
"""A CGI script that adds a task and answers at once, with the standard library alone (`cgi` left it in Python 3.13).

For cgi-bin, mode 0755; its first line must name a Python from 3.10 on. It connects anew with each request, and starts
Python anew: a page that is kept running (wsgi_page.py) or PHP answers sooner.
"""

import os
import sys
from urllib.parse import parse_qs

sys.path.insert(0, "/home/you/taskserver")

from taskserver import TaskServer, TaskServerError

MAX_FORM_BYTES = 100_000


def main() -> None:
    try:
        form = read_form()
        with TaskServer.from_env("/home/you/taskserver") as server:
            server.add_task("tasks.send_letter", {"to": "owner@example.org", "text": form["text"]}, group_id=3)
    except (KeyError, ValueError):
        answer("400 Bad Request", "Please send a form with the field `text`.")
    except TaskServerError as error:
        print(f"send_letter: {error}", file=sys.stderr)  # the site's error log
        answer("503 Service Unavailable", "Something went wrong. Please try again later.")
    else:
        answer("202 Accepted", "Thank you! Your message is on its way.")


def read_form() -> dict[str, str]:
    """The fields of a form that was sent by POST."""
    length = int(os.environ.get("CONTENT_LENGTH") or 0)
    if not 0 < length <= MAX_FORM_BYTES:
        raise ValueError("no form, or too large a one")
    body = sys.stdin.buffer.read(length)
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}


def answer(status: str, text: str) -> None:
    """As bytes: a web server's locale may know ASCII alone."""
    head = f"Status: {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    sys.stdout.buffer.write(head.encode() + text.encode())


if __name__ == "__main__":
    main()
