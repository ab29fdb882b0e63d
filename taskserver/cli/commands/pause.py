"""client.py pause: workers take no more tasks of some groups, or of all."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ...errors import InvalidTask
from ...server import TaskServer
from ..terminal.arguments import ABOUT_GROUPS, group_ids

FROM_NOW_ON = "paused from the next claim on; what workers claimed before that, they run"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("pause", help="stop workers from taking tasks of some groups, or of all")
    add_groups_or_all(parser, "every group, including later ones, until resume --all")
    parser.set_defaults(run=run)


def add_groups_or_all(parser: Any, about_all: str) -> None:
    """Add the arguments that name groups, or all; `resume` takes them, too."""
    parser.add_argument("groups", metavar="GROUP", nargs="?", type=group_ids, help="its number, or several as 3,5")
    parser.add_argument("--all", action="store_true", help=about_all)
    parser.about_more = ABOUT_GROUPS


def chosen_groups(options: argparse.Namespace) -> Sequence[int] | None:
    """The groups that the arguments name, each once; None for all. Raises InvalidTask."""
    if bool(options.groups) == options.all:
        raise InvalidTask("name a group, or several as 3,5, or else --all")
    return list(dict.fromkeys(options.groups)) if options.groups else None


def sentence(groups: Sequence[int], one: str, several: str) -> str:
    """A sentence on one group, or on several."""
    text = ", ".join(map(str, groups))
    return f"group {text} {one}" if len(groups) == 1 else f"groups {text} {several}"


def run(server: TaskServer, options: argparse.Namespace) -> None:
    groups = chosen_groups(options)
    server.store.tables.check()
    if groups is None:
        server.store.claims.pause_all()
        print(f"all groups are {FROM_NOW_ON}")
        return
    new = server.store.claims.pause(groups)
    if new:
        print(sentence(new, f"is {FROM_NOW_ON}", f"are {FROM_NOW_ON}"))
    if already := [group for group in groups if group not in new]:
        print(sentence(already, "was paused already", "were paused already"))
