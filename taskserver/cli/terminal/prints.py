"""Standard output of a worker: what tasks print goes to the log, unless it is a terminal. Cron would mail it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from .log import TaskOutput, running_task

if TYPE_CHECKING:
    from ...worker.task_context import TaskLabel

MAX_PRINTED_LINE = 10_000
"""Characters of one line; a task may print without ever ending a line."""


@contextmanager
def prints_to_log(stdout: TextIO, output: TaskOutput) -> Iterator[None]:
    """In the `with`, send prints to the log, and to nowhere what is written to the descriptor."""
    if stdout.isatty():
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout.fileno())  # for bytes, and for programs that tasks start
    os.close(nowhere)
    prints = PrintsToLog(stdout, output)
    try:
        with redirect_stdout(prints):
            yield
    finally:
        prints.end()


class PrintsToLog:
    """Takes text line by line; the rest of what a text file has is that of the real standard output."""

    def __init__(self, real: TextIO, output: TaskOutput) -> None:
        self._real = real
        self._output = output
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
            self._output.print(begun, by)
            begun = ""
        *ended, rest = (begun + text).split("\n")
        for line in ended:
            for piece in _pieces(line):
                self._output.print(piece, now)
        *full, rest = _pieces(rest)
        for piece in full:
            self._output.print(piece, now)
        if rest:
            self._begun[thread] = now, rest
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def end(self) -> None:
        """Log what no end of a line followed."""
        while self._begun:
            by, begun = self._begun.popitem()[1]
            self._output.print(begun, by)


def _pieces(text: str) -> list[str]:
    return [text[first : first + MAX_PRINTED_LINE] for first in range(0, len(text) or 1, MAX_PRINTED_LINE)]
