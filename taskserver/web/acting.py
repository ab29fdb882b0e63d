"""Acting from the page: retry, cancel and delete of chosen tasks, pause and resume of groups, like client.py.

First a page shows by GET how many tasks would change; from there a POST of the same fields does it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from shlex import quote
from typing import NamedTuple

from werkzeug.datastructures import MultiDict

from ..errors import DatabaseError, InvalidTask
from ..messages.programs import CLIENT
from ..messages.text import age, error_in_shell, prefix_in_shell, printable
from ..model.selection import Selection
from ..model.task import Status
from ..server import TaskServer
from ..stores.queue.many_rows import Verb
from ..stores.queue.operations import Operations, retry_as
from .private_files import PrivateFiles
from .rendering import link
from .views import VERBS, BadQuery, Page, selection_in

MAX_SHOWN = 20
MAX_IDS = 500
GROUP_VERBS = ("pause", "resume")
DONE = {name: verb.done for name, verb in VERBS.items()} | {"pause": "paused", "resume": "resumed"}
FIELDS = ("verb", "id", "group", "task", "like", "status", "since", "as", "all", "back")
"""The fields of an act's link and form."""


class Act(NamedTuple):
    """A verb, and the tasks or groups that it changes."""

    verb: str
    selection: Selection
    as_task: str | None = None
    """The new name of retried tasks."""

    @property
    def done(self) -> str:
        """The participle of the verb."""
        return DONE[self.verb]

    @property
    def of_tasks(self) -> Verb | None:
        """The verb for tasks; None for groups."""
        return retry_as(self.as_task) if self.as_task else VERBS.get(self.verb)

    @property
    def words(self) -> str:
        """What is chosen, for the log and the page; texts of rows are quoted, so that they can't be misread."""
        chosen = "; ".join(words for words, _ in self._choices()) or "all"
        return chosen + (f", as {self.as_task!r}" if self.as_task else "")

    @property
    def arguments(self) -> str:
        """The same as arguments of client.py; empty if a text of a row cannot be copied safely."""
        options = [option for _, option in self._choices()] or ["--all"]
        renamed = f" --as {quote(self.as_task)}" if self.as_task else ""
        return " ".join([self.verb, *options]) + renamed if all(options) else ""

    def _choices(self) -> Iterator[tuple[str, str]]:
        """Each filter, in words and as an argument of client.py."""
        chosen = self.selection
        if chosen.ids:
            yield _named("task", chosen.ids), " ".join(map(str, chosen.ids))
        if chosen.groups:
            option = "" if self.verb in GROUP_VERBS else "--group "
            yield _named("group", chosen.groups), option + ",".join(map(str, chosen.groups))
        if chosen.task:
            begin = prefix_in_shell(chosen.task)
            # With "=", as a name may begin with "-".
            yield f"name {chosen.task!r}", f"--task={begin}" if begin == quote(chosen.task) else ""
        if chosen.error_line:
            option = error_in_shell(chosen.error_line)
            yield f"error {chosen.error_line!r}", option if option.startswith("--error-line=") else ""
        if chosen.status is not None:
            yield f"status {chosen.status}", f"--status {chosen.status}"
        if isinstance(chosen.since, float):
            yield f"since {age(chosen.since)} ago", f"--since {chosen.since / 3600:.0f}h"


def _named(name: str, numbers: Iterable[int]) -> str:
    texts = list(map(str, numbers))
    return f"{name}{'s' if len(texts) > 1 else ''} {', '.join(texts)}"


