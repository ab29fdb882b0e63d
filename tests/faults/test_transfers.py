"""Proof that tasks with transactions of their own have their effects exactly once, whatever dies when.

Transfers between accounts, made by workers that cron would start again and again, under a storm of faults: workers
killed in the midst of a transaction, or frozen until their lease is over; tasks that raise after their writes; and,
where there is a server, one that is killed, and a network that is cut before and after a COMMIT. In the end each sum is
right and each transfer was made once. A storm that struck too seldom proves nothing, and fails.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from taskserver import TaskServer
from tests.conftest import without
from tests.support.postgresql import PostgreSQL, programs_folder
from tests.support.processes import WAIT_SECONDS, freeze, thaw
from tests.support.proxy import Cut, Proxy, contains
from tests.support.queues import Queue
from tests.support.servers import MariaDB, missing_programs

FEW, MANY = 50, 2000
MOST_SECONDS = {FEW: 120.0, MANY: 1200.0}
WORKERS = 3
BATCH = 5
ACCOUNTS = 8
BALANCE = 10_000
LEASE_SECONDS = 2
SETTINGS = {
    "TASKSERVER_LEASE": str(LEASE_SECONDS),
    "TASKSERVER_BACKOFF": "fixed:1",
    "TASKSERVER_MAX_ATTEMPTS": "1000",
}
CALM_SHARE = 0.1
"""Once no more than this is left the storm ends."""
COMMITS = {"transactional": contains(b"COMMIT /* of a task"), "mysql": contains(b"\x03COMMIT")}
COMMITS["postgresql"] = contains(b"COMMIT\x00")
"""The COMMIT of tasks, on the connections that are cut: the worker's own, and those of a framework."""
IMPATIENT = {"TASKSERVER_TIMEOUT": "3"}
"""psycopg waits for an answer for as long as a task may run."""
WAYS_TO_CUT = [(is_after, silent) for is_after in (False, True) for silent in (False, True)]

