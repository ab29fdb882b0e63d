"""Spread on SQLite: which server a task goes to, and what is refused. tests/faults/test_spread.py kills servers."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

import taskserver
from taskserver import DatabaseError, InvalidTask, SettingError, Spread, TaskServer
from taskserver.spread import BOUND
from tests.support.deployment import ROOT

TASK = "tasks.note"
KEYS = [f"order {number}" for number in range(4000)]


@taskserver.task(group_id=7, unique_key=lambda number: f"order {number}")
def send(number: int) -> None: ...


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[TaskServer]]:
    made = [TaskServer(f"sqlite:///{tmp_path}/{name}.db") for name in "abc"]
    for server in made:
        server.create_tables()
    yield made
    for server in made:
        server.close()


def spread_of(names: str, weights: Sequence[float] | None = None) -> Spread:
    """Of servers that are never asked."""
    return Spread({name: TaskServer("sqlite:///:memory:") for name in names}, weights=weights)


def owners(spread: Spread) -> dict[str, str]:
    """The name of each key's server."""
    name_of = {id(server): name for name, server in spread.servers.items()}
    return {key: name_of[id(spread.server_of(key))] for key in KEYS}


# ---- which server


def test_a_task_without_a_key_goes_to_a_random_server_by_weight(servers: list[TaskServer]) -> None:
    with Spread(servers, weights=[1, 2, 0.0001]) as spread:
        added = [spread.add_task(TASK, [number]) for number in range(300)]
    found = Counter(servers.index(one.server) for one in added)
    assert found[2] <= 2
    assert 60 <= found[0] <= 140
    for server in servers:
        assert sorted(row.id for row in server.list(limit=300)) == sorted(
            one.id for one in added if one.server is server
        )


def test_keys_have_a_server_by_weight_that_no_version_may_change() -> None:
    assert [owners(spread_of("abc"))[key] for key in KEYS[:12]] == list(GOLDEN)
    shares = Counter(owners(spread_of("abc", [1, 2, 1])).values())
    assert 900 < shares["a"] < 1100
    assert 1900 < shares["b"] < 2100


GOLDEN = "accbcbbabacc"


def test_another_process_finds_the_same_server() -> None:
    code = (
        "from taskserver import Spread, TaskServer\n"
        "spread = Spread({name: TaskServer('sqlite:///:memory:') for name in 'cab'})\n"
        "names = {id(server): name for name, server in spread.servers.items()}\n"
        "print(''.join(names[id(spread.server_of(f'order {number}'))] for number in range(50)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "".join(list(owners(spread_of("abc")).values())[:50])


@pytest.mark.parametrize(("fewer", "more"), [("abc", "abcd"), ("bcd", "abcd")])
def test_if_a_server_comes_or_goes_only_its_own_keys_move(fewer: str, more: str) -> None:
    (changed,) = set(more) - set(fewer)
    before, after = owners(spread_of(fewer)), owners(spread_of(more))
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if after[key] == changed}
    assert 900 < len(moved) < 1100


def test_a_key_is_added_once_on_its_own_server(servers: list[TaskServer]) -> None:
    spread = Spread(servers)
    for key in KEYS[:20]:
        first, second = (spread.add_task(TASK, unique_key=key) for _ in range(2))
        assert first == second == (spread.server_of(key), first.id)
    assert sum(len(server.list()) for server in servers) == 20
    assert all(server.list() for server in servers)


def test_the_key_that_a_function_gives_counts_too(servers: list[TaskServer]) -> None:
    spread = Spread(servers)
    added = [spread.enqueue(send, number) for number in range(10)]
    assert [one.server for one in added] == [spread.server_of(f"order {number}") for number in range(10)]
    state = added[3].server.list()[-1]
    assert (state.group_id, added[3] == spread.add_task(send, {"number": 3})) == (7, True)


def test_a_pipeline_is_one_task_of_one_server(servers: list[TaskServer]) -> None:
    added = Spread(servers).add_pipeline([TASK, TASK], [1], unique_key="x", priority=3)
    (row,) = added.server.list()
    assert (row.id, row.priority, sum(len(server.list()) for server in servers)) == (added.id, 3, 1)


# ---- many


