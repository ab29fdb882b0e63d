"""Work of a test in another thread, whose errors are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable

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
