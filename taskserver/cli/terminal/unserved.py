"""A word to whoever adds tasks of a group that no recent run serves: they would wait for ever."""

from __future__ import annotations

import sys
from collections.abc import Collection

from ...errors import DatabaseError
from ...health.coverage import describe_unserved_groups
from ...messages.programs import CLIENT
from ...server import TaskServer


def warn_of_unserved(server: TaskServer, groups: Collection[int]) -> None:
    """Print a line where no run in time serves one of these groups; silent where no run is known or may be read."""
    try:
        words = describe_unserved_groups(groups, server.store.views.runs())
    except DatabaseError:  # a producer's account may have no right to read them
        return
    if words:
        print(f"{CLIENT}: warning: {words}; have a crontab line name it, or no groups", file=sys.stderr)
