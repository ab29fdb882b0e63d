"""Work of a test in other threads, whose errors are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.processes import WAIT_SECONDS


def in_another_thread(work: Callable[[], object]) -> None:
    """Do it there, to its end."""
    failures: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=do)
    thread.start()
    thread.join(WAIT_SECONDS * 2)
    assert not thread.is_alive()
    for failure in failures:
        raise failure


@contextmanager
def together(*works: Callable[[], object]) -> Iterator[None]:
    """Does all of these, each in a thread of its own, until the end of the `with`; what they raise, it raises."""
    failures: list[BaseException] = []

    def do(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=do, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(2 * WAIT_SECONDS)
        assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]
