"""Adding tasks over HTTP: `POST …/tasks` with a token, for hosts whose pages cannot reach the database, and webhooks.

One object or a list of them, as `client.py add --bulk` reads its lines: all are added, or none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wrappers import Request, Response

from ..errors import DatabaseError, InvalidTask
from ..messages.printable import shown
from ..model.new_task import new_tasks_from
from ..server import TaskServer
from ..settings.page import AddToken, PageSettings
from .figures import bearer_of, knows
from .private_files import PrivateFiles

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_TASKS = 1000
MAX_KEY_CHARACTERS = 150
REQUESTS_A_MINUTE = 600
"""Of one token."""
WRONG_A_MINUTE = 30
"""Requests without a right token, from all addresses together: nobody guesses a token of 256 bits."""


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
    except DatabaseError:
        # Its words are for the owner alone.
        return _json({"error": "the database is away: send the request again later"}, 503)
    return _json({"ids": ids}, 201)


def _add(settings: PageSettings, server: TaskServer, files: PrivateFiles, request: Request) -> list[int]:
    if not settings.add_tokens:
        raise _Refused(404, "no tasks can be added here")
    token = next((one for one in settings.add_tokens if knows(one.sha256, request)), None)
    if token is None:
        _check_pace(files, "wrong", WRONG_A_MINUTE)
        raise _Refused(401, "the token is missing or wrong" if bearer_of(request) else "a token is needed")
    _check_pace(files, f"token-{token.sha256[:16]}", REQUESTS_A_MINUTE)
    tasks = _tasks_in(request)
    list(new_tasks_from(tasks))  # the sentence about a wrong task comes before that about a right
    for number, task in enumerate(tasks, start=1):
        _check_rights(token, task, number)
    return server.add_tasks(_with_keys(tasks, request.headers.get("Idempotency-Key"), token))


def _check_pace(files: PrivateFiles, name: str, most: int) -> None:
    """Count a request of this minute; refuse it where there were too many."""
    minute = time.time() // 60
    with files.numbers(f"pace-{name}") as numbers:
        count = numbers[1] if len(numbers) == 2 and numbers[0] == minute else 0.0
        if count >= most:
            raise _Refused(429, f"more than {most} requests in a minute")
        numbers[:] = [minute, count + 1]


# ---- what is asked for


def _tasks_in(request: Request) -> Sequence[Mapping[str, Any]]:
    """The descriptions in the body."""
    request.max_content_length = MAX_BODY_BYTES
    try:
        body = request.get_data()
    except RequestEntityTooLarge:
        raise _Refused(413, f"the body is too long; allowed: {MAX_BODY_BYTES} bytes") from None
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
    if task.get("rerun") and not (token.allows_task("*") and token.groups is None):
        raise _Refused(403, f"task {number}: rerun is for tokens of all tasks and groups")


def _with_keys(tasks: Sequence[Mapping[str, Any]], key: str | None, token: AddToken) -> list[Mapping[str, Any]]:
    """The tasks with unique keys made of the request's, so that the request repeated adds nothing."""
    if key is None:
        return list(tasks)
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= MAX_KEY_CHARACTERS):
        raise _Refused(400, f"Idempotency-Key is wrong; allowed: 1 to {MAX_KEY_CHARACTERS} characters of ASCII")
    keyed: list[Mapping[str, Any]] = []
    for number, task in enumerate(tasks, start=1):
        for name in ("unique_key", "depends_on"):
            if task.get(name) is not None:
                raise InvalidTask(f"task {number}: it has {name}, and the request an Idempotency-Key; give one of them")
        keyed.append({**task, "unique_key": f"http:{token.name}:{key}:{number}"})
    return keyed


def _json(value: object, code: int) -> Response:
    return Response(json.dumps(value) + "\n", code, content_type="application/json")
