"""Acting from the page: retry and cancel of chosen tasks, pause and resume of groups, by the same verbs as client.py.

A page that says how many tasks would be touched comes first, by GET; the act itself is a POST from there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from shlex import quote
from typing import Any, NamedTuple

from werkzeug.datastructures import MultiDict

from ..messages.programs import CLIENT
from ..messages.text import begin_in_shell, error_in_shell, printable
from ..model.selection import Selection
from ..model.task import MAX_GROUP_ID, MAX_ID, Status, name_of_status
from ..server import TaskServer
from ..stores.queue.many_rows import Verb
from ..stores.queue.operations import CANCEL, RETRY, Operations
from .private_files import PrivateFiles
from .rendering import link
from .views import BadQuery, Page, error_like, since_of, status_of_name

MAX_SHOWN = 20
MAX_IDS = 500
DONE = {"retry": "retried", "cancel": "cancelled", "pause": "paused", "resume": "resumed"}
VERBS: Mapping[str, Verb] = {"retry": RETRY, "cancel": CANCEL}
GROUP_VERBS = ("pause", "resume")


class Act(NamedTuple):
    """A verb, and what it is done to."""

    verb: str
    selection: Selection
    words: str
    """What is chosen, for the log and the page."""
    arguments: str
    """What client.py is given to do the same; empty where it cannot be written safely."""


def read_act(server: TaskServer, query: MultiDict[str, str]) -> Act:
    """The act that a query names. Raises BadQuery."""
    verb = query.get("verb", "")
    if verb not in DONE:
        raise BadQuery(f"verb is none of {', '.join(DONE)}.")
    ids = _numbers(query, "id", MAX_ID)
    groups = _numbers(query, "group", MAX_GROUP_ID)
    task, error, status = query.get("task") or None, error_like(server, query), status_of_name(query)
    since = _instant_of(server, query)
    if len(ids) > MAX_IDS:
        raise BadQuery(f"At most {MAX_IDS} tasks can be chosen by their ids.")
    if verb in GROUP_VERBS and (ids or task or error or status is not None):
        raise BadQuery(f"{verb} is for groups alone.")
    if verb in GROUP_VERBS and not groups and not (query.get("all") and verb == "resume"):
        raise BadQuery(f"No group is chosen; {CLIENT} pause --all pauses all of them.")
    if verb in VERBS and not (ids or groups or task or error or status is not None or query.get("all")):
        raise BadQuery("No task is chosen: mark some, or choose a group, a name or an error.")
    selection = Selection(ids or None, groups or None, task, error_line=error, status=status, since=since)
    return Act(verb, selection, _words(selection), _arguments(verb, selection))


def _numbers(query: MultiDict[str, str], name: str, most: int) -> list[int]:
    texts = [text for text in query.getlist(name) if text]
    if not all(text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= most for text in texts):
        raise BadQuery(f"{name} is no number from 0 to {most}.")
    return sorted(set(map(int, texts)))


def _instant_of(server: TaskServer, query: MultiDict[str, str]) -> datetime | None:
    """The begin of the span that a query names: an instant, so that the act is done to what the visitor has seen."""
    seconds = since_of(query)
    if seconds is None:
        return None
    now = datetime.fromisoformat(server.store.views.now()).replace(tzinfo=timezone.utc, microsecond=0)
    return now - timedelta(seconds=seconds)


def _words(selection: Selection) -> str:
    """What is chosen; texts of rows in quotes, so that none passes for another choice."""
    parts = []
    if selection.ids:
        parts.append(f"task{'s' if len(selection.ids) > 1 else ''} {', '.join(map(str, selection.ids))}")
    if selection.groups:
        parts.append(f"group{'s' if len(selection.groups) > 1 else ''} {', '.join(map(str, selection.groups))}")
    if selection.task:
        parts.append(f"name {selection.task!r}")
    if selection.error_line:
        parts.append(f"error {selection.error_line!r}")
    if selection.status is not None:
        parts.append(f"status {name_of_status(selection.status)}")
    if isinstance(selection.since, datetime):
        parts.append(f"since {selection.since:%Y-%m-%d %H:%M:%S} UTC")
    return "; ".join(parts) or "all"


def _arguments(verb: str, selection: Selection) -> str:
    """What client.py is given for the same; empty where a text of a row cannot be copied safely."""
    if verb in GROUP_VERBS:
        return f"{verb} {','.join(map(str, selection.groups)) if selection.groups else '--all'}"
    parts = list(map(str, selection.ids or ()))
    parts += ["--group", ",".join(map(str, selection.groups))] if selection.groups else []
    if selection.task:
        name = begin_in_shell(selection.task)
        if name != quote(selection.task):
            return ""
        parts.append(f"--task={name}")  # a name in a row may begin with "-"
    if selection.error_line:
        chosen = error_in_shell(selection.error_line)
        if not chosen.startswith("--error-line="):
            return ""
        parts.append(chosen)
    if selection.status is not None:
        parts += ["--status", name_of_status(selection.status)]
    if isinstance(selection.since, datetime):
        parts += ["--since", f"{selection.since:%Y-%m-%dT%H:%M:%S}"]
    return " ".join([verb, *(parts or ["--all"])])


def preview(server: TaskServer, act: Act, seal: Callable[[Act], str]) -> Page:
    """What an act would touch; nothing is changed. Raises InvalidTask."""
    found, in_error, cancelled = None, 0, 0
    if act.verb in VERBS:
        operations = Operations(server.store)
        found = operations.preview(VERBS[act.verb], act.selection, MAX_SHOWN)
        if act.verb == "retry":
            in_error = _rows(operations, act.selection, status=Status.ERROR)
            cancelled = _rows(operations, act.selection, status=Status.CANCELLED)
        # More tasks than the page says are not touched, whatever comes to pass before the form is sent.
        act = act._replace(selection=act.selection._replace(limit=max(found.rows, 1)))
        if found.first and found.rows == len(found.first):  # the page names all of them
            act = act._replace(selection=act.selection._replace(ids=[task.id for task in found.first]))
    values = {"act": act, "preview": found, "choice": seal(act), "back": _way_back(act)}
    if act.verb == "resume" and act.selection.groups:
        _, are_all_paused = server.store.claims.paused()
        if are_all_paused:
            raise BadQuery("All groups are paused: resume all of them first.")
    return Page("confirm.html", values | {"in_error": in_error, "cancelled": cancelled})


def _way_back(act: Act) -> str:
    """A link to where an act is offered."""
    chosen = act.selection
    if act.verb in GROUP_VERBS:
        return link()
    if chosen.error_line:
        return link("errors")
    if chosen.ids and len(chosen.ids) == 1:
        return link("task", id=chosen.ids[0])
    status = None if chosen.status is None else name_of_status(chosen.status)
    return link("tasks", status=status, group=chosen.groups[0] if chosen.groups else None, task=chosen.task)


def _rows(operations: Operations, selection: Selection, **narrower: Any) -> int:
    """How many tasks that a retry would touch are of this kind; 0 where the visitor chose just this kind."""
    given = selection._asdict()
    if any(given[name] is not None for name in narrower):
        return 0
    return operations.preview(RETRY, selection._replace(**narrower), 0).rows


def sealable(act: Act) -> list[object]:
    """An act as JSON can hold it, never twice the same: each form is good for once."""
    *parts, since = act.selection
    return [secrets.token_hex(8), act.verb, *parts, since.isoformat() if isinstance(since, datetime) else None]


def act_of(sealed: list[Any] | None) -> Act:
    """The act that a page said it would do. Raises BadQuery."""
    if sealed is None:
        raise BadQuery("This form is out of date: look again at what would be done.")
    _, verb, *parts, since = sealed
    selection = Selection(*parts)._replace(since=since and datetime.fromisoformat(since))
    return Act(verb, selection, _words(selection), _arguments(verb, selection))


def do(server: TaskServer, act: Act) -> int:
    """Do it; how many tasks, or groups, were changed. Raises InvalidTask and DatabaseError."""
    if act.verb in VERBS:
        changing: Callable[..., int] = {"retry": server.retry, "cancel": server.cancel}[act.verb]
        return changing(act.selection)
    groups, claims = act.selection.groups, server.store.claims
    if groups is None:
        return claims.resume_all()
    return len(claims.pause(groups) if act.verb == "pause" else claims.resume(groups))


def note(files: PrivateFiles, address: str, act: Act, outcome: str) -> None:
    """Write an act to the log of what visitors did. Raises OSError."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    files.log(printable(f"{now} {address} {act.verb} of {act.words}: {outcome}"))
