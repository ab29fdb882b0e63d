"""The API for programs with a token: `POST …/tasks` adds tasks, and `…/metrics` has the queue's metrics.

Tasks come from webhooks, and from hosts that cannot reach the database: one object or a list, in the format of
`client.py add --bulk`; all are added, or none. A refusal is an HTTPException.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from werkzeug.exceptions import RequestEntityTooLarge, abort
from werkzeug.wrappers import Request, Response

from ..errors import DatabaseError, InvalidTask, SettingError
from ..health.metrics import CONTENT_TYPE, as_text, gauges_when_away, read_gauges
from ..messages.text import shown
from ..model.new_task import NewTask, new_tasks_from
from ..server import TaskServer
from ..settings.page import AddToken, PageSettings
from ..stores.queue.notes import KeyTaken, Notes
from .pace import seconds_to_wait
from .private_files import PrivateFiles

TASKS, METRICS = "tasks", "metrics"
"""The last parts of the paths."""
NO_TOKEN = "a token is needed, as X-Taskserver-Token: TOKEN, or as Authorization: Bearer TOKEN, which some servers drop"
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_TASKS_OF_REQUEST = 1000
MAX_EDGES = 1000
"""Of all `depends_on` in a request together."""
MAX_KEY_CHARACTERS = 255
FORGET_CHANCE = 0.01
"""How often old keys are deleted, as it reads all of them."""
REQUESTS_A_MINUTE = 600
"""Of one token."""
WRONG_A_MINUTE = 30
"""Requests without a valid token, from all addresses: nobody guesses a token of 256 bits."""


def asked_for(request: Request) -> str:
    """TASKS or METRICS; empty for the page, whose links and forms name a view."""
    last = request.path.rstrip("/").rpartition("/")[2]
    is_asked = last == METRICS or (last == TASKS and request.method == "POST")
    return last if is_asked and "view" not in request.args else ""


def metrics(settings: PageSettings, server: TaskServer, files: PrivateFiles, request: Request) -> Response:
    """The queue's metrics, as text."""
    if not _has_token(settings.metrics_sha256, request):
        _refuse_wrong_token(files, request)
    try:
        gauges = read_gauges(server.store, server.settings)
    except DatabaseError:
        gauges = gauges_when_away()
    try:
        return Response(as_text(gauges), content_type=CONTENT_TYPE)
    except SettingError as error:  # the package that writes them is missing
        abort(503, str(error))


# ---- tokens


