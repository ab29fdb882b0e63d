"""`python -m bench.peers`: ours beside other queues, in turns, each in the configuration that its documents recommend.

Each result is written at once, and a run that was interrupted goes on. At the end docs/benchmarks.md gets the tables,
if the results are not in a file of their own.
"""

from __future__ import annotations

import argparse
import pkgutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from ..bases import BASES, Base
from ..results import Results, parse, words
from . import report
from .kills import kills
from .peer import Peer
from .place import Place
from .speed import Part, parts

AT_ONCE = 6
"""So many peers wait at once for what becomes of killed tasks."""


def peers() -> list[Peer]:
    """Those of all modules of this folder, ours first."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name != "__main__"]
    found = [peer for name in names for peer in getattr(import_module(f"bench.peers.{name}"), "PEERS", ())]
    return sorted(found, key=lambda peer: (not peer.is_ours, peer.name))


def note_error(results: Results, where: str, peer: Peer) -> None:
    """Of the exception that is handled now."""
    text = traceback.format_exc(limit=-2).strip()
    print(f"{peer.key}: {where}: {text}", file=sys.stderr, flush=True)
    results.of("errors", peer.key)[where] = text.splitlines()[-1]
    results.save()


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    chosen = [peer for peer in peers() if not options.only or any(map(peer.key.lower().startswith, options.only))]
    results = Results(options.results, options.again)
    # What failed is tried again.
    results.data = {"versions": {}, "figures": {}, "kills": {}, **results.data, "errors": {}}
    for peer in chosen[:]:
        try:
            peer.make()
        except (OSError, subprocess.CalledProcessError):  # this machine cannot have it
            note_error(results, "install", peer)
            chosen.remove(peer)
            continue
        results.of("versions")[peer.key] = peer.version()
    for kind, base in BASES.items():
        those = [peer for peer in chosen if peer.base == kind]
        if those and kind in options.on:
            with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder, base(options.quick) as server:
                results.of("versions")[kind] = server.version()
                measure(those, server, Path(folder), options, results)
    results.data["finished"] = time.time()
    results.save()
    if options.writes_page:
        report.write(peers(), parts(False), results.data)
    else:
        print(report.text(peers(), parts(options.quick), results.data))
    return 1 if any(results.data["errors"].values()) else 0


def measure(those: list[Peer], base: Base, folder: Path, options: argparse.Namespace, results: Results) -> None:
    """All parts on one kind of database."""
    places = []
    for peer in those:
        try:
            places.append(Place(peer, base, folder))
        except Exception:
            note_error(results, "install", peer)
    for name, part in parts(options.quick).items():
        wanted = [place for place in places if name in options.part and place.peer.has(name)]
        for number in range(part.rounds):
            for place in wanted[:: -1 if number % 2 else 1]:
                _measure_once(name, part, number, place, results)
    if "kills" in options.part:
        _kills(places, options, results)
    for place in places:
        place.close()


def _measure_once(name: str, part: Part, number: int, place: Place, results: Results) -> None:
    """A round of a part, unless it is there already, or failed before."""
    figures = results.of("figures", name).setdefault(place.peer.key, [])
    if len(figures) > number or name in results.of("errors", place.peer.key):
        return
    try:
        figures.append(part.measure(place))
    except Exception:
        note_error(results, name, place.peer)
        return
    print(f"{place.peer.key:<40} {part.title:<32} {figures[-1]:12,.1f} {part.unit}", flush=True)
    results.save()


def _kills(places: list[Place], options: argparse.Namespace, results: Results) -> None:
    killing = threading.Lock()
    sizes = {"tasks": 200, "count": 4} if options.quick else {"tasks": 2_000, "count": 20}

    def one(place: Place) -> None:
        try:
            found = kills(place, killing, **sizes, limit_seconds=options.limit)
        except Exception:
            note_error(results, "kills", place.peer)
            return
        print(f"{place.peer.key:<40} {found}", flush=True)
        results.of("kills")[place.peer.key] = found
        results.save()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        wanted = [place for place in places if place.peer.has("kills") and place.peer.key not in results.of("kills")]
        list(pool.map(one, wanted))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", type=words, help="peers, by the beginnings of their names, with commas: taskserver,huey/sqlite"
    )
    parser.add_argument(
        "--limit",
        type=float,
        metavar="S",
        help="a task that has not run so long after the kills is stuck (default 300; quick 20)",
    )
    options = parse(parser, arguments, "peers", [*parts(True), "kills"])
    options.limit = options.limit or (20 if options.quick else 300)
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