TASKS = """
import json
import os
import random
import time

import taskserver
from taskserver.stores.queue import transactions

# In place of the minute that a worker waits for the answer to its COMMIT.
transactions.OUR_SECONDS = 1.0

SEED = json.loads((HERE / "seed").read_text())
TRACE = os.open(HERE / f"trace-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)



def chance_of(number):
    return random.Random(f"{SEED} {number} {taskserver.current_task().attempt}")


def made_by(change, record, number, source, target, amount):
    # With pauses in which anything may die; now and then it fails after its writes.
    chance = chance_of(number)
    os.write(TRACE, b"b")
    for account, by in sorted([(source, -amount), (target, amount)]):  # in one order: nobody waits in a circle
        change(account, by)
        time.sleep(chance.uniform(0, 0.04))
    record(number, source, target, amount)
    time.sleep(chance.uniform(0, 0.04))
    # Of each seed some raise for certain: of one in a hundred, chance alone let none of fifty.
    is_meant = number % 10 == 0 and taskserver.current_task().attempt <= 2
    if is_meant or chance.random() < 0.15:
        os.write(TRACE, b"r")
        raise ValueError("after its writes")
    os.write(TRACE, b"e")
    return number

"""
WAYS = {
    "transactional": """
def run(statement):
    taskserver.connection().cursor().execute(statement)


@taskserver.task(transactional=True)
def transfer(*args):
    return made_by(
        lambda account, by: run(f"UPDATE accounts SET balance = balance + {by} WHERE id = {account}"),
        lambda *row: run(f"INSERT INTO transfers (number, source, target, amount) VALUES {row}"),
        *args,
    )
""",
    "django": """
import django
import pymysql
from django.conf import settings

pymysql.install_as_MySQLdb()
AT = taskserver.TaskServer((HERE / "bank").read_text()).settings.dsn
if AT.kind == "sqlite":
    PLACE = {"ENGINE": "django.db.backends.sqlite3", "NAME": AT.database, "OPTIONS": {"timeout": 60}}
elif AT.kind == "postgresql":
    PLACE = {
        "ENGINE": "django.db.backends.postgresql", "HOST": AT.host, "PORT": AT.port, "NAME": AT.database,
        "USER": AT.user, "PASSWORD": AT.password,
    }
else:
    PLACE = {
        "ENGINE": "django.db.backends.mysql", "HOST": AT.host, "PORT": AT.port, "NAME": AT.database, "USER": AT.user,
        "PASSWORD": AT.password, "OPTIONS": {"read_timeout": 1, "ssl_disabled": True},
    }
settings.configure(DATABASES={"default": PLACE}, USE_TZ=True)
django.setup()
from django.db import close_old_connections, connection, models, transaction


class Account(models.Model):
    id = models.IntegerField(primary_key=True)
    balance = models.IntegerField()

    class Meta:
        app_label, db_table = "bank", "accounts"


class Transfer(models.Model):
    id = models.AutoField(primary_key=True)
    number = models.IntegerField()
    source = models.IntegerField()
    target = models.IntegerField()
    amount = models.IntegerField()

    class Meta:
        app_label, db_table = "bank", "transfers"


def record(number, source, target, amount):
    Transfer.objects.create(number=number, source=source, target=target, amount=amount)


def transfer(*args):
    close_old_connections()
    with transaction.atomic():
        number = made_by(
            lambda account, by: Account.objects.filter(id=account).update(balance=models.F("balance") + by),
            record,
            *args,
        )
        taskserver.complete(connection, number)
""",
    "sqlalchemy": """
import logging

import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

AT = taskserver.TaskServer((HERE / "bank").read_text()).settings.dsn
if AT.kind == "sqlite":
    engine = sqlalchemy.create_engine(f"sqlite:///{AT.database}", connect_args={"timeout": 60})
elif AT.kind == "postgresql":
    url = sqlalchemy.URL.create("postgresql+psycopg", AT.user, AT.password, AT.host, AT.port, AT.database)
    engine = sqlalchemy.create_engine(url, pool_pre_ping=True)
else:
    url = sqlalchemy.URL.create("mysql+pymysql", AT.user, AT.password, AT.host, AT.port, AT.database)
    options = {"read_timeout": 1, "ssl_disabled": True}
    engine = sqlalchemy.create_engine(url, connect_args=options, pool_pre_ping=True)


# The pool tells with a traceback of a rollback that a cut has kept from its answer.
logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Transfer(Base):
    __tablename__ = "transfers"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
    source: Mapped[int]
    target: Mapped[int]
    amount: Mapped[int]


def transfer(*args):
    with Session(engine) as session, session.begin():

        def change(account, by):
            session.execute(
                sqlalchemy.update(Account).where(Account.id == account).values(balance=Account.balance + by)
            )

        def record(number, source, target, amount):
            session.add(Transfer(number=number, source=source, target=target, amount=amount))
            session.flush()

        number = made_by(change, record, *args)
        taskserver.complete(session.connection().connection, number)
""",
}


class Bank:
    """Accounts, the transfers that were made, and the tasks that make them."""

    def __init__(self, queue: Queue, seed: int, count: int, way: str) -> None:
        self.queue = queue
        self.way = way
        queue.define(WAYS[way])
        (queue.folder / "bank").write_text(queue.dsn)
        self.asked, self.count = count, 0
        self._chance = random.Random(seed)
        (queue.folder / "seed").write_text(json.dumps(seed))
        keys = {"sqlite": "INTEGER PRIMARY KEY", "postgresql": "SERIAL PRIMARY KEY"}
        key = keys.get(queue.kind, "INT PRIMARY KEY AUTO_INCREMENT")
        kind = " ENGINE=InnoDB" if queue.kind == "mysql" else ""
        queue.sql(f"CREATE TABLE accounts (id {key}, balance INT NOT NULL){kind}")
        # The number is not unique: a second one is to show.
        queue.sql(f"CREATE TABLE transfers (id {key}, number INT, source INT, target INT, amount INT){kind}")
        for account in range(1, ACCOUNTS + 1):
            queue.sql("INSERT INTO accounts (id, balance) VALUES (?, ?)", account, BALANCE)
        self.add(count)

    def add(self, count: int) -> None:
        """So many more transfers."""
        chance = self._chance
        with TaskServer(self.queue.dsn, folder=self.queue.folder) as server:
            server.add_tasks(
                {
                    "task": "tasks.transfer",
                    "args": [number, *chance.sample(range(1, ACCOUNTS + 1), 2), chance.randint(1, 99)],
                }
                for number in range(self.count, self.count + count)
            )
        self.count += count

    def left(self) -> int:
        """Tasks that are not completed."""
        ((left,),) = self.queue.sql("SELECT COUNT(*) FROM jobs_queue WHERE status <> 2")
        return int(left)

    def check(self, mode: str) -> None:
        """All is as if nothing had ever failed."""
        queue = self.queue
        made = queue.sql("SELECT number, source, target, amount FROM transfers ORDER BY number")
        numbers = Counter(number for number, *_ in made)
        assert {number: times for number, times in numbers.items() if times > 1} == {}, "made more than once"
        assert sorted(set(range(self.count)) - set(numbers)) == [], "not made"
        expected = Counter(dict.fromkeys(range(1, ACCOUNTS + 1), BALANCE))
        for _, source, target, amount in made:
            expected[source] -= amount
            expected[target] += amount
        balances = dict(queue.sql("SELECT id, balance FROM accounts"))
        assert balances == expected
        assert sum(balances.values()) == ACCOUNTS * BALANCE
        statuses = Counter(queue.statuses())
        assert statuses == ({2: self.count} if mode == "mark" else {})
        archived = [task_id for (task_id,) in queue.rows("id", "jobs_queue_done")]
        assert archived == (list(range(1, self.count + 1)) if mode == "move" else [])


