"""Every check of a deployment; later checks rely on earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ..errors import DatabaseError, SettingError
from ..settings.load import Settings, load_settings
from ..stores import Store, open_store
from ..stores.facts import Asked
from ..stores.facts import examine as examine_database
from ..stores.queue.schedules import Schedules
from . import files, modules, page, queue
from .acceptance import Acceptances, read_accepted
from .finding import Finding, Level, critical, ok

PATIENT = float("inf")
"""How many seconds a person in a shell waits for the answer to one statement."""


def accepted_in(folder: Path, answer_seconds: float = PATIENT, env_file: Path | None = None) -> Acceptances:
    """What was accepted for the queue of a deployment, as far as it can be read."""
    try:
        store = open_store(load_settings(folder, env_file=env_file))
        try:
            with _bounded(store, answer_seconds):
                return read_accepted(store)
        finally:
            store.close()
    except Exception:  # the checks report it
        return Acceptances({})


def examine(
    folder: Path, answer_seconds: float = PATIENT, env_file: Path | None = None, for_page: bool = False
) -> Iterator[Finding]:
    """Every check of the deployment in a folder, as far as earlier findings allow.

    `answer_seconds`: the longest wait for the database's answer to one statement. `for_page`: a web server asks.
    """
    yield from _of_files(files.of_program(folder, env_file))
    try:
        settings = load_settings(folder, env_file=env_file)
    except SettingError as error:
        yield critical("settings", str(error), "without them no program starts")
        return
    yield ok("settings", f"table {settings.table}, mode {settings.mode}, modules {', '.join(settings.modules)}")
    yield from _of_files(files.of_deployment(settings))
    yield from page.findings(folder, env_file)
    yield from _of_database(settings, answer_seconds, modules.findings_on_page if for_page else modules.findings)


def _of_files(findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except OSError as error:
        what = f"{error.filename} cannot be looked at: {error.strerror}"
        yield critical("files", what, "a worker cannot use it either", "give it to the user who runs this")


def _of_database(
    settings: Settings,
    answer_seconds: float,
    of_modules: Callable[[Settings, Sequence[str] | None], Iterator[Finding]],
) -> Iterator[Finding]:
    task_names: tuple[str, ...] | None = None
    try:
        store = open_store(settings)
        try:
            with _bounded(store, answer_seconds):
                levels = {}
                for finding in _of_tables(store, settings):
                    levels[finding.name] = finding.level
                    yield finding
                # Without these indexes no count comes to an end in time.
                if levels.get("claim_index") is not Level.CRITICAL:
                    schedules = Schedules(store).all()
                    task_names = queue.names_in(store, schedules)
                    yield from queue.findings(store, schedules, settings)
        finally:
            # Modules are imported next, which may fork or open the same file.
            store.close()
    except DatabaseError as error:
        longer = "" if answer_seconds == PATIENT else ", which wait longer,"
        yield critical("database", str(error), f"workers and producers{longer} end with this, too")
    yield from of_modules(settings, task_names)


def _bounded(store: Store, answer_seconds: float) -> AbstractContextManager[None]:
    database = store.database
    return nullcontext() if answer_seconds == PATIENT else database.tried_once(answer_seconds)


def _of_tables(store: Store, settings: Settings) -> Iterator[Finding]:
    store.tables.check()
    for name, found in examine_database(Asked(store.database, settings.dsn, settings.mode)):
        yield Finding(name, Level[found.level.upper()], found.words, found.why, found.fix)
