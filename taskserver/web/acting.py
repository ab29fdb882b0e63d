"""Acting from the page: retry, cancel and delete of chosen tasks, pause and resume of groups, as client.py does it.

A page first says by GET how many tasks would be touched; the act is a POST of the same fields from there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from shlex import quote
from typing import NamedTuple

from werkzeug.datastructures import MultiDict

from ..messages.programs import CLIENT
from ..messages.text import begin_in_shell, error_in_shell, printable, read_number
from ..model.checks import is_whole
from ..model.selection import Selection
from ..model.task import MAX_GROUP_ID, MAX_ID, MAX_SIGNED, Status, name_of_status
from ..server import TaskServer
from ..stores.queue.many_rows import Verb
from ..stores.queue.operations import Operations, retry_as
from .private_files import PrivateFiles
from .rendering import link
from .views import VERBS, BadQuery, Page, error_like, number_in, since_of, status_of_name

MAX_SHOWN = 20
MAX_IDS = 500
GROUP_VERBS = ("pause", "resume")
DONE = {name: verb.done for name, verb in VERBS.items()} | {"pause": "paused", "resume": "resumed"}
FIELDS = ("verb", "id", "group", "task", "like", "status", "since", "as", "all", "back")
"""What an act's link and form name."""


class Act(NamedTuple):
    """A verb, and what it is done to."""

    verb: str
    selection: Selection
    as_task: str | None = None
    """The name under which tasks are retried."""

    @property
    def done(self) -> str:
        """What it does, as a participle."""
        return DONE[self.verb]

    @property
    def of_tasks(self) -> Verb | None:
        """The verb of the queue; None for those of groups."""
        return retry_as(self.as_task) if self.as_task else VERBS.get(self.verb)

    @property
    def words(self) -> str:
        """What is chosen, for the log and the page; texts of rows in quotes, so that none passes for another choice."""
        chosen, parts = self.selection, []
        for name, numbers in (("task", chosen.ids), ("group", chosen.groups)):
            if numbers:
                parts.append(f"{name}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}")
        parts += [f"name {chosen.task!r}"] if chosen.task else []
        parts += [f"error {chosen.error_line!r}"] if chosen.error_line else []
        parts += [] if chosen.status is None else [f"status {name_of_status(chosen.status)}"]
        parts += [f"since {chosen.since:%Y-%m-%d %H:%M:%S} UTC"] if isinstance(chosen.since, datetime) else []
        return "; ".join(parts or ["all"]) + (f", as {self.as_task!r}" if self.as_task else "")

    @property
    def arguments(self) -> str:
        """What client.py is given for the same; empty if a text of a row cannot be copied safely."""
        chosen = self.selection
        if self.verb in GROUP_VERBS:
            return f"{self.verb} {','.join(map(str, chosen.groups)) if chosen.groups else '--all'}"
        parts = list(map(str, chosen.ids or ()))
        parts += ["--group", ",".join(map(str, chosen.groups))] if chosen.groups else []
        if chosen.task:
            name = begin_in_shell(chosen.task)
            if name != quote(chosen.task):
                return ""
            parts.append(f"--task={name}")  # a name in a row may begin with "-"
        if chosen.error_line:
            error = error_in_shell(chosen.error_line)
            if not error.startswith("--error-line="):
                return ""
            parts.append(error)
        parts += [] if chosen.status is None else ["--status", name_of_status(chosen.status)]
        parts += ["--since", f"{chosen.since:%Y-%m-%dT%H:%M:%S}"] if isinstance(chosen.since, datetime) else []
        return " ".join([self.verb, *(parts or ["--all"])]) + (f" --as {quote(self.as_task)}" if self.as_task else "")


def read_act(server: TaskServer, query: MultiDict[str, str]) -> Act:
    """The act that a link or a form names. Raises BadQuery."""
    verb = query.get("verb", "")
    if verb not in DONE:
        raise BadQuery(f"verb is none of {', '.join(DONE)}.")
    ids, groups = _numbers(query, "id", MAX_ID), _numbers(query, "group", MAX_GROUP_ID)
    task, error, status = query.get("task") or None, error_like(server, query), status_of_name(query)
    if query.get("line") and query["line"] != _mark_of(error):
        raise BadQuery("The error that was chosen is another one by now: look at the errors again.")
    if len(ids) > MAX_IDS:
        raise BadQuery(f"At most {MAX_IDS} tasks can be chosen by their ids.")
    if verb in GROUP_VERBS and (ids or task or error or status is not None):
        raise BadQuery(f"{verb} is only for groups.")
    if verb in GROUP_VERBS and not groups and not (query.get("all") and verb == "resume"):
        raise BadQuery(f"No group is chosen; {CLIENT} pause --all pauses all of them.")
    if verb in VERBS and not (ids or groups or task or error or status is not None or query.get("all")):
        raise BadQuery("No task is chosen: mark some, or choose a group, a name or an error.")
    limit, since = number_in(query, "limit", MAX_SIGNED) or None, _since(server, query)
    selection = Selection(ids or None, groups or None, task, None, limit, error, status, since)
    return Act(verb, selection, (verb == "retry" and query.get("as")) or None)


