"""TASKSERVER_WARN_AFTER: tells once that a task name has failed so often in a row, long before its tasks are fatal."""

from __future__ import annotations

from logging import getLogger

from ..host.streaks import Streaks
from ..messages.log_records import about_task
from ..model.failed_attempt import FailedAttempt
from ..settings.load import Settings

LOG = getLogger("taskserver")


class Outages:
    """Counts the failures in a row of each task name, across the runs of this host."""

    def __init__(self, settings: Settings) -> None:
        self._warn_after = settings.warn_after
        self._streaks = Streaks(settings.folder, settings.queue)
        self._is_broken = False
        """Whether the counts could not be kept; that is told once a run."""

    def failed(self, failed: FailedAttempt, text: str) -> None:
        """Count a failed attempt, whose error is `text`; warn where it is the one to do so."""
        if not self._warn_after or self._is_broken:
            return
        try:
            count = self._streaks.add(failed.task, self._warn_after)
        except OSError as error:
            self._is_broken = True
            LOG.warning(
                "TASKSERVER_WARN_AFTER: failures are not counted, as %s cannot be written: %s",
                *(error.filename or "var/", error.strerror),
            )
            return
        if count == self._warn_after:
            LOG.warning(
                "%s has failed %d times in a row, last as task %d: %s (said once until it goes well)",
                *(failed.task, count, failed.id, text),
                extra=about_task(failed.id, failed.task, failed.attempt),
            )

    def went_well(self, name: str) -> None:
        """End the streak of a task name."""
        if self._warn_after and self._streaks.end(name):
            LOG.info("%s goes well again", name)
