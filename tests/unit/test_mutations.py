"""The tables of mutations are up to date."""

from __future__ import annotations

from tests.mutations.table import mutations
from tests.support.deployment import ROOT


def test_each_mutation_changes_text_that_stands_once_in_its_file() -> None:
    found = mutations()
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in {one.file for one in found}}
    assert [one.name for one in found if texts[one.file].count(one.old) != 1 or one.old == one.new] == []
    assert len({one.name for one in found}) == len(found) >= 75
