"""client.py resume: workers take the tasks of paused groups again."""

from __future__ import annotations

import argparse
from typing import Any

from ...server import TaskServer
from .pause import add_groups_or_all, chosen_groups, sentence


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("resume", help="let workers take tasks of paused groups again")
    add_groups_or_all(parser, "every group, however it was paused")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    groups = chosen_groups(options)
    server.store.tables.check()
    claims = server.store.claims
    if groups is None:
        print("all groups are served again" if claims.resume_all() else "no group was paused")
        return
    resumed = claims.resume(groups)
    if resumed:
        print(sentence(resumed, "is served again", "are served again"))
    if others := [group for group in groups if group not in resumed]:
        print(sentence(others, "was not paused", "were not paused"))