class Storm:
    """Workers that are started again and again, and what befalls them. Each step is due at its own random instants."""

    def __init__(self, bank: Bank, seed: int, mode: str) -> None:
        self.struck: Counter[str] = Counter()
        self.bank = bank
        self._chance = random.Random(seed)
        self._mode = mode
        self._workers: list[subprocess.Popen[str]] = []
        self._frozen: dict[int, float] = {}
        """By the worker's process id, until when."""
        self._spared: dict[int, float] = {}
        """The same of those that go on, and are to find out that their lease is lost before they are killed."""
        self._due: dict[Callable[[], bool], float] = {}

    # ---- workers

    def start_workers(self) -> None:
        """As cron would, in the places of those that have ended."""
        self._see_off()
        while len(self._workers) < WORKERS:
            self._workers.append(self.bank.queue.start("--mode", self._mode, "--batch", BATCH))

    def _see_off(self) -> None:
        """Look how those ended that did."""
        for worker in [worker for worker in self._workers if worker.poll() is not None]:
            self._workers.remove(worker)
            output, errors = worker.communicate()
            # With a lease of two seconds a wait for SQLite's lock may outlast it, and nothing interrupts that.
            has_hung = worker.returncode == 1 and "goes on 2 s after it was interrupted" in errors
            assert worker.returncode in self.codes or has_hung, (worker.returncode, errors)
            assert output == ""
            assert "Traceback" not in errors, errors
            assert "is fatal" not in errors, errors
            self.struck["leases lost"] += errors.count("the lease was lost")

    codes: tuple[int, ...] = (0, -signal.SIGKILL)

    def _trace(self, worker: subprocess.Popen[str]) -> str:
        """A letter for each begin, end and raised error of its tasks."""
        path = self.bank.queue.folder / f"trace-{worker.pid}"
        return path.read_text() if path.exists() else ""

    def _in_midst(self) -> list[subprocess.Popen[str]]:
        """Those that are in a task's code, after its transaction has begun."""
        return [one for one in self._alive() if self._trace(one).endswith("b")]

    def _alive(self) -> list[subprocess.Popen[str]]:
        """Those that run, and are neither frozen nor were just now."""
        now = time.monotonic()
        spared = {pid for pid, until in self._spared.items() if now < until} | self._frozen.keys()
        return [worker for worker in self._workers if worker.poll() is None and worker.pid not in spared]

    def kill_worker(self) -> bool:
        # Before its first task it has nothing to lose, and takes more time than all transfers together.
        victims = self._in_midst() or [one for one in self._alive() if self._trace(one)]
        if not victims:
            return False
        victim = self._chance.choice(victims)
        victim.kill()
        victim.wait()
        self.struck["workers killed in a transaction"] += self._trace(victim).endswith("b")
        return True

    def freeze_worker(self) -> bool:
        """For longer than its lease."""
        victims = self._in_midst()
        if self._frozen or not victims:
            return False
        victim = self._chance.choice(victims)
        try:
            freeze(victim)
        except ChildProcessError:  # it has ended meanwhile
            return False
        self._frozen[victim.pid] = time.monotonic() + LEASE_SECONDS + 1.5
        self.struck["workers frozen"] += 1
        return True

    def thaw_workers(self, all_of_them: bool = False) -> None:
        for worker in self._workers:
            if worker.pid in self._frozen and (all_of_them or time.monotonic() > self._frozen[worker.pid]):
                del self._frozen[worker.pid]
                self._spared[worker.pid] = time.monotonic() + 1.0
                thaw(worker)

    # ---- all of it

    def steps(self) -> dict[Callable[[], bool], tuple[float, float]]:
        """What befalls them, and after how many seconds again. A step that found no victim stays due."""
        return {self.kill_worker: (0.4, 1.8)}

    def rage(self) -> None:
        """Until little is left to do; more is added while it has struck too seldom."""
        gives_up_at = time.monotonic() + MOST_SECONDS[self.bank.asked]
        few = int(CALM_SHARE * self.bank.asked)
        while (left := self.bank.left()) > few or self.struck_too_seldom():
            assert time.monotonic() < gives_up_at, f"{left} are left; {dict(self.struck)}"
            if left <= few:
                self.bank.add(few)
            self.start_workers()
            self.thaw_workers()
            for step, (least, most) in self.steps().items():
                now = time.monotonic()
                due_at = self._due.setdefault(step, now + self._chance.uniform(0, least))
                if now >= due_at and step():
                    self._due[step] = time.monotonic() + self._chance.uniform(least, most)
            time.sleep(0.02)

    def calm(self) -> None:
        """No more faults: workers run until nothing is left."""
        self.thaw_workers(all_of_them=True)
        gives_up_at = time.monotonic() + MOST_SECONDS[self.bank.asked]
        while self.bank.left():
            assert time.monotonic() < gives_up_at, f"{self.bank.left()} are left"
            self.start_workers()
            time.sleep(0.05)
        for worker in self._workers:
            worker.wait(WAIT_SECONDS)
        self._see_off()
        for path in self.bank.queue.folder.glob("trace-*"):
            self.struck["tasks that raised after their writes"] += path.read_text().count("r")

    def least(self) -> dict[str, int]:
        """So often each has to strike while a few transfers are made."""
        return {"workers killed in a transaction": 4}

    def struck_too_seldom(self) -> list[str]:
        """What proves too little yet."""
        return [name for name, least in self.least().items() if self.struck[name] < self.more() * least]

    def more(self) -> int:
        """So many times as often each has to strike while many transfers are made."""
        return 1 if self.bank.asked == FEW else 4

    def check(self) -> None:
        assert self.struck_too_seldom() == []
        assert self.struck["tasks that raised after their writes"] >= self.bank.asked / 20