def test_many_tasks_keep_their_order_and_those_without_a_key_their_transaction(servers: list[TaskServer]) -> None:
    spread = Spread(servers)
    tasks = [{"task": TASK, "args": [n], **({"unique_key": KEYS[n]} if n % 2 else {})} for n in range(40)]
    added = spread.add_tasks(tasks)
    for number, one in enumerate(added):
        (row,) = [row for row in one.server.list() if row.id == one.id]
        assert row.args == [number]
        assert number % 2 == 0 or one.server is spread.server_of(KEYS[number])
    plain = added[::2]
    assert len({id(one.server) for one in plain}) == 1
    assert all(second.id == first.id + 1 for first, second in pairwise(plain))
    assert spread.add_tasks([]) == []
    assert spread.add_tasks([task for task in tasks if "unique_key" in task]) == added[1::2]


def test_if_a_key_s_server_fails_nothing_without_a_key_was_added(servers: list[TaskServer], tmp_path: Path) -> None:
    spread = Spread({"a": servers[0], "b": TaskServer(f"sqlite:///{tmp_path}/nowhere/b.db")})
    tasks: list[dict[str, Any]] = [{"task": TASK}, *({"task": TASK, "unique_key": key} for key in KEYS[:10])]
    with pytest.raises(DatabaseError):
        spread.add_tasks(tasks)
    assert all(row.unique_key for row in servers[0].list())
    spread = Spread(servers)
    with pytest.raises(InvalidTask, match="task 2"):
        spread.add_tasks([{"task": TASK, "unique_key": "x"}, {"task": ""}])
    assert len(servers[1].list()) == 0


def test_a_new_server_without_tables_gets_no_task(servers: list[TaskServer], tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()
    spread = Spread([TaskServer(f"sqlite:///{tmp_path}/new.db"), servers[0]], weights=[1000, 1])
    assert spread.add_task(TASK).server is servers[0]


# ---- what is refused


@pytest.mark.parametrize(
    "add",
    [
        lambda spread: spread.add_task(TASK, connection=object()),
        lambda spread: spread.add_task(TASK, depends_on=[1]),
        lambda spread: spread.add_pipeline([TASK], depends_on=[1]),
        lambda spread: spread.add_tasks([{"task": TASK}, {"task": TASK, "depends_on": [1]}]),
    ],
)
def test_what_binds_a_task_to_one_server_is_refused(servers: list[TaskServer], add: Callable[[Spread], object]) -> None:
    with pytest.raises(InvalidTask, match=BOUND.partition("{} ")[2]):
        add(Spread(servers))
    assert not any(server.list() for server in servers)


def test_wrong_options_are_named() -> None:
    with pytest.raises(InvalidTask, match="it has 'dealy'; allowed: task, args"):
        spread_of("ab").add_task(TASK, dealy=3)
    with pytest.raises(InvalidTask, match="unique_key is '"):
        spread_of("ab").server_of("\udcff")
    with pytest.raises(InvalidTask, match="stages"):
        spread_of("ab").add_pipeline(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Spread([]), r"servers has the names \[\]"),
        (lambda: Spread([TaskServer("sqlite:///a.db"), TaskServer("sqlite:///a.db")]), "each once"),
        (lambda: Spread(cast(Any, TaskServer("sqlite:///a.db"))), "allowed: a list of TaskServers"),
        (lambda: Spread(cast(Any, ["sqlite:///a.db"])), "one of servers is 'sqlite:///a.db'"),
        (lambda: spread_of("ab", [1]), r"weights are \[1\]; allowed: one number above 0 for each server"),
        (lambda: spread_of("ab", [1, 0]), "weights are"),
        (lambda: spread_of("ab", 7), "weights is 7; allowed: one number above 0 for each server"),  # type: ignore[arg-type]
        (lambda: spread_of("ab", [1, float("inf")]), "weights are"),
    ],
)
def test_wrong_servers_and_weights_are_named(make: Callable[[], object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        make()


def test_tables_in_one_database_are_different_servers(tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path}/x.db"
    spread = Spread([TaskServer(dsn, table="a"), TaskServer(dsn, table="b")])
    assert [name.rpartition(" ")[2] for name in spread.servers] == ["a", "b"]
