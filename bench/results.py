"""What the benchmarks of an hour and more share: results that outlive an interruption, and options."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .bases import BASES
from .page import machine
from .place import REPOSITORY


class Results:
    """Figures in a file, which is written after each."""

    def __init__(self, path: Path, again: bool) -> None:
        """again: forget what is there."""
        self._path = path
        self._lock = threading.Lock()
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() and not again else {}
        if self.data:
            print(f"{path}: keeping the figures that are there; --again measures them anew", flush=True)
        self.data["machine"] = machine()

    def of(self, *keys: str) -> dict[str, Any]:
        """The record below these keys."""
        found = self.data
        for key in keys:
            found = found.setdefault(key, {})
        return found

    def save(self) -> None:
        with self._lock:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._path.with_suffix(".tmp").write_text(json.dumps(self.data, indent=1))
            self._path.with_suffix(".tmp").replace(self._path)


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str], name: str, parts: Sequence[str]
) -> argparse.Namespace:
    """Add the shared options. `writes_page`: a run of everything into the usual file replaces the page's section."""
    usual = REPOSITORY / "var" / f"bench-{name}.json"
    parser.add_argument("--quick", action="store_true", help="little of everything: does it work at all? Only prints")
    parser.add_argument("--on", type=words, default=list(BASES), help=f"databases: {','.join(BASES)}")
    parser.add_argument("--part", type=words, default=list(parts), help=",".join(parts))
    parser.add_argument("--results", type=Path, metavar="FILE", help=f"default {usual.relative_to(REPOSITORY)}")
    parser.add_argument("--again", action="store_true", help="forget the results that are there")
    options = parser.parse_args(arguments)
    options.again = options.again or options.quick
    options.results = options.results or (usual.with_stem(f"bench-{name}-quick") if options.quick else usual)
    options.writes_page = options.results == usual
    for given, known in ((options.on, BASES), (options.part, parts)):
        if unknown := [word for word in given if word not in known]:
            parser.error(f"{unknown[0]}: choose from {', '.join(known)}")
    return options


def words(text: str) -> list[str]:
    """Of a list with commas."""
    return [word.strip().lower() for word in text.split(",")]
