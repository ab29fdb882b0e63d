"""Work of a test in other threads, whose errors are the test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.support.processes import WAIT_SECONDS


@contextmanager
def together(*works: Callable[[], object]) -> Iterator[None]:
    """Does all of these, each in a thread of its own, until the end of the `with`; what they raise, it raises."""
    with ThreadPoolExecutor(len(works)) as pool:
        doing = [pool.submit(work) for work in works]
        yield
        for one in doing:
            one.result(2 * WAIT_SECONDS)


def in_another_thread(work: Callable[[], object]) -> None:
    """Do it there, to its end."""
    with together(work):
        pass
