"""An old Python is told which one is needed: in one line, by both scripts, whatever it is that runs them.

Where there is no old interpreter, the scripts are held to a few forms that Python had in 2.7 already.
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import sys
import tokenize
import warnings

import pytest

from tests.support.deployment import ROOT, Deployment
from tests.support.processes import assert_one_line

SCRIPTS = ("worker.py", "client.py")
pytestmark = pytest.mark.parametrize("script", SCRIPTS)

# ---- real ones

NAMES = ("python", "python2", "python3", "python2.7", *(f"python3.{minor}" for minor in range(10)))
IS_OLD = "import sys; sys.exit(sys.version_info >= (3, 10))"


def _old_interpreters() -> list[str]:
    """Those in PATH. They are asked: one of pyenv's names may stand for nothing."""
    found = sorted({path for name in NAMES if (path := shutil.which(name))})
    return [path for path in found if subprocess.run([path, "-c", IS_OLD], capture_output=True).returncode == 0]


def test_an_old_python_says_which_one_is_needed(deployment: Deployment, script: str) -> None:
    interpreters = _old_interpreters()
    if not interpreters:
        pytest.skip("no Python before 3.10 in PATH")
    for python in interpreters:
        deployment.python = python
        assert_one_line(deployment.run(script, "status"), 2, script, "3.10 or newer", "/usr/bin/python3.11")


# ---- this one, told that it is another

PRETEND = """
import runpy, sys
sys.argv = sys.argv[1:]
sys.version_info = {version!r}
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert {is_new} or "taskserver" not in sys.modules
"""


def _run_as(deployment: Deployment, script: str, *version: object) -> subprocess.CompletedProcess[str]:
    program = deployment.home / "pretend.py"
    program.write_text(PRETEND.format(version=version, is_new=version >= (3, 10)))
    command = [sys.executable, "-S", str(program), str(deployment.folder / script), "--help"]
    return subprocess.run(command, capture_output=True, text=True, env={})


@pytest.mark.parametrize("version", [(2, 7), (3, 0), (3, 6), (3, 9)], ids=str)
def test_the_line_names_the_version_that_runs(deployment: Deployment, script: str, version: tuple[int, int]) -> None:
    ended = _run_as(deployment, script, *version, 18, "final", 0)
    assert_one_line(ended, 2, "this is {}.{}: ".format(*version))


def test_the_oldest_python_that_is_new_enough_is_let_through(deployment: Deployment, script: str) -> None:
    ended = _run_as(deployment, script, 3, 10, 0, "final", 0)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"usage: {script}")


# ---- what any old one can read

OLD_FORMS = {
    *("Module", "Expr", "Import", "ImportFrom", "alias", "If", "Assign"),
    *("Name", "Attribute", "Load", "Store", "Constant", "Tuple", "Set", "Subscript", "Slice"),
    *("Call", "Compare", "Lt", "Eq", "NotIn", "BinOp", "Mod"),
}
"""Nodes of ast, all that the scripts consist of: Python 2.7 and 3.0 have each of them as it is today."""
FORBIDDEN_NAMES = {"print", "exec"}
"""Statements in Python 2."""


def _text(script: str) -> str:
    """ASCII: Python 2 wants to be told of any other encoding."""
    return (ROOT / script).read_bytes().decode("ascii")


def test_a_script_has_no_form_that_an_old_python_lacks(script: str) -> None:
    for node in ast.walk(ast.parse(_text(script))):
        form = type(node).__name__
        place = f"{script}, line {getattr(node, 'lineno', 0)}: {form}"
        assert form in OLD_FORMS, place
        assert not (isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES), place
        assert not (isinstance(node, ast.ImportFrom) and (node.level or node.module == "__future__")), place


def test_a_script_has_no_spelling_that_an_old_python_lacks(script: str) -> None:
    """Of a text or a number: f"", u"" and 1_000 are none of the forms above."""
    allowed = {tokenize.STRING: r"[\"'].*", tokenize.NUMBER: r"0|[1-9][0-9]*", tokenize.NAME: ".*", tokenize.OP: ".*"}
    allowed |= dict.fromkeys((tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING), ".*")
    allowed |= dict.fromkeys((tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER), " *")  # no tabs
    for token in tokenize.tokenize(io.BytesIO(_text(script).encode()).readline):
        assert token.type in allowed, token
        assert re.fullmatch(allowed[token.type], token.string, re.DOTALL), token


def test_a_script_asks_for_the_version_before_it_imports_what_is_new(script: str) -> None:
    body = ast.parse(_text(script)).body
    first_if = next(number for number, node in enumerate(body) if "version_info" in ast.unparse(node))
    imported = [alias.name for node in body[:first_if] if isinstance(node, ast.Import) for alias in node.names]
    assert imported == ["os", "sys"]
    assert not any(isinstance(node, ast.ImportFrom) for node in body[:first_if])


def test_the_grammar_of_python_2_reads_a_script(script: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it goes in Python 3.13, where the forms above must do
        pytest.importorskip("lib2to3", reason="Python 3.13 has no grammar of Python 2 any more")
        from lib2to3 import pygram, pytree
        from lib2to3.pgen2.driver import Driver

        Driver(pygram.python_grammar, pytree.convert).parse_string(_text(script))


def test_a_script_begins_as_a_program_does(script: str) -> None:
    assert _text(script).startswith("#!/usr/bin/env python3\n")
