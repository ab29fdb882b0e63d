"""How often something may happen: counted in fixed windows, in one locked file for all processes of the page.

It slows guesses at the password and at tokens, and a token's requests.
"""

from __future__ import annotations

import json
import time

from .private_files import PrivateFiles

FILE = "pace"
MAX_KEYS = 5000
OTHERS = "others"
"""The key of all that come once there are so many keys: the file stays small."""
LONGEST_SECONDS = 600.0


def seconds_to_wait(files: PrivateFiles, key: str, most: int, seconds: float, by: int = 1) -> float:
    """Count one of this key; or, after `most` in a window of so many seconds, how long that window lasts.

    0 if it was counted; `by` -1 takes one back. Raises OSError.
    """
    with files.locked(FILE) as file:
        now = time.time()  # only now: others may have counted meanwhile
        # A window that ends too late was begun by a clock that is ahead, or was set back.
        counts = {one: (n, end) for one, (n, end) in _read(file.read()).items() if now < end <= now + LONGEST_SECONDS}
        if key not in counts and len(counts) >= MAX_KEYS:
            key = OTHERS
        times, end = counts.get(key, (0, now + seconds))
        if times >= most and by > 0:
            return end - now
        counts[key] = max(times + by, 0), end
        # Written before the rest is cut off: on a full disk, what was there stays.
        file.seek(0)
        json.dump(counts, file)
        file.flush()
        file.truncate()
    return 0.0


def _read(text: str) -> dict[str, tuple[int, float]]:
    try:
        return {str(key): (int(times), float(end)) for key, (times, end) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):  # empty, cut off, or edited
        return {}
