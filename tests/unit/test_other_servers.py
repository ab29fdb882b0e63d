"""What make test-servers makes of the servers that it has, and of the tests that it ran there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.other_servers.__main__ import SERVERS, main
from tests.contract.other_servers.fetch import NotHad
from tests.contract.other_servers.postgresql import make_links
from tests.contract.other_servers.recipes import RECIPES
from tests.contract.other_servers.selection import runs_on
from tests.contract.other_servers.tried import RUNS, Counts, Tried, counted, judged, path_of
from tests.contract.other_servers.unpacked import Unpacked
from tests.support.deployment import ROOT


def test_an_unknown_server_is_answered_by_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mysql-5.7", "oracle"])
    assert ended.value.code == 2
    assert "no such server: oracle; there are mysql-5.7, mysql-8.0" in capsys.readouterr().err


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


def test_the_files_that_are_run_are_there() -> None:
    for run in RUNS:
        for name in run.files:
            assert (ROOT / path_of(name)).exists(), name


def test_each_recipe_has_a_name_of_its_own_and_a_way_to_start() -> None:
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)
    assert {recipe.kind for recipe in RECIPES} == set(SERVERS)


@pytest.mark.parametrize(
    ("fixtures", "parameter", "kinds"),
    [
        (["dsn", "queue"], "mysql", ["mysql"]),
        (["dsn", "queue"], "postgresql", ["postgresql"]),
        (["dsn", "queue"], "sqlite", []),
        (["postgresql_shop", "postgresql_dsn"], None, ["postgresql"]),
        (["postgresql"], 3, ["postgresql"]),
        (["mysql_queue", "mariadb"], None, []),
        (["php", "dsn"], "mysql", []),
        (["tmp_path"], None, []),
    ],
)
def test_a_server_gets_the_tests_of_its_kind_that_start_no_other(
    fixtures: list[str], parameter: object, kinds: list[str]
) -> None:
    item: Any = SimpleNamespace(fixturenames=fixtures)
    if parameter is not None:
        item.callspec = SimpleNamespace(params={"dsn": parameter})
    assert [kind for kind in SERVERS if runs_on(kind, item)] == kinds


def test_a_wrapped_program_runs_by_the_loader_and_with_the_libraries_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "a server"
    libraries, programs = folder / "usr/lib/x86_64-linux-gnu", folder / "bin"
    for made in (libraries, programs):
        made.mkdir(parents=True)
    (libraries / "libc.so.6").touch()
    loader = libraries / "ld-linux-x86-64.so.2"
    loader.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')  # it says what it was to do
    loader.chmod(0o755)
    (programs / "postgres").write_text("the real one")
    Unpacked(folder).wrap(programs / "postgres")
    said = subprocess.run([programs / "postgres", "-c", "a b"], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == ["--library-path", str(libraries), str(programs / "postgres.real"), "-c", "a b"]
    assert (programs / "postgres.real").read_text() == "the real one"


def test_the_links_that_an_npm_package_lists_are_made(tmp_path: Path) -> None:
    make_links(tmp_path)  # of Debian's packages, which have theirs
    library = tmp_path / "native/lib/libicuuc.so.60.2"
    library.parent.mkdir(parents=True)
    library.write_text("of ICU")
    link = {"source": "native/lib/libicuuc.so.60.2", "target": "native/lib/libicuuc.so.60"}
    (tmp_path / "native/pg-symlinks.json").write_text(json.dumps([link]))
    make_links(tmp_path)
    assert (tmp_path / "native/lib/libicuuc.so.60").read_text() == "of ICU"