class ServerStorm(Storm):
    """The same where there is a server, which is killed, and a network, which is cut."""

    codes = (0, 1, -signal.SIGKILL)  # 1: the database was away as it began

    def __init__(self, bank: Bank, seed: int, mode: str, server: MariaDB | PostgreSQL, proxy: Proxy) -> None:
        super().__init__(bank, seed, mode)
        self._server = server
        self._proxy = proxy
        self._cut: Cut | None = None
        self._cuts = 0

    def steps(self) -> dict[Callable[[], bool], tuple[float, float]]:
        return {
            self.cut_network: (0.4, 1.2),
            self.kill_worker: (0.8, 2.8),
            self.kill_database: (3.0, 8.0),  # before the next is frozen, since it waits until all are thawed
            self.freeze_worker: (2.0, 8.0),
        }

    def cut_network(self) -> bool:
        """Around a COMMIT: the next way once the one before has struck."""
        if self._cut is not None:
            if not self._cut.has_struck:
                return False
            self._count_cut(self._cut)
        is_after, silent = WAYS_TO_CUT[self._cuts % len(WAYS_TO_CUT)]
        self._cuts += 1
        cut = self._proxy.cut_after if is_after else self._proxy.cut_before
        self._cut = cut(COMMITS.get(self.bank.way, COMMITS[self.bank.queue.kind]), silent=silent)
        return True

    def _count_cut(self, cut: Cut) -> None:
        where = "after" if cut.is_after else "before"
        self.struck[f"cuts {where} a COMMIT, {'silent' if cut.is_silent else 'loud'}"] += 1

    def kill_database(self) -> bool:
        if self._frozen or not self._in_midst():
            return False
        self._server.kill()
        self.struck["database killed in a transaction"] += 1
        time.sleep(self._chance.uniform(0, 0.3))
        self._server.start()
        self.bank.queue._server_connection = None
        return True

    def calm(self) -> None:
        self._proxy.pass_on()
        super().calm()

    def least(self) -> dict[str, int]:
        cuts = [f"cuts {where} a COMMIT, {how}" for where in ("before", "after") for how in ("silent", "loud")]
        return {**super().least(), "database killed in a transaction": 1, "leases lost": 1} | dict.fromkeys(cuts, 1)


