"""One example: what each step does to a store and to the model, and what holds after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.new_task import NewTask
from taskserver.model.selection import Selection
from taskserver.model.task import LostTask, Status
from taskserver.stores import Store
from taskserver.stores.queue.operations import Operations
from taskserver.worker.maintenance import LOST_TEXT
from tests.contract.machine.model import CANCELLED_TEXT, LATER_SECONDS, Model, Task, When, limit_of
from tests.contract.machine.steps import Ending, Held, Stage, Step, Worker, a_task, next_step
from tests.support.rows import Rows


@dataclass
class Place:
    """Where examples happen one after the other: a database, the workers' stores, and a count of what happened."""

    rows: Rows
    stores: list[tuple[str, Store]]
    happened: Counter[str] = field(default_factory=Counter)

    def begin(self) -> list[Worker]:
        self.rows.execute("DELETE FROM jobs_queue")
        self.rows.execute("DELETE FROM jobs_queue_done")
        return [Worker(number, mode, store) for number, (mode, store) in enumerate(self.stores)]


class QueueMachine:
    """One example: steps of workers, producers, persons and of time, in any order."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.rows = place.rows
        self.workers = place.begin()
        self.operations = Operations(self.workers[0].store)
        self.model = Model()
        self.tokens: set[int] = set()
        self.is_draining = False

    def run(self, seed: int, steps: int) -> None:
        """Take so many steps that this seed chooses, and compare after each."""
        chance, taken = Random(seed), list[Step]()
        try:
            self.add(self.workers[0], [a_task(chance) for _ in range(chance.randint(1, 6))])
            for _ in range(steps):
                method, arguments = next_step(self, chance)
                taken.append((method, arguments))
                getattr(self, method)(*arguments)
                self.all_is_as_the_model_says()
            self.drain()
        except BaseException:
            print(f"seed {seed}", *(f"{method}{arguments}" for method, arguments in taken), sep="\n")
            raise

    # ---- time

    def time_comes(self, tasks: list[Task]) -> None:
        """Of leases, backoffs and due dates."""
        for task in tasks:
            self.rows.execute(f"UPDATE jobs_queue SET due_at = {self.instant(When.PAST)} WHERE id = {task.id}")
            task.when = When.PAST

    def tasks_ahead(self) -> list[Task]:
        return [task for task in self.model.tasks if task.when is When.AHEAD]

    def note(self, what: str, times: int | bool = 1) -> None:
        if times and not self.is_draining:
            self.place.happened[what] += int(times)

    def instant(self, when: When) -> str:
        if when is When.NEVER:
            return "NULL"
        return self.rows.after(LATER_SECONDS if when is When.AHEAD else -1)

    # ---- add

    def add(self, worker: Worker, tasks: list[NewTask]) -> None:
        producing = worker.store.producing
        added = [producing.add(tasks[0])] if len(tasks) == 1 else producing.add_many(tasks)
        for task_id, task in zip(added, tasks, strict=True):
            self.note(self.model.add(task_id, task))

    def insert(self, new: NewTask, when: When) -> None:
        """A row as SQL of others makes it."""
        args = f"'{new.args}'" if new.args else "NULL"
        self.rows.execute(
            "INSERT INTO jobs_queue (task, args, group_id, priority, due_at) "
            f"VALUES ('{new.task}', {args}, {new.group_id}, {new.priority}, {self.instant(when)})"
        )
        ((task_id,),) = self.rows.execute("SELECT MAX(id) FROM jobs_queue")
        self.model.insert(task_id, new, when=when)

    # ---- wake, reclaim

    def look(self, worker: Worker) -> None:
        due = worker.store.due.look()
        # The database's clock decides when a lost one began.
        worker.look = due._replace(lost=[lost._replace(began_seconds_ago=0.0) for lost in due.lost])
        assert worker.look == self.model.look_for_due()

    def act_on_look(self, worker: Worker, when_retried: When) -> None:
        """A worker does it at once; a frozen one does it long after its look."""
        due, worker.look = worker.look, None
        assert due is not None
        woken = self.model.wake(due.to_wake)
        taken_back = self.model.reclaim_unstarted(due.unstarted)
        assert worker.store.due.wake(due.to_wake) == woken
        assert worker.store.due.reclaim_unstarted(due.unstarted) == taken_back
        self.note("woken", woken)
        self.note("taken back unstarted", taken_back)
        for lost in due.lost:
            self.reclaim(worker, lost, when_retried)

    def reclaim(self, worker: Worker, lost: LostTask, when_retried: When) -> None:
        task = self.model.find(lost.id)
        limit = limit_of(lost.max_attempts)
        is_last = (lost.attempts >= limit or lost.is_cancelled) and not lost.should_rerun
        seconds = None if is_last else LATER_SECONDS if when_retried is When.AHEAD else 0.0
        is_ours = self.model.reclaim_lost(lost, when_retried)
        text = CANCELLED_TEXT if lost.is_cancelled else LOST_TEXT
        assert worker.store.due.reclaim_lost(lost, limit, text, seconds) == is_ours
        if is_ours and task is not None:
            ends = {Status.NEW: "lost, and run again", Status.ERROR: "lost, to be retried"}
            last = "lost and cancelled" if lost.is_cancelled else "lost for good"
            self.note("lost, its token kept" if task.claim else ends.get(Status(task.status), last))

    def look_and_act(self, worker: Worker, when_retried: When) -> None:
        self.look(worker)
        self.act_on_look(worker, when_retried)

    def fall_silent(self, worker: Worker) -> None:
        """All its leases end."""
        held = [task for held in worker.held if (task := self.model.held(held.claimed))]
        self.time_comes([task for task in held if task.when is When.AHEAD])

    # ---- claim

    def claim(self, worker: Worker, limit: int, groups: list[int]) -> None:
        assert worker.store.claims.has_new(groups) == bool(self.model.new_of(groups))
        claim = worker.store.claims.claim(limit, groups)
        tokens = {task.claim for task in claim.tasks}
        assert len(tokens) <= 1
        assert not tokens & self.tokens
        expected, changed = self.model.claim(limit, groups, max(tokens, default=-1))
        assert [task._replace(waited_seconds=0.0) for task in claim.tasks] == expected
        assert all(0 <= task.waited_seconds < LATER_SECONDS for task in claim.tasks)
        assert claim.changed == changed
        self.tokens |= tokens
        for claimed in claim.tasks:
            task = self.model.find(claimed.id)
            assert task is not None
            worker.held.append(Held(task.number, claimed))
        self.note("claimed", len(claim.tasks))

    # ---- start, finish

    def start(self, worker: Worker, held: Held) -> None:
        self.turn(worker, [], held)

    def finish(self, worker: Worker, held: Held, ending: Ending) -> None:
        self.turn(worker, [(held, ending)])

    def finish_all_and_start(self, worker: Worker, held: Held, ending: Ending) -> None:
        self.turn(worker, [(running, ending) for running in worker.in_stage(Stage.RUNNING)], held)

    def turn(self, worker: Worker, endings: Sequence[tuple[Held, Ending]], following: Held | None = None) -> None:
        """Finish some tasks and start the next one in one commit."""
        for held, _ in endings:
            held.stage = Stage.OVER
        start = None if following is None else Start(following.claimed, following.limit())
        started = self.advance(worker, [ending.finish(held) for held, ending in endings], start)
        if following is not None:
            following.stage = Stage.RUNNING if started else Stage.OVER

    def advance(self, worker: Worker, finishes: list[Finish], start: Start | None) -> bool:
        """The verb, in the store and in the model. Whether it started what it should."""
        succeeded = [self.model.held(finish.task) for finish in finishes if finish.error_text is None]
        self.note("done though cancelled", any(task and task.is_cancelled() for task in succeeded))
        in_time = [self.model.finish(finish, worker.mode) for finish in finishes]
        started = start is not None and self.model.start(start)
        late = [
            was_in_time is Outcome.LOST and self.model.complete_late(finish, worker.mode)
            for finish, was_in_time in zip(finishes, in_time, strict=True)
        ]
        outcomes = [Outcome.AS_ASKED if other else one for one, other in zip(in_time, late, strict=True)]
        assert worker.store.finishes.advance(finishes, start) == (outcomes, started)
        self.note("finished", len(outcomes) - in_time.count(Outcome.LOST))
        self.note("finished late", sum(late))
        self.note("refused to finish", outcomes.count(Outcome.LOST))
        self.note("run again after it ended", outcomes.count(Outcome.RUN_AGAIN))
        self.note("fatal as cancelled", outcomes.count(Outcome.CANCELLED))
        self.note("started", started)
        self.note("refused to start", start is not None and not started)
        return started

    # ---- renew, release

    def renew(self, worker: Worker, held: Held) -> None:
        still_ours = self.model.renew(held.claimed)
        assert worker.store.finishes.renew(held.claimed) == still_ours
        task = self.model.held(held.claimed)
        is_cancelled = task is not None and task.error_text == CANCELLED_TEXT
        assert any(worker.store.finishes.still_claimed([held.claimed]).values()) == is_cancelled
        self.note("heard that it was cancelled", is_cancelled)

    def renew_just_in_time(self, worker: Worker, held: Held) -> None:
        """Between another's look at its ended leases and what that one does about them."""
        other = self.workers[worker.number - 1]
        self.fall_silent(worker)
        self.look(other)
        self.renew(worker, held)
        self.act_on_look(other, When.PAST)

    def release(self, worker: Worker, held: Held) -> None:
        """All tasks of a claim; those that were started stay as they are."""
        released = [other for other in worker.held if other.claimed.claim == held.claimed.claim]
        expected = self.model.release([one.claimed for one in released])
        assert worker.store.claims.release([one.claimed for one in released]) == expected
        for one in released:
            one.stage = Stage.OVER if one.stage is Stage.CLAIMED else one.stage

    # ---- persons

    def delete(self, task: Task) -> None:
        self.rows.execute(f"DELETE FROM jobs_queue WHERE id = {task.id}")
        self.model.tasks.remove(task)

    def retry(self, task: Task) -> None:
        expected = self.model.retry(task)
        assert self.operations.retry(Selection(ids=[task.id])) == expected

    def cancel(self, task: Task) -> None:
        self.note("cancelled while it ran", task.is_running())
        expected = self.model.cancel(task)
        assert self.operations.cancel(Selection(ids=[task.id])) == expected

    # ---- what holds after every step

    def all_is_as_the_model_says(self) -> None:
        due = f"CASE WHEN due_at IS NULL THEN 'never' WHEN due_at <= {self.rows.after(0)} THEN 'past' ELSE 'ahead' END"
        state = f"status, attempts, max_attempts, {due}, claim, started_at IS NOT NULL, finished_at IS NOT NULL"
        # MySQL keeps keys as bytes.
        key = "CAST(unique_key AS CHAR)" if self.rows.is_mysql else "unique_key"
        columns = f"id, task, args, group_id, priority, {key}, {state}, error_text"
        queue = self.rows.execute(f"SELECT {columns} FROM jobs_queue ORDER BY id")
        assert queue == [task.columns() for task in self.model.tasks]
        archive = self.rows.execute(f"SELECT {columns} FROM jobs_queue_done ORDER BY done_id")
        assert archive == self.model.archive
        keys = [task.new.unique_key for task in self.model.tasks if task.new.unique_key is not None]
        assert len(set(keys)) == len(keys)
        assert [task for task in self.model.tasks if task.max_attempts == 1 and task.starts > 1] == []
        held = [held for worker in self.workers for held in worker.held if self.model.held(held.claimed)]
        assert len({one.number for one in held}) == len(held), "two workers hold one task"

    def drain(self) -> None:
        """Nothing is stuck: once leases and waiting are over, a worker brings every task to an end."""
        worker, self.is_draining = self.workers[0], True
        for _ in range(3):
            self.time_comes(self.tasks_ahead())
            self.look_and_act(worker, When.PAST)
            self.claim(worker, 1000, [])
            for held in worker.in_stage(Stage.CLAIMED):
                self.start(worker, held)
            if running := worker.in_stage(Stage.RUNNING):
                self.turn(worker, [(held, Ending.WELL) for held in running])
            self.all_is_as_the_model_says()
        # A waiting task without an instant waits for others; in another status only a person takes the instant away.
        left = [task for task in self.model.tasks if task.status not in (Status.DONE, Status.FATAL, Status.CANCELLED)]
        assert [task for task in left if task.status == Status.NEW or task.when is not When.NEVER] == []
