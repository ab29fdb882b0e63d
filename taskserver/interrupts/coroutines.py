"""Runs an `async def` task: an event loop for each call, and the way of an interrupt to it.

An exception that is raised inside the event loop could break it, or be kept by a child that nobody awaits. So an
interrupt cancels the coroutine, as asyncio does, and is raised only where the loop does not get its turn. Imported with
the first such task: asyncio is large.
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
"""Code that does not come to an `await` for so long is interrupted as the code of any other task."""


def as_plain(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """A plain function that runs an `async def` function to its end."""
    return lambda *args, **kwargs: _run(function(*args, **kwargs))


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in an event loop of its own: its return value. Raises whatever it raises, and TaskInterrupted."""
    running = _Running(coroutine)
    awaiting = running.await_it()
    try:
        asyncio.run(awaiting)
    except RuntimeError:  # asyncio's own, after an interrupt that met its loop
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
    """The loop for plain tasks that ask for that of their thread: asyncio.run leaves it without one."""
    return asyncio.new_event_loop()


class _Running:
    """A coroutine that runs. Its outcome is kept here, so that no frame of asyncio comes into the text of an error."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._returned: Any = None
        self._raised: BaseException | None = None
        self.why = ""
        """Why it was cancelled here; empty while it was not."""
        self._has_heard = True
        """Whether the loop has had its turn since then, and cancelled it."""

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
            self._leave_threads_behind()

    def cancel(self, why: str, again_after_seconds: float) -> bool:
        if not self._has_heard:
            return False
        self.why, self._has_heard = why, False
        self._loop.call_soon_threadsafe(self._hear, again_after_seconds)
        signal.setitimer(signal.ITIMER_REAL, min(BLOCKED_SECONDS, again_after_seconds), again_after_seconds)
        return True

    def is_current(self) -> bool:
        return asyncio.current_task() is self._task

    def _hear(self, again_after_seconds: float) -> None:
        self._has_heard = True
        assert self._task is not None
        self._task.cancel(self.why)
        signal.setitimer(signal.ITIMER_REAL, again_after_seconds, again_after_seconds)

    def _leave_threads_behind(self) -> None:
        """Wait for no thread that an interrupted task keeps busy, neither in this loop nor in a later task."""
        # The loop waits for the threads of its executor, as of asyncio.to_thread: for those of a new one, none.
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