def read_act(server: TaskServer, query: MultiDict[str, str]) -> Act:
    """The act of a link or a form. Raises BadQuery."""
    verb, is_all, chosen = query.get("verb", ""), bool(query.get("all")), selection_in(server, query)
    if verb not in DONE:
        raise BadQuery(f"verb is one of {', '.join(DONE)}.")
    if query.get("line") not in (None, _fingerprint(chosen)):
        raise BadQuery("The error that was chosen is another one by now: look at the errors again.")
    if len(query.getlist("id")) > MAX_IDS:
        raise BadQuery(f"At most {MAX_IDS} tasks can be chosen by their ids.")
    are_tasks_chosen = bool(chosen.ids or chosen.task or chosen.error_line or chosen.status is not None)
    if verb in VERBS:
        if not (are_tasks_chosen or chosen.groups or is_all):
            raise BadQuery("No task is chosen: mark some, or choose a group, a name or an error.")
    elif are_tasks_chosen:
        raise BadQuery(f"{verb} is only for groups.")
    elif not (chosen.groups or (is_all and verb == "resume")):
        raise BadQuery(f"No group is chosen; {CLIENT} pause --all pauses all of them.")
    return Act(verb, chosen, (verb == "retry" and query.get("as")) or None)


def _fingerprint(chosen: Selection) -> str:
    """Changes with the error line that chooses the tasks."""
    return hashlib.sha256((chosen.error_line or "").encode("utf-8", "replace")).hexdigest()[:16]


def preview(server: TaskServer, query: MultiDict[str, str]) -> Page:
    """What an act would change. Raises BadQuery, InvalidTask."""
    act = read_act(server, query)
    fields = [(name, one) for name in FIELDS for one in query.getlist(name) if one]
    found, among = None, {}
    if verb := act.of_tasks:
        operations = Operations(server.store)
        is_final = act.verb == "delete"  # then it changes exactly the tasks shown now, MAX_IDS at a time
        chosen = act.selection._replace(limit=MAX_IDS) if is_final else act.selection
        found = operations.preview(verb, chosen, MAX_IDS if is_final else MAX_SHOWN)
        if act.verb == "retry" and act.selection.status is None:  # show which kinds it includes
            for status in (Status.ERROR, Status.CANCELLED):
                among[status] = operations.preview(verb, act.selection._replace(status=status), 0).rows
        # Never change more tasks than the page shows, even if new ones appear before the form is sent.
        fields.append(("limit", str(max(found.rows, 1))))
        fields.append(("line", _fingerprint(act.selection)))
        if found.rows == len(found.first):
            fields = [field for field in fields if field[0] != "id"] + [("id", str(task.id)) for task in found.first]
        found = found._replace(first=found.first[:MAX_SHOWN])
    elif act.verb == "resume" and act.selection.groups and server.store.claims.paused()[1]:
        raise BadQuery("All groups are paused: resume all of them first.")
    shown = {"act": act, "preview": found, "fields": fields, "back": back_link(query) or link()}
    return Page("confirm.html", shown | {"among": among, "MAX_IDS": MAX_IDS})


def back_link(query: Mapping[str, str]) -> str:
    """The link to the view that offered an act; empty if the query has no valid one."""
    back = query.get("back", "")
    return back if re.fullmatch(r"\?[\w.~%+=&-]{0,1000}", back, re.ASCII) else ""


def next_link(query: Mapping[str, str], act: Act, rows: int) -> str:
    """The link to the view after an act: the one that offered it, if it still exists."""
    back = back_link(query) or link()
    if "like=" in back or (act.verb == "delete" and "view=task&" in back):
        back = link("errors")
    return f"{back}&{link(done=act.verb, rows=rows)[1:]}"


def do(server: TaskServer, act: Act, files: PrivateFiles, address: str) -> int:
    """Do it, and log who did it and the outcome. Returns how many tasks or groups changed.

    Raises InvalidTask, DatabaseError, OSError.
    """

    def log(outcome: str) -> None:
        now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        files.log(printable(f"{now} {address} {act.verb} of {act.words}: {outcome}"))

    log("begins")  # first: what cannot be logged must not happen
    try:
        rows = _do(server, act)
    except (InvalidTask, DatabaseError) as error:
        log(f"not done, or not to its end: {error}")
        raise
    log(f"{rows} {act.done}")
    return rows


def _do(server: TaskServer, act: Act) -> int:
    if verb := act.of_tasks:
        return Operations(server.store).do(verb, act.selection)
    groups, claims = act.selection.groups, server.store.claims
    if groups is None:
        return claims.resume_all()
    return len(claims.pause(groups) if act.verb == "pause" else claims.resume(groups))
