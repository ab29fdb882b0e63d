"""The queue in one database: a thin face that holds the verbs, in the order of a task's life.

Nothing above the stores sees SQL, a cursor or a driver's error. A part that an empty run does not need is imported when
it is first used. Verbs that few runs need (dependencies, batches, schedules, stats, operations, pruning, transactions)
are classes over a store, imported by whoever needs them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ..database import Database
from ..tables import Tables
from .claims import Claims
from .due import DueRows
from .runs import Runs

if TYPE_CHECKING:
    from .adding import Producing
    from .callers import Callers
    from .dependencies import GivenUp
    from .finishes import Finishes
    from .processes import Processes
    from .views import Views


class Store:
    """One queue; connects when it is first used."""

    def __init__(self, database: Database, mode: str, lease_seconds: int) -> None:
        self.mode = mode
        self.lease_seconds = lease_seconds
        self.database = database
        self.tables = Tables(self.database)
        self.runs = Runs(self.database)
        self.given_up: list[GivenUp] = []
        """Tasks that became fatal because of others, for a run to report."""
        self.due = DueRows(self.database, self.given_up)
        self.claims = Claims(self.database, lease_seconds)

    @property
    def table(self) -> str:
        return self.database.dialect.table

    @property
    def has_one_writer(self) -> bool:
        """Whether a transaction that writes keeps all others from writing."""
        return self.database.dialect.has_one_writer

    @property
    def about_space(self) -> str:
        """A sentence for a person: the fate of the space of rows that were deleted from the tables `{}`."""
        return self.database.dialect.about_space

    # ---- for producers

    @cached_property
    def producing(self) -> Producing:
        from .adding import Producing

        return Producing(self.database)

    @cached_property
    def callers(self) -> Callers:
        """The verbs on callers' own connections to the same queue."""
        from .callers import Callers

        return Callers(self.database.dialect, self.mode, self.lease_seconds)

    # ---- for a worker that has a task

    @cached_property
    def processes(self) -> Processes:
        from .processes import Processes

        return Processes(self.database)

    @cached_property
    def finishes(self) -> Finishes:
        from .finishes import Finishes

        return Finishes(self.database, self.mode, self.lease_seconds, self.given_up)

    # ---- for operators

    @cached_property
    def views(self) -> Views:
        from .views import Views

        return Views(self.database)

    def close(self) -> None:
        """Close the connections of all threads, a busy connection after its verb; the next use connects anew."""
        self.database.close()
