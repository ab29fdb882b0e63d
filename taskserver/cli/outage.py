"""What a line of workers that cron has started says of an outage of the database."""

from __future__ import annotations

import re
import sys
from binascii import crc32
from collections.abc import Iterable, Iterator
from logging import getLogger
from pathlib import Path

from ..errors import DatabaseError, Unavailable
from ..host.database_outage import DatabaseOutage
from ..messages.log_records import FOR_LOG_ALONE
from ..messages.printable import age
from ..settings.load import Settings
from ..worker.record import host_name
from .report import Report

LOG = getLogger("taskserver")


def kind_of(error: DatabaseError) -> str:
    """A short name for what is told together: all ways to be away, or the errors of the same words beside numbers."""
    if isinstance(error, Unavailable):
        return "away"
    return f"{crc32(re.sub('[0-9]+', '', str(error)).encode()):08x}"


def lines_about(settings: Settings, outages: Path, reports: Iterable[Report]) -> Iterator[str]:
    """The lines about the database with which workers end; `outages` is the folder that keeps what was told."""
    outage = DatabaseOutage(outages, host_name(), settings.queue)
    errors = {report.outage: report.words for report in reports if report.outage}
    for kind, words in errors.items():
        yield from _words_of_failure(outage, kind, words)
    if not errors and any(report.outage == "" for report in reports):
        seconds = outage.succeed()
        if seconds is not None:
            yield f"the database can be used again, {age(seconds)} after it was missed first"


def _words_of_failure(outage: DatabaseOutage, kind: str, words: str) -> Iterator[str]:
    if sys.stderr.isatty():  # a person hears it each time
        yield words
        return
    try:
        seconds = outage.fail(kind)
    except OSError:  # and so does whoever has no folder to note it in
        yield words
        return
    if seconds is None:
        LOG.error(words, extra={FOR_LOG_ALONE: True})
        return
    lasted = f"for {age(seconds)} now; " if seconds else ""
    yield f"{words} ({lasted}said once an hour)"
