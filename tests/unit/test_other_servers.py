"""What make test-servers makes of the servers that it has, and of the tests that it ran there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.other_servers.__main__ import SERVERS, main
from tests.contract.other_servers.fetch import NotHad
from tests.contract.other_servers.recipes import RECIPES
from tests.contract.other_servers.selection import runs_on
from tests.contract.other_servers.tried import FOLDERS, Counts, Tried, counted, judged
from tests.support.deployment import ROOT

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="passes"/>
<testcase classname="tests.test_a" name="fails"><failure message="AssertionError: 1 is not 2&#10;more"/></testcase>
<testcase classname="tests.test_a" name="breaks"><error message="failed on setup"/></testcase>
<testcase classname="tests.test_a" name="leaves"><skipped message="no SKIP LOCKED"/></testcase>
</testsuite></testsuites>"""


def test_tests_are_counted_and_those_that_failed_are_named(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert counted(tmp_path / "report.xml") == Counts(
        1, 1, ["tests.test_a::fails: AssertionError: 1 is not 2", "tests.test_a::breaks: failed on setup"]
    )


@pytest.mark.parametrize(
    ("code", "narrowed", "is_well"),
    [(0, False, True), (1, False, False), (2, False, False), (5, False, False), (5, True, True), (3, True, False)],
)
def test_a_run_that_broke_off_or_had_no_test_has_failed(code: int, narrowed: bool, is_well: bool) -> None:
    """Else it is as good as its tests."""
    assert judged(code, Counts(), narrowed).failed == ([] if is_well else [f"pytest ended with code {code}"])
    assert judged(1, Counts(1, 0, ["fails"]), narrowed=False) == Counts(1, 0, ["fails"])


def tried_one(*failed: str) -> Tried:
    return Tried("mysql-5.7", "5.7.29", [("the store contract", Counts(7, 2, list(failed)))])


@pytest.mark.parametrize(
    ("had", "failed", "code"), [(True, (), 0), (True, ("tests.test_a::fails",), 1), (False, (), 1)]
)
def test_a_failed_test_is_an_error_and_a_missing_server_is_none_unless_all_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], had: bool, failed: tuple[str, ...], code: int
) -> None:
    def try_recipe(recipe: object, arguments: object) -> Tried:
        if recipe is RECIPES[0] or not had:
            raise NotHad("not here")
        return tried_one(*failed)

    monkeypatch.setattr("tests.contract.other_servers.__main__.try_recipe", try_recipe)
    assert main([RECIPES[0].name, RECIPES[1].name]) == code
    assert ("nothing was tested" in capsys.readouterr().err) == (not had)


def test_the_first_tests_that_run_on_a_server_are_the_store_s() -> None:
    assert FOLDERS[0] == "contract"
    assert (ROOT / "tests" / FOLDERS[0]).is_dir()


def test_each_recipe_has_a_name_of_its_own_and_a_way_to_start() -> None:
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)
    assert {recipe.kind for recipe in RECIPES} == set(SERVERS)


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
