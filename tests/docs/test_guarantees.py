"""docs/guarantees.md names for each promise the test that proves it: they are there, under those names."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

import pytest

from tests.support.deployment import ROOT

GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^\d+\. .*?(?=^\d+\. |^## |\Z)", GUARANTEES, re.MULTILINE | re.DOTALL)
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", GUARANTEES)))


def test_there_are_promises_in_order_and_each_names_a_test() -> None:
    numbers = [int(promise.partition(".")[0]) for promise in PROMISES]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 15
    for promise in PROMISES:
        assert re.search(r"→\s+`tests/[\w/]+\.py::test_\w+`", promise), promise


@lru_cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_named_test_exists(file: str, name: str) -> None:
    assert name in names_in(file)
