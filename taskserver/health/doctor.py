"""Every check of a deployment; later checks depend on earlier ones."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ..errors import DatabaseError, SettingError
from ..messages.finding import Finding, Level, Look
from ..messages.programs import IS_INSTALLED, WORKER
from ..model.task import Status
from ..settings.load import Settings, load_settings
from ..stores import Store, open_store
from ..stores.facts import Asked, Check
from ..stores.facts import examine as examine_database
from ..stores.queue.counts import Counts
from ..stores.queue.schedules import Schedules, StoredSchedule
from . import files, modules
from .accepted import Acceptances, read_accepted
from .judge import JUDGES, judge
from .status import read_status

PATIENT = float("inf")
"""Seconds that a person in a shell waits for the answer to one statement."""


def acceptable(store: Store) -> frozenset[str]:
    """The names of what can be accepted: workers can do without it. `settings` is none: without them no store opens."""
    return acceptable_of_installation(store).union(judge.name for judge in JUDGES)


def acceptable_of_installation(store: Store) -> frozenset[str]:
    """Those that the doctor alone finds: a page offers to accept them, and no failed tasks or a cron that stopped."""
    checks: Sequence[Look | Check] = (*files.CHECKS, *modules.CHECKS, *store.database.dialect.facts().checks)
    return frozenset(check.name for check in checks if check.is_acceptable)


def accepted_in(
    folder: Path, answer_seconds: float = PATIENT, env_file: Path | None = None
) -> tuple[Acceptances, frozenset[str]]:
    """The accepted findings of a deployment's queue, and the names that a page can accept, if they can be read."""
    try:
        with _opened(load_settings(folder, env_file=env_file), answer_seconds) as store:
            return read_accepted(store), acceptable_of_installation(store)
    except Exception:  # the checks report it
        return Acceptances({}), frozenset()


def examine(
    folder: Path,
    answer_seconds: float = PATIENT,
    env_file: Path | None = None,
    for_page: bool = False,
    only_reads: bool = False,
) -> Iterator[Finding]:
    """Every check of a deployment's folder, if earlier findings allow it.

    `answer_seconds`: timeout of one statement. `for_page`: a web server asks; `only_reads`: for a page without actions.
    """
    try:
        yield from _of_files(files.of_program(folder, env_file))
        settings = load_settings(folder, env_file=env_file)
        yield from _of_files(files.of_deployment(settings, env_file))
    except SettingError as error:
        yield Finding("settings", Level.CRITICAL, str(error), "without them no program starts")
        return
    task_names: tuple[str, ...] | None = None
    try:
        # Closed before modules are imported, which may fork or open the same file.
        with _opened(settings, answer_seconds) as store:
            has_claim_index = True
            store.tables.check()
            for finding in examine_database(Asked(store.database, settings.dsn, settings.mode, only_reads)):
                has_claim_index &= finding.name != "claim_index" or finding.level is not Level.CRITICAL
                yield finding
            if has_claim_index:  # without it counts take too long
                task_names = names_in(store, Schedules(store).all())
                yield from _of_queue(store, settings)
    except DatabaseError as error:
        longer = "" if answer_seconds == PATIENT else ", which wait longer,"
        why = f"workers and producers{longer} end with this, too"
        yield Finding("database", Level.CRITICAL, str(error), why)
    yield from modules.findings(settings, task_names, for_page)


def _of_files(findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except OSError as error:
        words = f"{error.filename} cannot be looked at: {error.strerror}"
        why, fix = "a worker cannot use it either", "give it to the user who runs this"
        yield Finding("files", Level.CRITICAL, words, why, fix)


@contextmanager
def _opened(settings: Settings, answer_seconds: float) -> Iterator[Store]:
    store = open_store(settings)
    try:
        with nullcontext() if answer_seconds == PATIENT else store.database.without_retries(answer_seconds):
            yield store
    finally:
        store.close()


# ---- the queue


def names_in(store: Store, schedules: Sequence[StoredSchedule]) -> tuple[str, ...]:
    """The callables of pending rows and of schedules, each once. Raises DatabaseError."""
    to_run = (Status.NEW, Status.ERROR, Status.WAITING)
    named = {one.task for one in Counts(store.database).by_name() if one.status in to_run}
    return tuple(sorted(named.union(stored.schedule.task for stored in schedules)))


def _of_queue(store: Store, settings: Settings) -> Iterator[Finding]:
    """One finding of each judge, even if it is ok. Raises DatabaseError."""
    fix = f"{crontab_line(settings.folder)} into your crontab; look at cron's mail, and at both paths in the line"
    for finding in judge(read_status(store, settings)):
        yield finding._replace(fix=fix) if finding.name == "cron" and finding.level else finding


def crontab_line(folder: Path) -> str:
    """What to do to get a line into the crontab."""
    if not IS_INSTALLED:
        return "paste a line of crontab.example"
    # Usually the command is beside Python, but `pip install --user` has another place.
    program = Path(sys.executable).with_name(WORKER)
    words = [str(program)] if program.exists() else [sys.executable, "-m", "taskserver", "worker"]
    return f"paste */5 * * * * {shlex.join([*words, '--folder', str(folder)])}"
