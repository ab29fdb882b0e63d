"""What make test-servers runs on another server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.other_servers.__main__ import SERVERS
from tests.contract.other_servers.recipes import RECIPES
from tests.contract.other_servers.selection import runs_on
from tests.contract.other_servers.tried import FOLDERS, Counts, judged
from tests.support.deployment import ROOT


def test_the_first_tests_that_run_on_a_server_are_the_store_s() -> None:
    assert FOLDERS[0] == "contract"
    assert (ROOT / "tests" / FOLDERS[0]).is_dir()
    assert {recipe.kind for recipe in RECIPES} == set(SERVERS)


@pytest.mark.parametrize(("code", "narrowed", "is_well"), [(0, False, True), (5, False, False), (5, True, True)])
def test_a_run_that_broke_off_or_had_no_test_has_failed(code: int, narrowed: bool, is_well: bool) -> None:
    assert judged(code, Counts(), narrowed).failed == ([] if is_well else [f"pytest ended with code {code}"])


@pytest.mark.parametrize(
    ("fixtures", "parameter", "kinds"),
    [
        (["database", "queue"], "mysql", ["mysql"]),
        (["database", "queue"], "postgresql", ["postgresql"]),
        (["database", "queue"], "sqlite", []),
        (["database", "queue"], None, ["mysql", "postgresql"]),
        (["postgresql_shop", "postgresql_dsn"], None, ["postgresql"]),
        (["postgresql"], 3, ["postgresql"]),
        (["mysql_queue", "mariadb"], None, []),
        (["php", "database"], "mysql", []),
        (["tmp_path"], None, []),
    ],
)
def test_a_server_gets_the_tests_of_its_kind_that_start_no_other(
    fixtures: list[str], parameter: object, kinds: list[str]
) -> None:
    item: Any = SimpleNamespace(fixturenames=fixtures)
    if parameter is not None:
        item.callspec = SimpleNamespace(params={"database": parameter})
    assert [kind for kind in SERVERS if runs_on(kind, item)] == kinds
