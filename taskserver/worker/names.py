"""The names of callables: the places that a name may mean, and what one in no listed module may have meant."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import PathFinder
from typing import NamedTuple

from ..messages.suggestions import nearest, tidied


class Place(NamedTuple):
    """The place at which a name says that its callable stands."""

    module: str
    path: tuple[str, ...]
    """The function's name, or the class's and its method's."""


def readings(name: str) -> Iterator[Place]:
    """The places that a name may mean: one with a colon; with dots alone the last one or two parts may be the path."""
    module, colon, path = name.partition(":")
    if colon:
        splits = [(module.split("."), path.split("."))]
    else:
        parts = name.split(".")
        splits = [(parts[:-1], parts[-1:]), (parts[:-2], parts[-2:])]
    for module_parts, path_parts in splits:
        if module_parts and len(path_parts) <= 2 and all(part.isidentifier() for part in module_parts + path_parts):
            yield Place(".".join(module_parts), tuple(path_parts))


def name_meant(name: str, listed: Sequence[str], is_listed: Callable[[str], bool]) -> str | None:
    """The name that one in no listed module may have meant, guessed from the name itself alone."""
    tidy = tidied(name)
    places = [place for place in readings(tidy) if not any(part.startswith("_") for part in place.path)]
    if tidy != name and any(is_listed(place.module) for place in places):
        return tidy
    if tidy.isidentifier() and listed and tidy not in listed and not tidy.startswith("_"):
        return f"{listed[0]}.{tidy}"
    for place in places:
        module = nearest(place.module, listed)
        if module:
            return ".".join((module, *place.path))
    return None


def module_meant(name: str, missing: Sequence[str]) -> str | None:
    """The module of a name, if it is there and nearly that of a missing one."""
    modules = (place.module for place in readings(name))
    return next((module for module in modules if nearest(module, missing) and is_there(module)), None)


def is_there(module: str) -> bool:
    """Whether Python finds a module, as far as that can be told without importing anything."""
    if module in sys.modules:
        return True
    from importlib.util import find_spec  # imported with the first mistake

    first, *others = module.split(".")
    try:
        spec = find_spec(first)
        for part in others:
            if spec is None or spec.submodule_search_locations is None:
                return False
            spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    except Exception:  # a finder of the site's, or a package that says odd things of itself
        return True
    return spec is not None
