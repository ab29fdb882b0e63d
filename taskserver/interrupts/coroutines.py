"""Runs an `async def` task in its own event loop, and interrupts it.

An exception inside the event loop could break it, or get lost in a child task. So an interrupt cancels the coroutine,
as asyncio does, and is raised only if the loop is blocked. Imported with the first such task, as asyncio is large.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from .alarm import Alarm
from .stop import TaskInterrupted

BLOCKED_SECONDS = 0.5
"""Code without an `await` for so long is interrupted like plain code."""


def as_plain(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """A plain function that runs an `async def` function to its end."""
    return lambda *args, **kwargs: _run(function(*args, **kwargs))


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in its own event loop, and return its value. Raises what it raises, and TaskInterrupted."""
    running = _Running(coroutine)
    awaiting = running.await_it()
    try:
        asyncio.run(awaiting)
    except RuntimeError:  # asyncio's own, after an interrupt hit its loop
        if running.why:
            raise TaskInterrupted(running.why) from None
        raise
    finally:
        awaiting.close()  # it has not begun inside another loop
        coroutine.close()
        asyncio.set_event_loop(_loop_between())
    return running.outcome()


@cache
def _loop_between() -> asyncio.AbstractEventLoop:
    """The loop for plain tasks that ask for one: asyncio.run leaves the thread without any."""
    return asyncio.new_event_loop()


class _Running:
    """A running coroutine. Its outcome is kept here, so that errors show no frames of asyncio."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._returned: Any = None
        self._raised: BaseException | None = None
        self.why = ""
        """Why it was cancelled here; empty if it was not."""
        self._is_delivered = True
        """Whether the loop has cancelled it since then."""

    async def await_it(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        is_in_main_thread = threading.current_thread() is threading.main_thread()
        if is_in_main_thread:
            Alarm.coroutine = self
        try:
            self._returned = await self._coroutine
        except asyncio.CancelledError as error:
            if not self.why:  # by its own code, or by Ctrl-C
                raise
            self._raised = TaskInterrupted(self.why).with_traceback(error.__traceback__)
        except BaseException as error:
            self._raised = error
        finally:
            if is_in_main_thread:
                Alarm.coroutine = None
        if self.why or type(self._raised) is TaskInterrupted:
            self._abandon_threads()

    def cancel(self, why: str, again_after_seconds: float) -> bool:
        if not self._is_delivered:
            return False
        self.why, self._is_delivered = why, False
        self._loop.call_soon_threadsafe(self._deliver, again_after_seconds)
        signal.setitimer(signal.ITIMER_REAL, min(BLOCKED_SECONDS, again_after_seconds), again_after_seconds)
        return True

    def is_current(self) -> bool:
        return asyncio.current_task() is self._task

    def _deliver(self, again_after_seconds: float) -> None:
        self._is_delivered = True
        assert self._task is not None
        self._task.cancel(self.why)
        signal.setitimer(signal.ITIMER_REAL, again_after_seconds, again_after_seconds)

    def _abandon_threads(self) -> None:
        """Don't wait for busy threads of an interrupted task, neither in this loop nor in a later task."""
        # At its end the loop waits for the threads of its executor; a new one has none.
        self._loop.set_default_executor(ThreadPoolExecutor(1))
        asgiref: Any = sys.modules.get("asgiref.sync")  # Django's: one thread for all tasks of the process
        if asgiref is not None:
            asgiref.SyncToAsync.single_thread_executor = ThreadPoolExecutor(1)

    def outcome(self) -> Any:
        """What the coroutine returned. Raises what it raised."""
        raised, self._raised = self._raised, None
        try:
            if raised is not None:
                raise raised
        finally:
            del raised  # its traceback holds this frame
        return self._returned
