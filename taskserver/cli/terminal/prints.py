"""Standard output of a worker: what tasks print goes to the log, unless it is a terminal. Cron would mail it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from .log import Log, running_task

if TYPE_CHECKING:
    from ...worker.task_context import TaskLabel

MAX_PRINTED_LINE = 10_000
"""Characters of a line in the log: a longer one is broken there. A task may print without ever ending a line."""


@contextmanager
def prints_to_log(stdout: TextIO, log: Log) -> Iterator[None]:
    """In the `with`, send prints to the log, and to nowhere what is written to the descriptor."""
    if stdout.isatty():
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout.fileno())  # for bytes, and for programs that tasks start
    os.close(nowhere)
    prints = PrintsToLog(stdout, log)
    try:
        with redirect_stdout(prints):
            yield
    finally:
        prints.end()


class PrintsToLog:
    """Takes text line by line; the rest of what a text file has is that of the real standard output."""

    def __init__(self, real: TextIO, log: Log) -> None:
        self._real = real
        self._log = log
        self._begun: dict[int, tuple[TaskLabel | None, str]] = {}
        """The line that each thread has not ended yet, and its task."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def detach(self) -> BinaryIO:
        """Give what modules wrap in a writer of their own; the worker goes on with the real one."""
        return self._real.buffer

    def write(self, text: str) -> int:
        thread, now = threading.get_ident(), running_task()
        by, begun = self._begun.pop(thread, (now, ""))
        if by != now:
            self._log.print(begun, by)
            begun = ""
        *ended, rest = (begun + text).split("\n")
        if len(rest) > MAX_PRINTED_LINE:
            ended, rest = [*ended, rest], ""
        for line in ended:
            for first in range(0, len(line), MAX_PRINTED_LINE):
                self._log.print(line[first : first + MAX_PRINTED_LINE], now)
        if rest:
            self._begun[thread] = now, rest
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def end(self) -> None:
        """Log what no end of a line followed."""
        while self._begun:
            by, begun = self._begun.popitem()[1]
            self._log.print(begun, by)
