"""The page as one file, for hosts that run no programs for visitors: cron writes it again every few minutes."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

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
LATE_AFTER = 3
"""A file is stale after so many times its interval."""


def one_file(server: TaskServer, folder: Path, every_seconds: int, with_doctor: bool, env_file: Path | None) -> str:
    """The page of a queue as one HTML text; `env_file` is that of `load_settings`. Raises DatabaseError."""
    server.store.tables.check()
    fatal = Pages(server.store.database).page(Selection(status=Status.FATAL), FIRST, TASKS_SHOWN)
    found = examine(folder, env_file=env_file) if with_doctor else ()
    findings, accepted = read_accepted(server.store).split(found)
    values = {
        **overview_values(server),
        **hours_values(server, DAYS["1"]),
        "fatal": fatal,
        "findings": findings if with_doctor else None,
        "accepted": accepted,
        "acceptable": acceptable_of_installation(server.store),
    }
    return _rendered(server, every_seconds, values | {"away": None})


def one_file_without_database(server: TaskServer, every_seconds: int, error: DatabaseError) -> str:
    """The page while the database is away."""
    # The file may be public, and errors name hosts, users and folders.
    is_of_tables = isinstance(error, (TablesMissing, TablesOutdated))
    fix = f"Run {CLIENT} init: it makes them, or upgrades them." if is_of_tables else "Cron's mail has the error."
    return _rendered(server, every_seconds, {"away": trouble_in_words(error), "fix": fix})


def _rendered(server: TaskServer, every_seconds: int, values: dict[str, Any]) -> str:
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
        "queue": server.settings.table,  # the file may be public: don't show the database's address
        "is_live": False,
        "client": client_in(server.settings.folder),
        "may_act": False,
    }
    return render("one_file.html", values | frame)
