"""Runs an `async def` task: an event loop for each call, and the way of an interrupt to it.

An exception that is raised inside the event loop could break it, or be kept by a child that nobody awaits. So an
interrupt cancels the coroutine, as asyncio does, and is raised only where the loop does not get its turn. Imported with
the first such task: asyncio is large.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from ..errors import TaskServerError
from .alarm import Alarm, end_child
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
        _run_in_loop(awaiting)
    finally:
        for one in (awaiting, coroutine):  # they have not begun where no loop could
            one.close()
    return running.outcome()


def _run_in_loop(awaiting: Coroutine[Any, Any, None]) -> None:
    """As asyncio.run, which would leave the thread without a loop: a plain task may ask for that of its thread."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise TaskServerError(
            "no event loop runs inside another one: call this in a thread, as await asyncio.to_thread(server.run)"
        )
    if sys.version_info >= (3, 11):
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(awaiting)
        return
    try:
        asyncio.run(awaiting)
    finally:
        asyncio.set_event_loop(_loop_between())


@cache
def _loop_between() -> asyncio.AbstractEventLoop:
    """The loop that a thread finds between two tasks before Python 3.11, which has no Runner."""
    return asyncio.new_event_loop()


def as_interrupt(error: asyncio.CancelledError) -> BaseException:
    """The TaskInterrupted that a cancellation means to the coroutine that runs here; else the cancellation itself."""
    running = Alarm.coroutine
    if isinstance(running, _Running) and threading.current_thread() is threading.main_thread():
        return running.as_interrupt(error)
    return error


class _Running:
    """A coroutine that runs. Its outcome is kept here, so that no frame of asyncio comes into the text of an error."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._worker = os.getpid()
        self._returned: Any = None
        self._raised: BaseException | None = None
        self._why = ""
        """Why it was cancelled here; empty while it was not."""
        self._has_heard = True
        """Whether the loop has had its turn since then, and cancelled it."""

    async def await_it(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if threading.current_thread() is threading.main_thread():
            Alarm.coroutine = self
        try:
            self._returned = await self._coroutine
        except asyncio.CancelledError as error:
            if not self._why:  # by its own code, or by Ctrl-C
                raise
            self._raised = self.as_interrupt(error)
        except BaseException as error:
            self._raised = error
        finally:
            if Alarm.coroutine is self:
                Alarm.coroutine = None
        end_child(self._worker, self._raised)  # before it closes the loop, whose files both have
        if self._why or issubclass(type(self._raised), TaskInterrupted):
            self._leave_threads_behind()

    def _leave_threads_behind(self) -> None:
        """Wait for no thread that an interrupted task keeps busy, neither in this loop nor in a later task."""
        # The loop waits for the threads of its executor, as of asyncio.to_thread: for those of a new one, none.
        self._loop.set_default_executor(ThreadPoolExecutor(1))
        asgiref: Any = sys.modules.get("asgiref.sync")  # Django's: one thread for all tasks of the process
        if asgiref is not None:
            asgiref.SyncToAsync.single_thread_executor = ThreadPoolExecutor(1)

    def as_interrupt(self, error: asyncio.CancelledError) -> BaseException:
        return TaskInterrupted(self._why).with_traceback(error.__traceback__) if self._why else error

    def outcome(self) -> Any:
        """What the coroutine returned. Raises what it raised."""
        raised, self._raised = self._raised, None
        try:
            if raised is not None:
                raise raised
        finally:
            del raised  # its traceback holds this frame
        return self._returned

    def cancel(self, why: str, again_after_seconds: float) -> bool:
        """Cancel it by its loop, once more if it goes on so long; called by the alarm. False: the loop has no turn."""
        task = self._task
        if not self._has_heard or task is None:
            return False

        def hear() -> None:
            self._has_heard = True
            task.cancel()
            signal.setitimer(signal.ITIMER_REAL, again_after_seconds, again_after_seconds)

        self._why, self._has_heard = why, False
        self._loop.call_soon_threadsafe(hear)
        signal.setitimer(signal.ITIMER_REAL, min(BLOCKED_SECONDS, again_after_seconds), again_after_seconds)
        return True
