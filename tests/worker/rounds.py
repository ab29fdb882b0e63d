"""Tasks of `@task(commit_every=N)` in the test's process, which do what a test says, and what they shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskserver import RunResult
from taskserver.stores.queue.batches import Batches
from tests.support.sites import NumberedSite

CODE = """
import taskserver
from taskserver import task

calls = []
does = {}

def noted(name, n):
    calls.append(n)
    return does.get(name, lambda n: None)(n)

@task(commit_every=5)
def five(n): return noted("five", n)

@task(commit_every=3)
def three(n): return noted("three", n)

@task(commit_every=500, backoff="fixed:50")
def many(n, text=""): return noted("many", n)

@task(commit_every=50, max_attempts=3)
def thrice(n): return noted("thrice", n)

@task(commit_every=50)
def paid(n):
    noted("paid", n)
    connection = does["connect"]()
    connection.cursor().execute("UPDATE jobs_queue_workers SET reason = 'paid' WHERE pid < 0")
    taskserver.complete(connection)
    does["end"](connection)

def single(n=None, **more): return noted("single", n)

@task(batch=5)
def several(items):
    for item in items:
        noted("several", item["n"])
"""


class Rounds(NumberedSite):
    """With an account of the writes that several tasks shared."""

    def __init__(self, *site: Any) -> None:
        super().__init__(*site)
        self.shared: list[tuple[str, int]] = []
        """What was written, and for how many tasks."""

    def calls(self) -> list[int]:
        """The numbers of the tasks that were called since this was asked."""
        numbers = [*self.module.calls]
        self.module.calls.clear()
        return numbers

    def starts(self) -> list[int]:
        return [count for verb, count in self.shared if verb == "start"]

    def run(self, max_tasks: int = 0, is_imported: bool = True, **how: Any) -> RunResult:
        """After the import of their module, as the task that imports it is started by itself."""
        assert not is_imported or self.module
        self.shared.clear()
        with pytest.MonkeyPatch.context() as patch:
            for verb in ("start", "complete", "unstart", "complete_and_start"):
                patch.setattr(Batches, verb, self._noting(verb, getattr(Batches, verb)))
            return super().run(max_tasks, **how)

    def _noting(self, verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(batches: Batches, *given: Any) -> Any:
            self.shared += [(word, len(tasks)) for word, tasks in zip(verb.split("_and_"), given, strict=False)]
            return real(batches, *given)

        return write


def on(number: int, does: Callable[[], Any]) -> Callable[[int], Any]:
    """It does this at the task with this number, and nothing at others."""
    return lambda n: does() if n == number else None


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*values: Any) -> Any:
        raise error

    return fail
