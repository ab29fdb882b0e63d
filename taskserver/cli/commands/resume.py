"""client.py resume: workers take the tasks of paused groups again."""

from __future__ import annotations

import argparse
from typing import Any

from ...server import TaskServer
from ...stores.queue.group_pauses import GroupPauses
from .pause import add_groups_or_all, chosen_groups, sentence


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("resume", help="have workers take tasks of paused groups again")
    add_groups_or_all(parser, "every group, however it was paused")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    groups = chosen_groups(options)
    server.store.tables.check()
    pauses = GroupPauses(server.store.database)
    if groups is None:
        print("all groups are served again" if pauses.resume_all() else "no group was paused")
        return
    were_all = server.store.claims.are_all_paused()
    resumed = pauses.resume(groups)
    if resumed:
        print(sentence(resumed, "is served again", "are served again"))
    if others := [group for group in groups if group not in resumed]:
        print(sentence(others, "was not paused", "were not paused"))
    if were_all:
        others_stay = "the other groups that have tasks, or were known at pause --all, stay paused"
        print(f"{others_stay}; groups that come up now are served")
