"""The arguments of worker.py."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from collections.abc import Sequence
from typing import NamedTuple

from ..messages.programs import WORKER
from ..model.task import MAX_BATCH, MAX_GROUPS, MODES

MAX_SLOTS = 1000
USUAL_SLOTS = 4
MAX_PROCESSES = 100
_MAX_DIGITS = 9
"""Digits of a number that is read without argparse."""
ABOUT_MAX_TASKS = f"; 0 is for all there are, and group ids come after it: {WORKER} 0 3,5,6"


class Options(NamedTuple):
    """The arguments of worker.py, with their defaults."""

    max_tasks: int = 0
    groups: list[int] | None = None
    mode: str | None = None
    batch: int = 100
    max_time: float | None = None
    max_memory: float | None = None
    slots: int | None = None
    """None: USUAL_SLOTS, or as many as there are processes."""
    linger: float | None = None
    processes: int | None = None
    verbose: bool = False
    folder: str | None = None
    env_file: str | None = None

    @property
    def max_workers(self) -> int:
        """How many workers of one line may be at work at once on a host; 0: no limit."""
        return self.processes or USUAL_SLOTS if self.slots is None else self.slots


def read_options(arguments: Sequence[str]) -> Options:
    """Read the arguments; end the program where they are wrong."""
    return _read_plain(arguments) or _read_any(arguments)


def _read_plain(arguments: Sequence[str]) -> Options | None:
    """The options of a plain line such as `100 3,5,6`, as most crontabs hold it; None for any other line.

    A run that finds nothing to do costs little more than its imports, and argparse would be one of the largest.
    """
    groups = arguments[1].split(",") if len(arguments) == 2 else []
    numbers = [*arguments[:1], *groups]
    if len(arguments) > 2 or len(groups) > MAX_GROUPS or not all(map(_is_plain_number, numbers)):
        return None
    return Options(
        max_tasks=int(arguments[0]) if arguments else 0, groups=[int(group) for group in groups] if groups else None
    )


def _is_plain_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _read_any(arguments: Sequence[str]) -> Options:
    # argparse is imported here: see _read_plain.
    from .deployment import add_options
    from .terminal.arguments import ABOUT_GROUPS, Parser, group_ids, number_of, seconds, whole_number

    parser = Parser(prog=WORKER, description="Run tasks of the queue until MAX_TASKS ran or none is left.")
    parser.about_more = ABOUT_GROUPS
    parser.add_argument(
        "max_tasks",
        metavar="MAX_TASKS",
        nargs="?",
        type=whole_number(0, hint=ABOUT_MAX_TASKS),
        default=0,
        help="how many tasks to run at most; 0 or absent: until the queue is empty",
    )
    parser.add_argument("groups", metavar="GROUP_IDS", nargs="?", type=group_ids, help="as 3,5,6; absent: every group")
    parser.add_argument("--mode", choices=MODES, help="what becomes of completed tasks, over TASKSERVER_MODE")
    parser.add_argument(
        "--batch",
        metavar="N",
        type=whole_number(1, MAX_BATCH),
        default=100,
        help=f"claim at most N at once (default 100, at most {MAX_BATCH})",
    )
    parser.add_argument(
        "--max-time",
        metavar="S",
        type=seconds(),
        help="start nothing that would not fit into S seconds; also as 50s, 5m, 1h",
    )
    parser.add_argument(
        "--max-memory",
        metavar="MB",
        type=number_of("megabytes"),
        help="start nothing once the process is larger than MB megabytes",
    )
    parser.add_argument(
        "--slots",
        metavar="K",
        type=whole_number(0, MAX_SLOTS),
        help="at most K workers of the same database, table and groups on this host; one more leaves at once "
        f"(default {USUAL_SLOTS}, with --processes as many as these; 0: no limit)",
    )
    parser.add_argument(
        "--linger",
        metavar="S",
        type=seconds(),
        help="stay for S seconds and wait for new tasks; where all slots are taken, wait for one, whose worker leaves "
        "after its task",
    )
    parser.add_argument(
        "--processes",
        metavar="K",
        type=whole_number(1, MAX_PROCESSES),
        help="have K workers, each with these options, and one process that starts another one where one of them dies",
    )
    parser.add_argument("--verbose", action="store_true", help="say on standard error what it does")
    add_options(parser)
    return Options(**vars(parser.parse_args(arguments)))
