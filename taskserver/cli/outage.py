"""What a worker that cron has started says of an outage of the database."""

from __future__ import annotations

import re
import sys
from binascii import crc32
from pathlib import Path

from ..errors import DatabaseError, Unavailable
from ..host.database_outage import DatabaseOutage
from ..messages.printable import age
from ..settings.load import Settings
from ..worker.record import host_name


def words_of_failure(settings: Settings, outages: Path, error: DatabaseError) -> str | None:
    """The words for a run that ended with this error; None where they were said within the hour.

    `outages` is the folder of the files that say since when which database is away.
    """
    kind = "away" if isinstance(error, Unavailable) else _kind_of(str(error))
    try:
        seconds = _outage(settings, outages).fail(kind)
    except OSError:  # it is told each time where that cannot be noted
        return str(error)
    if seconds is None:
        return None
    lasted = f"for {age(seconds)} now; " if seconds else ""
    return f"{error} ({lasted}said once an hour)"


def _kind_of(text: str) -> str:
    """A short name for all errors of these words, whatever numbers stand in them."""
    return f"{crc32(re.sub('[0-9]+', '', text).encode()):08x}"


def tell_of_end(settings: Settings, outages: Path) -> None:
    """Say that the database is there again, where this run is the one to say so."""
    seconds = _outage(settings, outages).succeed()
    if seconds is not None:
        print(f"worker.py: the database can be used again; the outage lasted {age(seconds)}", file=sys.stderr)


def _outage(settings: Settings, outages: Path) -> DatabaseOutage:
    return DatabaseOutage(outages, host_name(), settings.queue)
