"""The queue in one database: the parts that hold its verbs.

Nothing above the stores sees SQL, a cursor or a driver's error. Parts that an empty run does not need are imported on
first use. `store.` are attributes of Store; the others are classes over a store, for verbs that few runs need. All
verbs, in the order of a task's life, with their transitions (gone: deleted, or moved to the archive):

    adding.py        store.producing   add, add_many       → new, waiting
    callers.py       store.callers     add, add_many       → new, waiting
    notes.py         Notes             add_once            → new, waiting
    schedules.py     Schedules         fire, fire_all      → new
    schedules.py     Schedules         run_now             → new
    schedules.py     Schedules         put, sync, remove, all
    due.py           store.due         look
    due.py           store.due         wake                waiting, error → new
    dependencies.py  Dependencies      decide              waiting → new, fatal
    dependencies.py  Dependencies      find_orphans
    claims.py        store.claims      pause, pause_all, resume, resume_all, paused
    claims.py        store.claims      claim               new → in progress (not started), waiting
    claims.py        store.claims      has_new, read, fetch_texts
    claims.py        store.claims      release             in progress (not started) → new
    due.py           store.due         reclaim_unstarted   in progress (not started) → new
    finishes.py      store.finishes    advance             in progress → gone, done, error, fatal, cancelled, …
    finishes.py      store.finishes    renew, limit_attempts, write_progress, still_claimed, has_rerun
    finishes.py      store.finishes    find_committed, resolve
    due.py           store.due         reclaim_lost        in progress → error, fatal, new
    batches.py       Batches           start, start_again  in progress → in progress (started)
    batches.py       Batches           complete            in progress → gone, done
    batches.py       Batches           complete_and_start  in progress → gone, done; others → started
    batches.py       Batches           unstart             in progress → new
    batches.py       Batches           renew, started, unstarted
    transactions.py  Transactions      open, begin, check, close
    transactions.py  Transactions      commit              in progress → as its finish says
    callers.py       store.callers     complete            in progress → gone, done, new
    callers.py       store.callers     on, check
    operations.py    Operations        retry               error, fatal, cancelled → new
    operations.py    Operations        cancel              all but done → cancelled
    operations.py    Operations        claim_one           all but done → in progress
    operations.py    Operations        do, change          as the verb says: from → to
    operations.py    Operations        set_priority, preview, given_up_among, still_running
    pruning.py       Pruning           run                 done, fatal, cancelled → gone
    pruning.py       Pruning           run_portion         done → gone
    pruning.py       Pruning           count
    due.py           store.due         pass_time, next_seconds
    runs.py          store.runs        begin, end, delete_old, at_work
    runs.py          store.processes   begin, write_counts, end, all, mark_ended, claimed_by, end_leases
    stats.py         Stats             add, hours, sums, recent
    views.py         store.views       runs, running, in_progress, show, errors, recent_errors, list, state, states
    views.py         Pages             page, most_attempts
    counts.py        Counts            by_group, up_to, by_name, expired, undated, orphaned
    notes.py         Notes             find, find_all, of_kind, put, put_all, remove, replace, delete_old_keys
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ..database import Database
from ..tables import Tables
from .claims import Claims
from .due import DueRows
from .runs import Processes, Runs

if TYPE_CHECKING:
    from .adding import Producing
    from .callers import Callers
    from .dependencies import GivenUp
    from .finishes import Finishes
    from .views import Views


class Store:
    """One queue; connects on first use."""

    def __init__(self, database: Database, mode: str, lease_seconds: int) -> None:
        self.mode = mode
        self.lease_seconds = lease_seconds
        self.database = database
        self.tables = Tables(self.database)
        self.runs = Runs(self.database)
        self.processes = Processes(self.database)
        self.given_up: list[GivenUp] = []
        """Tasks that became fatal because of others, for the run's report."""
        self.due = DueRows(self.database, self.given_up)
        self.claims = Claims(self.database, lease_seconds)

    @property
    def table(self) -> str:
        return self.database.dialect.table

    @property
    def has_one_writer(self) -> bool:
        return self.database.dialect.has_one_writer

    # ---- for producers

    @cached_property
    def producing(self) -> Producing:
        from .adding import Producing

        return Producing(self.database)

    @cached_property
    def callers(self) -> Callers:
        """The verbs on callers' own connections."""
        from .callers import Callers

        return Callers(self.database.dialect, self.mode, self.lease_seconds)

    # ---- for a worker that has a task

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
        """Close the connections of all threads, after their current verbs; the next use connects again."""
        self.database.close()