def _bearer_of(request: Request) -> str:
    """The token of a request; by default Apache drops the usual header, so there is our own."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("X-Taskserver-Token", "").strip()


def _has_token(sha256: str, request: Request) -> bool:
    """Whether a request has the token with this hash."""
    given = hashlib.sha256(_bearer_of(request).encode("utf-8", "replace")).hexdigest()
    return hmac.compare_digest(given, sha256)


def _refuse_wrong_token(files: PrivateFiles, request: Request) -> NoReturn:
    _check_pace(files, "wrong", WRONG_A_MINUTE)
    abort(401, "the token is wrong" if _bearer_of(request) else NO_TOKEN)


def _check_pace(files: PrivateFiles, key: str, most: int) -> None:
    """Count a request, and refuse it if there were too many in a minute."""
    if seconds_to_wait(files, key, most, 60.0):
        abort(429, f"more than {most} requests in a minute")


# ---- tasks


def add(settings: PageSettings, server: TaskServer, files: PrivateFiles, request: Request) -> Response:
    """Add the tasks of a request. Returns their ids as JSON."""
    try:
        return in_json({"ids": _add(settings, server, files, request)}, 201)
    except InvalidTask as error:
        abort(400, str(error))


def in_json(value: object, code: int) -> Response:
    """A JSON response."""
    return Response(json.dumps(value) + "\n", code, content_type="application/json")


def _add(settings: PageSettings, server: TaskServer, files: PrivateFiles, request: Request) -> list[int]:
    if not settings.add_tokens:
        abort(404, "no tasks can be added here")
    token = next((one for one in settings.add_tokens if _has_token(one.sha256, request)), None)
    if token is None:
        _refuse_wrong_token(files, request)
    _check_pace(files, f"token {token.sha256[:16]}", REQUESTS_A_MINUTE)
    tasks = _tasks_in(request)
    new_tasks = list(new_tasks_from(tasks))  # first, as an invalid task is easier to explain than a missing right
    for number, task in enumerate(tasks, start=1):
        _check_rights(token, task, f"task {number}")
    if (edges := sum(len(task.get("depends_on") or ()) for task in tasks)) > MAX_EDGES:
        abort(413, f"depends_on names {edges} tasks in all; allowed: {MAX_EDGES} in one request")
    server.store.tables.check()
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return server.store.producing.add_many(new_tasks)
    return _add_once(server, token, key, new_tasks, tasks)


def _add_once(server: TaskServer, token: AddToken, key: str, new_tasks: Sequence[NewTask], tasks: object) -> list[int]:
    """Add tasks, or find those of an earlier request with the same key."""
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= MAX_KEY_CHARACTERS):
        abort(400, f"Idempotency-Key is wrong; allowed: 1 to {MAX_KEY_CHARACTERS} characters of ASCII")
    notes = Notes(server.store.database)
    try:
        ids = notes.add_once(new_tasks, f"{token.name} {_digest(key)}", _digest(json.dumps(tasks)))
    except KeyTaken:
        abort(409, "this Idempotency-Key was given before, with other tasks")
    if random.random() < FORGET_CHANCE:
        with suppress(DatabaseError):
            notes.delete_old_keys()
    return ids


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _tasks_in(request: Request) -> Sequence[Mapping[str, Any]]:
    if request.content_length is None and not request.environ.get("wsgi.input_terminated"):
        abort(411, "the length of the body is missing: Content-Length")
    request.max_content_length = MAX_BODY_BYTES + 1  # a body without a length is cut there
    try:
        body = request.get_data()
    except RequestEntityTooLarge:
        body = b"x" * (MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        abort(413, f"the body is too long; allowed: {MAX_BODY_BYTES} bytes")
    try:
        found = json.loads(body.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        abort(400, f"the body is not JSON: look at line {error.lineno}, column {error.colno}")
    except (ValueError, RecursionError):
        abort(400, "the body is not JSON: it is not UTF-8 text, or nested too deep")
    tasks = found if isinstance(found, list) else [found]
    if not 0 < len(tasks) <= MAX_TASKS_OF_REQUEST:
        abort(413 if tasks else 400, f"there are {len(tasks)} tasks; allowed: 1 to {MAX_TASKS_OF_REQUEST}")
    return tasks


def _check_rights(token: AddToken, task: Mapping[str, Any], it: str) -> None:
    """Refuse a task whose name, stages or groups the token may not add."""
    group_id = task.get("group_id", 0)
    parts: list[Any] = [task] if task.get("task") is not None else []
    for part in [*parts, *(task.get("stages") or ())]:
        name = part if isinstance(part, str) else part["task"]
        group = group_id if isinstance(part, str) or part.get("group_id") is None else part["group_id"]
        if not token.allows_task(name):
            abort(403, f"{it}: this token may not add {shown(name)}")
        if not token.allows_group(group):
            abort(403, f"{it}: this token may not add to group {group}")
    if token.allows_task("*") and token.groups is None:
        return
    # A rerun changes a row that another producer may have added, and dependencies slow down the ends of others.
    for field in ("rerun", "depends_on"):
        if task.get(field):
            abort(403, f"{it}: {field} is for tokens of all tasks and groups")
    unique_key = task.get("unique_key")
    if unique_key is not None and not unique_key.startswith(f"{token.name}:"):
        abort(403, f"{it}: a unique_key of this token begins with {token.name}:")
