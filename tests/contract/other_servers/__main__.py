"""python -m tests.contract.other_servers [NAME …] [-- ARGUMENT OF PYTEST …]: exit code 1 if a test failed."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tests.contract.other_servers.fetch import NotHad
from tests.contract.other_servers.mysql import OtherMySQL
from tests.contract.other_servers.postgresql import OtherPostgreSQL
from tests.contract.other_servers.recipes import RECIPES, Recipe
from tests.contract.other_servers.tried import OtherServer, Tried, table, try_server
from tests.support.deployment import ROOT

CACHE = ROOT / ".servers"
"""Of downloads; git leaves it alone."""
SERVERS: dict[str, Callable[[Recipe, Path], AbstractContextManager[OtherServer]]] = {
    "mysql": OtherMySQL,
    "postgresql": OtherPostgreSQL,
}
"""How a recipe of each kind is started."""


def main(arguments: Sequence[str]) -> int:
    recipes, for_pytest = parse(arguments)
    tried: list[Tried] = []
    not_had: list[tuple[str, str]] = []
    interrupted = False
    for recipe in recipes:
        try:
            tried.append(try_recipe(recipe, for_pytest))
        except NotHad as error:
            say(f"{recipe.name} cannot be had: {error}")
            not_had.append((recipe.name, str(error)))
        except KeyboardInterrupt:
            say(f"{recipe.name} was interrupted")
            interrupted = True
            break
    print(table(tried, not_had), end="", flush=True)
    if not tried:
        say("no server could be had, so nothing was tested")
    return 0 if tried and not interrupted and not any(one.failed() for one in tried) else 1


def parse(arguments: Sequence[str]) -> tuple[list[Recipe], list[str]]:
    known = {recipe.name: recipe for recipe in RECIPES}
    parser = argparse.ArgumentParser(
        prog="python -m tests.contract.other_servers",
        description="The store's tests on MySQL, MariaDB and PostgreSQL of other versions.",
        epilog="What stands after -- is given to pytest: -- -k claim -x",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(known)}")
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names = parser.parse_args(arguments[:cut]).names
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no such server: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names or known], list(arguments[cut + 1 :])


def try_recipe(recipe: Recipe, for_pytest: Sequence[str]) -> Tried:
    say(f"{recipe.name}: fetching and installing")
    with SERVERS[recipe.kind](recipe, CACHE) as server:
        say(f"{recipe.name}: {server.version} answers, testing")
        tried = try_server(recipe, server, for_pytest)
    say(f"{recipe.name}: {tried.passed()} passed, {len(tried.failed())} failed")
    return tried


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server is stopped and its folder removed
    sys.exit(main(sys.argv[1:]))
