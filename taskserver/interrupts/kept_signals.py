"""What a run knows about signals, kept over each task: a task may ignore, block or handle them as it likes.

What it leaves behind would hold for all tasks after it: no timeout would strike them, and no signal end the run.
"""

from __future__ import annotations

import signal

# The functions of `signal` make enums of their answers, which would cost more than all else that is done for a task.
from _signal import getsignal, pthread_sigmask  # type: ignore[import-not-found]
from collections.abc import Collection


class KeptSignals:
    """The handlers of some signals, and the signals that this thread holds back, as they are when it is made."""

    def __init__(self, numbers: Collection[int]) -> None:
        # A handler that was not set by Python is None, and cannot be put back.
        self._handlers = [(number, handler) for number in numbers if (handler := getsignal(number)) is not None]
        self._mask = pthread_sigmask(signal.SIG_BLOCK, ())

    def put_back(self) -> None:
        """Put back whatever has changed; in the main thread alone."""
        for number, handler in self._handlers:
            if getsignal(number) != handler:
                signal.signal(number, handler)
        pthread_sigmask(signal.SIG_SETMASK, self._mask)