@pytest.fixture(scope="module")
def durable_server() -> Iterator[MariaDB]:
    """A server that keeps what it has committed when it is killed."""
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(durable=True) as server:
        yield server


@pytest.fixture(scope="module")
def durable_postgresql() -> Iterator[PostgreSQL]:
    """The same of PostgreSQL."""
    if programs_folder() is None:
        without("PostgreSQL is not installed (postgres not found)")
    with PostgreSQL(durable=True) as server:
        yield server


@pytest.fixture(params=["sqlite", "mysql", pytest.param("postgresql", marks=pytest.mark.long)])
def make_storm(request: pytest.FixtureRequest, make_queue: Callable[..., Queue]) -> Iterator[Callable[..., Storm]]:
    """Makes a storm over so many transfers."""
    with ExitStack() as stack:

        def make(seed: int, count: int, mode: str, way: str) -> Storm:
            if request.param == "sqlite":
                return Storm(Bank(make_queue(request.getfixturevalue("sqlite_dsn")), seed, count, way), seed, mode)
            fixture = "durable_postgresql" if request.param == "postgresql" else "durable_server"
            server: MariaDB | PostgreSQL = request.getfixturevalue(fixture)
            server.start()
            dsn = server.dsn(server.create_database())
            bank = Bank(make_queue(dsn), seed, count, way)
            proxy = stack.enter_context(Proxy(server.host, server.port))
            if way == "transactional":
                bank.queue.deployment.write_env(**{"TASKSERVER_DSN": proxy.dsn(dsn), **SETTINGS})
            else:
                (bank.queue.folder / "bank").write_text(proxy.dsn(dsn))
                if request.param == "postgresql":
                    bank.queue.deployment.write_env(**{"TASKSERVER_DSN": dsn, **SETTINGS, **IMPATIENT})
            return ServerStorm(bank, seed, mode, server, proxy)

        yield make


def few_and_many(*modes: str) -> pytest.MarkDecorator:
    """A few transfers in one mode; many in each of these among the long tests."""
    many = [pytest.param(mode, MANY, marks=pytest.mark.long) for mode in modes]
    return pytest.mark.parametrize(("mode", "count"), [("delete", FEW), *many])


@few_and_many("delete", "move", "mark")
def test_each_transfer_is_made_once_whatever_dies(make_storm: Callable[..., Storm], mode: str, count: int) -> None:
    weather(make_storm, count, mode, "transactional")


@pytest.mark.long
@few_and_many("move")
@pytest.mark.parametrize("make_storm", ["mysql", "postgresql", "sqlite"], indirect=True)
@pytest.mark.parametrize("way", ["django", pytest.param("sqlalchemy", marks=pytest.mark.long)])
def test_each_transfer_by_a_framework_is_made_once_whatever_dies(
    make_storm: Callable[..., Storm], way: str, mode: str, count: int
) -> None:
    """The tasks write by Django's ORM and by SQLAlchemy's session, and complete themselves in that transaction."""
    weather(make_storm, count, mode, way)


def weather(make_storm: Callable[..., Storm], count: int, mode: str, way: str) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    storm = make_storm(seed, count, mode, way)
    storm.rage()
    storm.calm()
    print(dict(storm.struck))
    storm.bank.check(mode)
    storm.check()
