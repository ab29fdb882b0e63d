"""What a line that cron has started says of an outage of the database."""

from __future__ import annotations

import re
import sys
from binascii import crc32
from logging import getLogger
from typing import TextIO

from ..errors import DatabaseError, Unavailable
from ..host.database_outage import DatabaseOutage
from ..messages.log_records import FOR_LOG_ALONE
from ..messages.printable import age, printable
from ..messages.programs import WORKER
from ..settings.load import Settings
from ..worker.record import host_name
from .terminal.program import say

LOG = getLogger("taskserver")


def kind_of(error: DatabaseError) -> str:
    """A short name for what is told together: all ways to be away, or the errors of the same words without digits."""
    if isinstance(error, Unavailable):
        return "away"
    return f"{crc32(re.sub('[^ ]*[0-9][^ ]*', '', str(error)).encode()):08x}"


def outage_of_line(settings: Settings, command: str) -> DatabaseOutage:
    """The outage as a crontab line of `client.py check` or `page` meets it.

    An alarm tells it for itself: the output of another line may go where nobody reads it.
    """
    return DatabaseOutage(settings.outages, host_name(), f"{command} {settings.queue}")


def outage_of_workers(settings: Settings) -> DatabaseOutage:
    """The outage as the workers of this host meet it."""
    return DatabaseOutage(settings.outages, host_name(), settings.queue)


def tell_of_failure(settings: Settings, error: DatabaseError, is_verbose: bool) -> None:
    """Say why a worker ended, once an hour.

    The log has each failure; whoever watches the log at the shell has heard it by that.
    """
    outage, kind, words = outage_of_workers(settings), kind_of(error), printable(str(error))
    LOG.error(words, extra={FOR_LOG_ALONE: True})
    told = None if is_verbose else failure_to_tell(outage, kind, words, sys.stderr)
    if told and not say(f"{WORKER}: {told}"):
        outage.forget(kind)


def tell_of_end(settings: Settings, is_verbose: bool) -> None:
    """Say that a worker could use the database again, if that is news."""
    # A person at a terminal sees that all is well: the word is for whoever gets the mails.
    told = None if sys.stderr.isatty() else end_to_tell(outage_of_workers(settings))
    if told:
        LOG.info(told)
        if not is_verbose:
            say(f"{WORKER}: {told}")


def failure_to_tell(outage: DatabaseOutage, kind: str, words: str, stream: TextIO) -> str | None:
    """Note a failure: what is to be told of it on a stream now; None where that was told within the hour."""
    if stream.isatty():  # a person hears it each time
        return words
    try:
        seconds = outage.fail(kind)
    except OSError:  # and so does whoever has no folder to note it in
        return words
    if seconds is None:
        return None
    lasted = f"for {age(seconds)} now; " if seconds >= 1 else ""
    return f"{words} ({lasted}said once an hour)"


def end_to_tell(outage: DatabaseOutage) -> str | None:
    """Note that the database was there: what is to be told of the outage that ends here, if that is news."""
    seconds = outage.succeed()
    return None if seconds is None else f"the database can be used again, {age(seconds)} after it was missed first"
