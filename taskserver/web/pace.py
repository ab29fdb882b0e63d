"""Rate limits: counted in fixed windows, in one locked file for all processes of the page.

They limit guesses of the password and of tokens, and a token's requests.
"""

from __future__ import annotations

import json
import time

from .private_files import PrivateFiles

FILE = "pace"
MAX_KEYS = 5000
OTHERS = "others"
"""The key for all further keys, so that the file stays small."""
LONGEST_SECONDS = 600.0


def seconds_to_wait(files: PrivateFiles, key: str, most: int, seconds: float, by: int = 1) -> float:
    """Count one of this key. Returns 0, or after `most` in a window of so many seconds the rest of the window.

    `by` -1 uncounts one. Raises OSError.
    """
    with files.locked(FILE) as file:
        now = time.time()  # after waiting for the lock
        # A window that ends too late was begun by a wrong clock.
        counts = {one: (n, end) for one, (n, end) in _read(file.read()).items() if now < end <= now + LONGEST_SECONDS}
        if key not in counts and len(counts) >= MAX_KEYS:
            key = OTHERS
        times, end = counts.get(key, (0, now + seconds))
        if times >= most and by > 0:
            return end - now
        counts[key] = max(times + by, 0), end
        # Write first, then truncate: on a full disk the old content stays.
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
