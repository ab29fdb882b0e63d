"""Adding tasks over HTTP: `POST …/tasks` with a token, for webhooks, and for hosts that cannot reach the database.

One object or a list of them, as `client.py add --bulk` reads its lines: all are added, or none.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wrappers import Request, Response

from ..errors import Conflict, DatabaseError, InvalidTask, Unavailable
from ..messages.text import printable, shown
from ..model.new_task import NewTask, new_tasks_from
from ..server import TaskServer
from ..settings.page import AddToken, PageSettings
from ..stores.queue.notes import KeyTaken, Notes
from .access import bearer_of, knows
from .pace import seconds_to_wait
from .private_files import PrivateFiles

NO_TOKEN = "a token is needed, as X-Taskserver-Token: TOKEN, or as Authorization: Bearer TOKEN, which some servers drop"
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_TASKS = 1000
MAX_EDGES = 1000
"""Of all `depends_on` in a request together."""
MAX_KEY_CHARACTERS = 255
FORGET_CHANCE = 0.01
"""How often old keys are forgotten: it costs a look at all of them."""
REQUESTS_A_MINUTE = 600
"""Of one token."""
WRONG_A_MINUTE = 30
"""Requests without a right token, from all addresses together: nobody guesses a token of 256 bits."""


class Refused(Exception):
    """Why a program's request is refused, with the code of the answer."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        """What the answer says besides."""
        return {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "60"}}.get(self.code, {})


def check_pace(files: PrivateFiles, key: str, most: int) -> None:
    """Count a request. Raises Refused if there were too many in a minute."""
    if seconds_to_wait(files, key, most, 60.0):
        raise Refused(429, f"more than {most} requests in a minute")


def answer(settings: PageSettings, server: TaskServer, files: PrivateFiles, request: Request) -> Response:
    """Add what a request holds; its ids, or why nothing was added, as JSON."""
    try:
        return _json({"ids": _add(settings, server, files, request)}, 201)
    except Refused as error:
        response = _json({"error": str(error)}, error.code)
        response.headers.update(error.headers)
        return response
    except InvalidTask as error:
        return _json({"error": str(error)}, 400)
    except DatabaseError as error:
        # Its words are for the owner only.
        print(printable(f"taskserver page: adding: {error}"), file=request.environ["wsgi.errors"])
        if isinstance(error, (Unavailable, Conflict)):
            return _json({"error": "the database is away: send the request again later"}, 503)
        return _json({"error": "nothing can be added for now: the owner finds the reason in the web server's log"}, 500)


def _json(value: object, code: int) -> Response:
    return Response(json.dumps(value) + "\n", code, content_type="application/json")


def _add(settings: PageSettings, server: TaskServer, files: PrivateFiles, request: Request) -> list[int]:
    if not settings.add_tokens:
        raise Refused(404, "no tasks can be added here")
    token = next((one for one in settings.add_tokens if knows(one.sha256, request)), None)
    if token is None:
        check_pace(files, "wrong", WRONG_A_MINUTE)
        raise Refused(401, "the token is wrong" if bearer_of(request) else NO_TOKEN)
    check_pace(files, f"token {token.sha256[:16]}", REQUESTS_A_MINUTE)
    tasks = _tasks_in(request)
    new_tasks = list(new_tasks_from(tasks))  # first: a wrong task is a simpler thing to say than a missing right
    for number, task in enumerate(tasks, start=1):
        _check_rights(token, task, f"task {number}")
    if (edges := sum(len(task.get("depends_on") or ()) for task in tasks)) > MAX_EDGES:
        raise Refused(413, f"depends_on names {edges} tasks in all; allowed: {MAX_EDGES} in one request")
    server.store.tables.check()
    key = request.headers.get("Idempotency-Key")
    return server.add_tasks(tasks) if key is None else _add_once(server, token, key, new_tasks, tasks)


def _add_once(server: TaskServer, token: AddToken, key: str, new_tasks: Sequence[NewTask], tasks: object) -> list[int]:
    """Add tasks, or find those that were added by an earlier request with the same key."""
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= MAX_KEY_CHARACTERS):
        raise Refused(400, f"Idempotency-Key is wrong; allowed: 1 to {MAX_KEY_CHARACTERS} characters of ASCII")
    notes = Notes(server.store.database)
    try:
        ids = notes.add_once(new_tasks, f"{token.name} {_digest(key)}", _digest(json.dumps(tasks)))
    except KeyTaken:
        raise Refused(409, "this Idempotency-Key was given before, with other tasks") from None
    if random.random() < FORGET_CHANCE:
        with suppress(DatabaseError):
            notes.forget_added()
    return ids


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _tasks_in(request: Request) -> Sequence[Mapping[str, Any]]:
    """The descriptions in the body."""
    if request.content_length is None and not request.environ.get("wsgi.input_terminated"):
        raise Refused(411, "the length of the body is missing: Content-Length")
    request.max_content_length = MAX_BODY_BYTES + 1  # a body without a length is cut there
    try:
        body = request.get_data()
    except RequestEntityTooLarge:
        body = b"x" * (MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise Refused(413, f"the body is too long; allowed: {MAX_BODY_BYTES} bytes")
    try:
        found = json.loads(body.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise Refused(400, f"the body is no JSON: look at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON: it is no text in UTF-8, or too deep") from None
    tasks = found if isinstance(found, list) else [found]
    if not 0 < len(tasks) <= MAX_TASKS:
        raise Refused(413 if tasks else 400, f"there are {len(tasks)} tasks; allowed: 1 to {MAX_TASKS}")
    return tasks


def _check_rights(token: AddToken, task: Mapping[str, Any], it: str) -> None:
    """Refuse a task that the token may not add: of its name, of its stages, in their groups."""
    group_id = task.get("group_id", 0)
    parts: list[Any] = [task] if task.get("task") is not None else []
    for part in [*parts, *(task.get("stages") or ())]:
        name = part if isinstance(part, str) else part["task"]
        group = group_id if isinstance(part, str) or part.get("group_id") is None else part["group_id"]
        if not token.allows_task(name):
            raise Refused(403, f"{it}: this token may not add {shown(name)}")
        if not token.allows_group(group):
            raise Refused(403, f"{it}: this token may not add to group {group}")
    if token.allows_task("*") and token.groups is None:
        return
    # A rerun writes to a row that somebody else may have added, and a task that waits for others slows their end.
    for field in ("rerun", "depends_on"):
        if task.get(field):
            raise Refused(403, f"{it}: {field} is for tokens of all tasks and groups")
    unique_key = task.get("unique_key")
    if unique_key is not None and not unique_key.startswith(f"{token.name}:"):
        raise Refused(403, f"{it}: a unique_key of this token begins with {token.name}:")
