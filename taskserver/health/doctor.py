"""Every check of a deployment; later checks rely on earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from ..errors import DatabaseError, SettingError
from ..settings.load import Settings, load_settings
from ..stores import Store, open_store
from ..stores.facts import Asked
from ..stores.facts import examine as examine_database
from ..stores.queue.schedules import Schedules
from . import files, modules, queue
from .accepted import Acceptances, read_accepted
from .finding import Finding, Level, critical

PATIENT = float("inf")
"""How many seconds a person in a shell waits for the answer to one statement."""


def accepted_in(folder: Path, answer_seconds: float = PATIENT, env_file: Path | None = None) -> Acceptances:
    """What was accepted for the queue of a deployment, as far as it can be read."""
    try:
        with closing(open_store(load_settings(folder, env_file=env_file))) as store, _bounded(store, answer_seconds):
            return read_accepted(store)
    except Exception:  # the checks report it
        return Acceptances({})


def examine(
    folder: Path, answer_seconds: float = PATIENT, env_file: Path | None = None, for_page: bool = False
) -> Iterator[Finding]:
    """Every check of the deployment in a folder, as far as earlier findings allow.

    `answer_seconds`: the longest wait for the database's answer to one statement. `for_page`: a web server asks.
    """
    try:
        yield from _of_files(files.of_program(folder, env_file))
        settings = load_settings(folder, env_file=env_file)
        yield from _of_files(files.of_deployment(settings, env_file))
    except SettingError as error:
        yield critical("settings", str(error), "without them no program starts")
        return
    task_names: tuple[str, ...] | None = None
    try:
        # Closed before modules are imported, which may fork or open the same file.
        with closing(open_store(settings)) as store, _bounded(store, answer_seconds):
            levels = {}
            for finding in _of_tables(store, settings):
                levels[finding.name] = finding.level
                yield finding
            if levels.get("claim_index") is not Level.CRITICAL:  # without these no count comes to an end in time
                schedules = Schedules(store).all()
                task_names = queue.names_in(store, schedules)
                yield from queue.findings(store, settings)
    except DatabaseError as error:
        longer = "" if answer_seconds == PATIENT else ", which wait longer,"
        yield critical("database", str(error), f"workers and producers{longer} end with this, too")
    yield from modules.findings(settings, task_names, for_page)


def _of_files(findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except OSError as error:
        what = f"{error.filename} cannot be looked at: {error.strerror}"
        yield critical("files", what, "a worker cannot use it either", "give it to the user who runs this")


def _bounded(store: Store, answer_seconds: float) -> AbstractContextManager[None]:
    return nullcontext() if answer_seconds == PATIENT else store.database.tried_once(answer_seconds)


def _of_tables(store: Store, settings: Settings) -> Iterator[Finding]:
    store.tables.check()
    for name, found in examine_database(Asked(store.database, settings.dsn, settings.mode)):
        yield Finding(name, Level[found.level.upper()], found.words, found.why, found.fix)
