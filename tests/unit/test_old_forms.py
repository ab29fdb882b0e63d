"""worker.py and client.py consist of a few forms that Python had in 2.7 already: any old one can say which it needs."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings

import pytest

from tests.support.deployment import ROOT

pytestmark = pytest.mark.parametrize("script", ["worker.py", "client.py"])

OLD_FORMS = {
    *("Module", "Expr", "Import", "ImportFrom", "alias", "If", "Assign"),
    *("Name", "Attribute", "Load", "Store", "Constant", "Tuple", "Set", "Subscript", "Slice"),
    *("Call", "Compare", "Lt", "Eq", "NotIn", "BinOp", "Mod", "BoolOp", "And", "Or", "Try", "ExceptHandler"),
}
"""Nodes of ast, all that the scripts consist of: Python 2.7 and 3.0 have each of them as it is today."""
FORBIDDEN_NAMES = {"print", "exec"}
"""Statements in Python 2."""


def _text(script: str) -> str:
    """ASCII: Python 2 wants to be told of any other encoding."""
    return (ROOT / script).read_bytes().decode("ascii")


def test_a_script_has_no_form_that_an_old_python_lacks(script: str) -> None:
    assert _text(script).startswith("#!/usr/bin/env python3\n")
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
