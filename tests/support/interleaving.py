"""Workers in one process, whose steps in the database come in an order that a test chooses.

A step is a statement that commits by itself, or a transaction: a database keeps these apart, so whatever can happen to
workers happens between two of them. A test tries each order in turn, and every one of them again after a change.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from taskserver.stores import Store
from tests.support.processes import WAIT_SECONDS

Plan = Iterable[tuple[int, int]]
"""Whose turn it is, and for how many steps; in the end all go on to their ends, one after the other."""
TO_THE_END = 1_000_000


class _Worker(threading.Thread):
    """What one of them does, a step whenever it is its turn."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._turn = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self.is_over = False
        self.error: BaseException | None = None

    def run(self) -> None:
        self._turn.acquire()
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            self.is_over = True
            self._stands.release()

    def pause(self) -> None:
        """Before a step, in its own thread."""
        self._stands.release()
        self._turn.acquire()

    def go_on(self) -> None:
        """To where the next step begins."""
        self._turn.release()
        assert self._stands.acquire(timeout=WAIT_SECONDS), "a step did not end"
        if self.error is not None:
            raise self.error


def in_order(plan: Plan, *works: Callable[[], object]) -> list[int]:
    """Do some works, their steps in this order. How many steps each of them had."""
    workers = [_Worker(work) for work in works]
    steps = [0] * len(works)
    for worker in workers:
        worker.start()
        worker.go_on()
    for index, count in [*plan, *((index, TO_THE_END) for index in range(len(works)))]:
        for _ in range(count):
            if workers[index].is_over:
                break
            workers[index].go_on()
            steps[index] += 1
    return steps


def watch(store: Store) -> Store:
    """Have the verbs of a store wait for the turn of the worker that does them."""
    do = store.database.run_in_doubt

    def do_in_turn(*args: Any, **kwargs: Any) -> Any:
        worker = threading.current_thread()
        if isinstance(worker, _Worker) and not store.database.session().in_transaction:
            worker.pause()
        return do(*args, **kwargs)

    store.database.run_in_doubt = do_in_turn  # type: ignore[method-assign]
    return store


def interrupted_once(steps: Sequence[int]) -> Iterator[Plan]:
    """Each of two works begins, and stands still after each of its steps until the other one is done."""
    for first, second in ((0, 1), (1, 0)):
        for count in range(1, steps[first] + 1):
            yield [(first, count), (second, TO_THE_END)]


def interrupted_twice(steps: Sequence[int]) -> Iterator[Plan]:
    """Each begins, is interrupted, and goes on to its end while the other one stands still at each of its steps."""
    for first, second in ((0, 1), (1, 0)):
        for count in range(1, steps[first]):
            for other in range(1, steps[second]):
                yield [(first, count), (second, other), (first, TO_THE_END)]


def by_chance(works: int, times: int, seed: int) -> Iterator[Plan]:
    """Some orders of any kind."""
    chance = random.Random(seed)
    for _ in range(times):
        yield [(chance.randrange(works), chance.choice((1, 1, 1, 2, 3, 8))) for _ in range(60)]
