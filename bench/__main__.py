"""`python -m bench`: measure everything against its floor and print one table.

Without --check it measures and judges, and ends with 0 whatever it found; a figure of a noisy machine fails no build.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .add import add, add_many
from .bases import OnMariaDB, OnPostgreSQL
from .claim import claim, claim_sqlite
from .cluster import cluster
from .drain import drain
from .empty import empty
from .measure import Line
from .overview import overview
from .place import DATABASE, Place
from .postgresql import pg_add, pg_add_many, pg_drain
from .sizes import pg_churn, pg_claim
from .spread import spread

ON_MARIADB: dict[str, Callable[[Place], Iterator[Line]]] = {
    "claim": claim,
    "claim_sqlite": claim_sqlite,
    "drain": drain,
    "add": add,
    "add_many": add_many,
    "empty": empty,
    "overview": overview,
    "spread": spread,
    "cluster": cluster,
}
ON_POSTGRESQL: dict[str, Callable[[Place], Iterator[Line]]] = {
    "pg_add": pg_add,
    "pg_add_many": pg_add_many,
    "pg_drain": pg_drain,
    "pg_claim": pg_claim,
    "pg_churn": pg_churn,
}
_HEADINGS = ("", "ours", "floor", "unit", "ratio", "min-max", "bound", "")
_ROW = "{:<58} {:>9} {:>9} {:<8} {:>6} {:>12} {:>7} {}"


def main(arguments: list[str]) -> int:
    """Parse, measure, print; the exit code."""
    options = _parse(arguments)
    over = []
    print(_ROW.format(*_HEADINGS), flush=True)
    for line in _lines(options):
        print(_shown(line).rstrip(), flush=True)
        if line.is_over:
            over.append(line.name)
    if over:
        print("over the bound: " + "; ".join(over))
    return 1 if over and options.check else 0


def _lines(options: argparse.Namespace) -> Iterator[Line]:
    base, benchmarks = (OnPostgreSQL, ON_POSTGRESQL) if options.postgresql else (OnMariaDB, ON_MARIADB)
    with tempfile.TemporaryDirectory(prefix="taskserver-bench-") as folder, base(options.quick) as server:
        os.environ["MYSQL_PWD"] = server.server.password  # and not in arguments, which others see
        server.server.create_database(DATABASE)
        for name in options.only or benchmarks:
            yield from benchmarks[name](Place(Path(folder), server, options.pairs, options.quick))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows: does it work at all?")
    parser.add_argument("--postgresql", action="store_true", help="on PostgreSQL, and nothing else")
    names = ", ".join([*ON_MARIADB, "and with --postgresql", *ON_POSTGRESQL])
    parser.add_argument("--only", action="append", metavar="NAME", help=names)
    parser.add_argument("--pairs", type=int, metavar="N", help="how often each pair is measured (default 7; quick 1)")
    parser.add_argument("--check", action="store_true", help="end with 1 where a ratio is over its bound")
    options = parser.parse_args(arguments)
    if options.pairs is None:
        options.pairs = 1 if options.quick else 7
    known = ON_POSTGRESQL if options.postgresql else ON_MARIADB
    if unknown := [name for name in options.only or () if name not in known]:
        parser.error(f"--only {unknown[0]}: one of {', '.join(known)}")
    if options.pairs < 1:
        parser.error("--pairs: at least 1")
    return options


def _shown(line: Line) -> str:
    verdict = "" if line.bound is None else "over" if line.is_over else "ok"
    return _ROW.format(
        line.name,
        _number(line.ours),
        _number(line.floor),
        line.unit,
        f"{line.ratio:.2f}",
        f"{min(line.ratios):.2f}-{max(line.ratios):.2f}",
        str(line.bound or ""),
        verdict,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
