"""How long a worker pauses before it looks at the queue again."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

import re
from typing import NamedTuple

from ..errors import SPANS, SettingError, span_seconds
from ..messages.text import shown

MAX_PAUSE_SECONDS = 3600
_FORM = r"[0-9]{1,4}(?:\.[0-9]{1,3})?"


class RunPauses(NamedTuple):
    """Pauses in seconds. From the first to the second, and up to the third, each is twice as long as the one before."""

    after_work: float = 0.1
    """Before the first look of a run that lingers, once it has done all tasks that were there."""
    when_empty: float = 1.0
    """Between its looks, while the queue stays empty."""
    after_error: float = 5.0
    """At most between two tries of a run to reach a database that is away."""


def parse_run_pauses(key: str, value: str) -> RunPauses:
    """Read `0.1,1,5`; `key` is what an error calls it. Raises SettingError."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else []
    seconds = [span_seconds(part) or (float(part) if re.fullmatch(_FORM, part) else 0.0) for part in parts]
    if len(seconds) == 3:
        pauses = RunPauses._make(seconds)
        if 0 < pauses.after_work <= pauses.when_empty <= pauses.after_error <= MAX_PAUSE_SECONDS:
            return pauses
    what = repr(value[:100]) if isinstance(value, str) else shown(value)
    raise SettingError(
        f"{key} is wrong: {what}; allowed: three numbers of seconds, or spans {SPANS}, after work, when the queue is "
        "empty and after an error, as 0.1,1,5: each above 0, none smaller than the one before, at most "
        f"{MAX_PAUSE_SECONDS}"
    )
