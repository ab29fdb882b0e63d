"""The page of the benchmarks: what is written from figures, and a run that goes on after an interruption."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest

from bench import page
from bench.peers import __main__ as run
from bench.peers import report
from bench.peers.peer import Peer, Safety
from bench.peers.speed import Part
from bench.results import Results

PARTS = {
    "add": Part("add", "tasks/s", lambda place: 1.0, 3),
    "drain_1": Part("1 worker", "tasks/s", lambda place: 1.0, 3),
    "empty_cpu": Part("empty run", "ms", lambda place: 1.0, 3, more_is_better=False),
}


def peer(name: str, *, is_ours: bool = False, survives: bool = True) -> Peer:
    safety = Safety(durable=True, survives=survives, runs="at least once")
    commands = {"work": "worker", "empty": "worker"}
    shape = {"files": {}, "commands": commands, "tables": ("t",), "copied": {}, "unfinished": "", "safety": safety}
    return Peer(name=name, base="mysql", is_ours=is_ours, notes=("a note",), **shape)  # type: ignore[arg-type]


PEERS = [peer("taskserver", is_ours=True), peer("Safe"), peer("Unsafe", survives=False)]
KILLED = {"lost": 0, "stuck": 2, "twice": 3, "seconds": -1.0, "kills": 20}


def found(**figures: dict[str, list[float]]) -> dict[str, Any]:
    """The file of results, with these figures of (part, peer)."""
    by_part = {part: {f"{name}/mysql": values for name, values in of.items()} for part, of in figures.items()}
    versions = {"mysql": "10.11", "Safe/mysql": "safe==1.0 vine==5.1.0 PyMySQL==1.2.4"}
    kills = {"Safe/mysql": KILLED}
    return {
        "figures": by_part, "kills": kills, "errors": {}, "versions": versions, "machine": "2 cores", "finished": 0.0
    }  # fmt: skip


def test_a_ratio_is_the_median_of_those_of_the_rounds_and_below_one_is_named() -> None:
    adding = {"taskserver": [100.0, 200.0, 600.0], "Safe": [200.0, 100.0, 200.0], "Unsafe": [1_000.0] * 3}
    empty = {"taskserver": [50.0] * 3, "Safe": [40.0] * 3}
    text = report.text(PEERS, PARTS, found(add=adding, empty_cpu=empty))
    assert "| **taskserver** | 200<br>100–600 | 50<br>50–50 |" in text
    assert "| Safe | 200<br>100–200<br>×2 | 40<br>40–40<br>×0.8 |" in text
    assert "| Unsafe (less safe) | 1,000<br>1,000–1,000<br>×0.2 |  |" in text
    assert "- **Safe** on MariaDB: empty run (×0.80).\n" in text, "and not adding, in which it is slower"
    assert "- **Unsafe** on MariaDB: add" not in text, "it is not as safe"
    assert "| Safe | MariaDB | yes | at least once | 0 | 2 | 3 | never |" in text
    assert "- **Safe** on MariaDB: safe 1.0, PyMySQL 1.2.4; <code>worker</code>; a note." in text


def test_a_section_is_replaced_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.PAGE.write_text("# Page\n\nWords.\n")
    for title, text in (("One", "old"), ("Two", "second"), ("One", "new")):
        page.write_section(title, text)
    lines = [line for line in page.PAGE.read_text().splitlines() if line and not line.startswith("<!--")]
    assert lines == ["# Page", "Words.", "## One", "new", "## Two", "second"]


def test_the_picture_is_xml_and_its_longest_bar_fits() -> None:
    drawing = {"drain_1": {"taskserver": [90.0, 100.0, 110.0], "Safe": [50.0], "Unsafe": [20.0]}}
    root = ElementTree.fromstring(report.picture(PEERS, found(**drawing)))
    bars = [bar for bar in root.iter("{http://www.w3.org/2000/svg}rect") if bar.get("height") == "15"]
    assert [bar.get("fill") for bar in bars] == [page.COLOURS[name] for name in ("ours", "safe", "unsafe")]
    assert [round(float(bar.attrib["width"]) / float(bars[0].attrib["width"]), 1) for bar in bars] == [1, 0.5, 0.2]
    assert max(float(bar.attrib["x"]) + float(bar.attrib["width"]) for bar in bars) < page.WIDTH


def test_an_interrupted_run_measures_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(place: Any) -> float:
        measured.append(place.peer.name)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return float(len(measured))

    monkeypatch.setattr(run, "parts", lambda quick: {"add": Part("add", "tasks/s", measure, 2)})
    monkeypatch.setattr(run, "Place", lambda peer, base, folder: Mock(peer=peer))
    options = argparse.Namespace(quick=True, part=["add"])
    file = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        run.measure(PEERS[:2], Mock(), tmp_path, options, Results(file, again=False))
    run.measure(PEERS[:2], Mock(), tmp_path, options, Results(file, again=False))
    # The second round goes backwards.
    assert measured == ["taskserver", "Safe", "Safe", "Safe", "taskserver"]
    assert json.loads(file.read_text())["figures"] == {
        "add": {"taskserver/mysql": [1.0, 5.0], "Safe/mysql": [3.0, 4.0]}
    }
