"""What the doctor shows of a queue: the findings of its judge, those that are ok too, and what modules must hold."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..messages.programs import IS_INSTALLED, WORKER
from ..model.task import Status
from ..settings.load import Settings
from ..stores import Store
from ..stores.queue.counts import Counts
from ..stores.queue.schedules import StoredSchedule
from .finding import Finding
from .judge import judge
from .status import read_status


class Opened(NamedTuple):
    """A queue without a TaskServer."""

    settings: Settings
    store: Store


def names_in(store: Store, schedules: Sequence[StoredSchedule]) -> tuple[str, ...]:
    """The callables of the next rows and of schedules, each once. Raises DatabaseError."""
    to_run = (Status.NEW, Status.ERROR, Status.WAITING)
    named = {one.task for one in Counts(store.database).by_name() if one.status in to_run}
    return tuple(sorted(named.union(stored.schedule.task for stored in schedules)))


def findings(store: Store, settings: Settings) -> Iterator[Finding]:
    """One finding of each judge. Raises DatabaseError."""
    fix = f"{crontab_line(settings.folder)} into your crontab; look at cron's mail, and at both paths in the line"
    for finding in judge(read_status(Opened(settings, store))):
        yield finding._replace(fix=fix) if finding.name == "cron" and finding.level else finding


def crontab_line(folder: Path) -> str:
    """Which line belongs into the crontab."""
    if not IS_INSTALLED:
        return "paste a line of crontab.example"
    # As a rule the command is beside Python; pip has another place for the commands of a user.
    program = Path(sys.executable).with_name(WORKER)
    words = [str(program)] if program.exists() else [sys.executable, "-m", "taskserver", "worker"]
    return f"paste */5 * * * * {shlex.join([*words, '--folder', str(folder)])}"