def _numbers(query: MultiDict[str, str], name: str, most: int) -> list[int]:
    numbers = {read_number(text) for text in query.getlist(name) if text}
    right = [number for number in numbers if is_whole(number, 0, most)]
    if len(right) < len(numbers):
        raise BadQuery(f"{name} is no number from 0 to {most}.")
    return sorted(right)


def _since(server: TaskServer, query: MultiDict[str, str]) -> datetime | None:
    """The begin of the span that a query names, by the database's clock."""
    seconds = since_of(query)
    if seconds is None:
        return None
    return server.store.views.now().replace(microsecond=0) - timedelta(seconds=seconds)


def _mark_of(line: str | None) -> str:
    return hashlib.sha256((line or "").encode("utf-8", "replace")).hexdigest()[:16]


def preview(server: TaskServer, query: MultiDict[str, str]) -> Page:
    """What an act would touch; nothing is changed. Raises BadQuery, InvalidTask."""
    act = read_act(server, query)
    fields = [(name, one) for name in FIELDS for one in query.getlist(name) if one]
    found, in_error, cancelled = None, 0, 0
    if verb := act.of_tasks:
        operations = Operations(server.store)
        is_final = act.verb == "delete"  # so it is done to the very tasks that there are now, MAX_IDS at a time
        chosen = act.selection._replace(limit=MAX_IDS) if is_final else act.selection
        found = operations.preview(verb, chosen, MAX_IDS if is_final else MAX_SHOWN)
        if act.verb == "retry":
            in_error = _rows(operations, verb, act.selection, Status.ERROR)
            cancelled = _rows(operations, verb, act.selection, Status.CANCELLED)
        # No more tasks than the page says are touched, whatever happens before the form is sent.
        fields.append(("limit", str(max(found.rows, 1))))
        fields += [("line", _mark_of(act.selection.error_line))] if act.selection.error_line else []
        if found.rows == len(found.first):
            fields = [field for field in fields if field[0] != "id"] + [("id", str(task.id)) for task in found.first]
        found = found._replace(first=found.first[:MAX_SHOWN])
    elif act.verb == "resume" and act.selection.groups and server.store.claims.paused()[1]:
        raise BadQuery("All groups are paused: resume all of them first.")
    shown = {"act": act, "preview": found, "fields": fields, "back": way_back(query) or _place_of(act)}
    return Page("confirm.html", shown | {"in_error": in_error, "cancelled": cancelled, "MAX_IDS": MAX_IDS})


def way_back(query: Mapping[str, str]) -> str:
    """The link to where an act was offered; empty if the query names none of this page."""
    back = query.get("back", "")
    return back if re.fullmatch(r"\?[\w.~%+=&-]{0,1000}", back, re.ASCII) else ""


def way_on(query: Mapping[str, str], act: Act, rows: int) -> str:
    """The link to what is shown after an act: where it was offered, if that is still there."""
    back = way_back(query) or _place_of(act)
    if "like=" in back or (act.verb == "delete" and "view=task&" in back):
        back = link("errors")
    return f"{back}&{link(done=act.verb, rows=rows)[1:]}"


def _place_of(act: Act) -> str:
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


def _rows(operations: Operations, verb: Verb, selection: Selection, status: Status) -> int:
    """How many tasks that a retry would touch have this status; 0 if the visitor chose just this status."""
    if selection.status is not None:
        return 0
    return operations.preview(verb, selection._replace(status=status), 0).rows


def do(server: TaskServer, act: Act) -> int:
    """Do it; how many tasks, or groups, were changed. Raises InvalidTask and DatabaseError."""
    if verb := act.of_tasks:
        return Operations(server.store).do(verb, act.selection)
    groups, claims = act.selection.groups, server.store.claims
    if groups is None:
        return claims.resume_all()
    return len(claims.pause(groups) if act.verb == "pause" else claims.resume(groups))


def note(files: PrivateFiles, address: str, act: Act, outcome: str) -> None:
    """Write an act to the log of what visitors did. Raises OSError."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    files.log(printable(f"{now} {address} {act.verb} of {act.words}: {outcome}"))
