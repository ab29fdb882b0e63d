"""The page as one file, for hosts that run no programs for visitors: cron writes it again every few minutes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..errors import DatabaseError, TablesMissing, TablesOutdated
from ..health.accepted import read_accepted
from ..health.doctor import acceptable_of_installation, examine
from ..messages.programs import CLIENT, client_in
from ..model.selection import Selection
from ..model.task import Status
from ..server import TaskServer
from ..stores.queue.views import FIRST, Pages
from .rendering import asset, csp_hash, render
from .views import DAYS, hours_values, overview_values, trouble_in_words

TASKS_SHOWN = 30
LEVELS = ("ok", "warning", "critical", "away")
LATE_AFTER = 3
"""A file is stale after so many times its interval."""


def read_part(server: TaskServer, folder: Path, with_doctor: bool, env_file: Path | None) -> dict[str, Any]:
    """What the page shows of a queue; `env_file` is that of `load_settings`. Raises DatabaseError."""
    server.store.tables.check()
    fatal = Pages(server.store.database).page(Selection(status=Status.FATAL), FIRST, TASKS_SHOWN)
    found = examine(folder, env_file=env_file) if with_doctor else ()
    findings, accepted = read_accepted(server.store).split(found)
    return {
        **overview_values(server),
        **hours_values(server, DAYS["1"]),
        "fatal": fatal,
        "findings": findings if with_doctor else None,
        "accepted": accepted,
        "acceptable": acceptable_of_installation(server.store),
        "queue": server.settings.table,  # the file may be public: don't show the database's address
        "client": client_in(server.settings.folder, env_file),
        "away": None,
    }


def away(queue: str, error: Exception | None) -> dict[str, Any]:
    """The same while the database is away, or if it cannot be found."""
    # The file may be public, and errors name hosts, users and folders.
    is_of_tables = isinstance(error, (TablesMissing, TablesOutdated))
    fix = f"Run {CLIENT} init: it makes them, or upgrades them." if is_of_tables else "Cron's mail has the error."
    words = trouble_in_words(error) if isinstance(error, DatabaseError) else "The settings are wrong"
    return {"queue": queue, "away": words, "fix": fix}


def one_file(parts: Mapping[str, Mapping[str, Any]], every_seconds: int) -> str:
    """The page as one HTML text, of parts by the names of their queues; the only one has no name."""
    style, script = asset("page.css"), asset("one_file.js")
    frame = {
        "policy": (
            f"default-src 'none'; style-src {csp_hash(style)}; script-src {csp_hash(script)}; "
            "base-uri 'none'; form-action 'none'"
        ),
        "style": style,
        "script": script,
        "made_at": datetime.now(timezone.utc),
        "every_seconds": every_seconds,
        "late_seconds": LATE_AFTER * every_seconds,
        "is_live": False,
        "may_act": False,
    }
    bodies = []
    for number, (name, values) in enumerate(parts.items(), start=1):
        prefix = f"queue-{number}-" if name else ""
        body = render("one_file.html", {**values, **frame, "prefix": prefix, "bodies": None})
        level = "away" if values["away"] else str(values["overview"].level)
        bodies.append({"name": name, "anchor": f"{prefix}name", "level": level, "text": Markup(body)})
    # For the only queue, the links and the footer are its own.
    values = parts.get("", {"queue": ", ".join(parts)})
    worst = max((body["level"] for body in bodies), key=LEVELS.index)
    return render("one_file.html", {**values, **frame, "bodies": bodies, "level": worst})
