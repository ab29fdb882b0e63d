"""Adding tasks over HTTP: `POST …/tasks` with a token, for hosts whose pages cannot reach the database, and webhooks.

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
from .private_files import PrivateFiles
from .tokens import WRONG_A_MINUTE, bearer_of, is_within_pace, knows

NO_TOKEN = "a token is needed, as X-Taskserver-Token: TOKEN, or as Authorization: Bearer TOKEN, which some servers drop"
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_TASKS = 1000
MAX_KEY_CHARACTERS = 255
FORGET_CHANCE = 0.01
"""How often old keys are forgotten: it costs a look at all of them."""
REQUESTS_A_MINUTE = 600
"""Of one token."""


class _Refused(Exception):
    """Why nothing is added, with the code of the answer."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def answer(settings: PageSettings, server: TaskServer, files: PrivateFiles, request: Request) -> Response:
    """Add what a request holds; its ids, or why nothing was added, as JSON."""
    try:
        ids = _add(settings, server, files, request)
    except _Refused as error:
        response = _json({"error": str(error)}, error.code)
        if error.code == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if error.code == 429:
            response.headers["Retry-After"] = "60"
        return response
    except InvalidTask as error:
        return _json({"error": str(error)}, 400)
    except DatabaseError as error:
        # Its words are for the owner alone.
        print(printable(f"taskserver page: adding: {error}"), file=request.environ["wsgi.errors"])
        if isinstance(error, (Unavailable, Conflict)):
            return _json({"error": "the database is away: send the request again later"}, 503)
        return _json({"error": "nothing can be added for now: the owner finds the reason in the web server's log"}, 500)
    return _json({"ids": ids}, 201)


def _add(settings: PageSettings, server: TaskServer, files: PrivateFiles, request: Request) -> list[int]:
    if not settings.add_tokens:
        raise _Refused(404, "no tasks can be added here")
    token = next((one for one in settings.add_tokens if knows(one.sha256, request)), None)
    if token is None:
        _check_pace(files, "wrong", WRONG_A_MINUTE)
        raise _Refused(401, "the token is wrong" if bearer_of(request) else NO_TOKEN)
    _check_pace(files, f"token-{token.sha256[:16]}", REQUESTS_A_MINUTE)
    tasks = _tasks_in(request)
    new_tasks = list(new_tasks_from(tasks))  # the sentence about a wrong task comes before that about a right
    for number, task in enumerate(tasks, start=1):
        _check_rights(token, task, number)
    server.store.tables.check()
    key = request.headers.get("Idempotency-Key")
    return server.add_tasks(tasks) if key is None else _add_once(server, token, key, new_tasks)


def _add_once(server: TaskServer, token: AddToken, key: str, tasks: Sequence[NewTask]) -> list[int]:
    """Add tasks, or find those that were added by an earlier request with the same key."""
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= MAX_KEY_CHARACTERS):
        raise _Refused(400, f"Idempotency-Key is wrong; allowed: 1 to {MAX_KEY_CHARACTERS} characters of ASCII")
    notes = Notes(server.store.database)
    try:
        ids = notes.add_once(tasks, f"{token.name} {_digest(key)}", _digest(json.dumps(tasks)))
    except KeyTaken:
        raise _Refused(409, "this Idempotency-Key was given before, with other tasks") from None
    if random.random() < FORGET_CHANCE:
        with suppress(DatabaseError):
            notes.forget_added()
    return ids


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _check_pace(files: PrivateFiles, name: str, most: int) -> None:
    if not is_within_pace(files, name, most):
        raise _Refused(429, f"more than {most} requests in a minute")


# ---- what is asked for


def _tasks_in(request: Request) -> Sequence[Mapping[str, Any]]:
    """The descriptions in the body."""
    if request.content_length is None and not request.environ.get("wsgi.input_terminated"):
        raise _Refused(411, "the length of the body is missing: Content-Length")
    request.max_content_length = MAX_BODY_BYTES + 1  # a body without a length is cut there
    try:
        body = request.get_data()
    except RequestEntityTooLarge:
        body = b"x" * (MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise _Refused(413, f"the body is too long; allowed: {MAX_BODY_BYTES} bytes")
    try:
        found = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"the body is no JSON: {shown(str(error))}") from None
    tasks = found if isinstance(found, list) else [found]
    if not 0 < len(tasks) <= MAX_TASKS:
        raise _Refused(413 if tasks else 400, f"there are {len(tasks)} tasks; allowed: 1 to {MAX_TASKS}")
    return tasks


def _check_rights(token: AddToken, task: Mapping[str, Any], number: int) -> None:
    """Refuse a task that the token may not add: of its name, of its stages, in their groups."""
    group_id = task.get("group_id", 0)
    parts: list[Any] = [task] if task.get("task") is not None else []
    for part in [*parts, *(task.get("stages") or ())]:
        name = part if isinstance(part, str) else part["task"]
        group = group_id if isinstance(part, str) or part.get("group_id") is None else part["group_id"]
        if not token.allows_task(name):
            raise _Refused(403, f"task {number}: this token may not add {shown(name)}")
        if not token.allows_group(group):
            raise _Refused(403, f"task {number}: this token may not add to group {group}")
    # A rerun writes to a row that somebody else may have added.
    is_of_all = token.allows_task("*") and token.groups is None
    if task.get("rerun") and not is_of_all:
        raise _Refused(403, f"task {number}: rerun is for tokens of all tasks and groups")
    unique_key = task.get("unique_key")
    if unique_key is not None and not is_of_all and not unique_key.startswith(f"{token.name}:"):
        raise _Refused(403, f"task {number}: a unique_key of this token begins with {token.name}:")


def _json(value: object, code: int) -> Response:
    return Response(json.dumps(value) + "\n", code, content_type="application/json")
