"""With what a chaos run is set up: its workers, their settings, and how long things take on a busy machine."""

from __future__ import annotations

from collections.abc import Sequence

SHORT_SECONDS = {"sqlite": 8.0, "mysql": 12.0, "postgresql": 12.0}
"""Of faults, in `make test`; each kind of a store's strikes within them."""
SLOTS = 4
PRODUCERS = 2
KEYS = ("one", "two", "three")
CHANGE_SECONDS = (0.02, 0.4)
"""Between two changes of what one of the keys stands for."""
TIE_SECONDS = (0.02, 0.2)
"""Between two tasks of which one may wait for the other."""
LEASE_SECONDS = 2
TIMEOUT_SECONDS = 3
PATIENCE_SECONDS = 10
MAX_ATTEMPTS = 6

SLACK_SECONDS = 0.3
"""For the way from a fault to its effect, and for a worker to get going again behind it."""
DRAIN_SECONDS = 60.0
"""So long, when the faults have ended, the queue may take until one more of its tasks is over."""

SETTINGS = {
    "TASKSERVER_LEASE": f"{LEASE_SECONDS}",
    "TASKSERVER_TIMEOUT": f"{TIMEOUT_SECONDS}",
    "TASKSERVER_DB_PATIENCE": f"{PATIENCE_SECONDS}",
    "TASKSERVER_MAX_ATTEMPTS": f"{MAX_ATTEMPTS}",
}
BACKOFFS = ("fixed:0", "fixed:1")
MODES = ("delete", "move", "mark")
ARGUMENTS: Sequence[Sequence[object]] = (
    ("--slots", 0),
    ("--slots", 0, "--batch", 5),
    (15, "--slots", 0, "--batch", 3),
    ("--slots", 0, "--batch", 1),
)
"""Of each slot's worker.py."""
