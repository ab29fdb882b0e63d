"""The arguments of worker.py."""

# No deferred annotations here: named tuples would compile them in every empty run.

from collections.abc import Sequence
from typing import NamedTuple

from ..messages.programs import WORKER
from ..model.task import MAX_BATCH, MAX_GROUPS, MODES

MAX_SLOTS = 1000
USUAL_SLOTS = 4
MAX_PROCESSES = 100
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
    env_files: Sequence[str] | None = None

    @property
    def max_workers(self) -> int:
        """How many workers of one line may run at once on a host; 0: no limit."""
        return self.processes or USUAL_SLOTS if self.slots is None else self.slots


def read_options(arguments: Sequence[str]) -> Options:
    """Read the arguments; end the program if they are invalid."""
    return _read_plain(arguments) or _read_any(arguments)


def _read_plain(arguments: Sequence[str]) -> Options | None:
    """The options of a plain line such as `100 3,5,6`, as in most crontabs; None for any other line.

    An empty run costs little more than its imports, and argparse would be one of the largest.
    """
    groups = arguments[1].split(",") if len(arguments) == 2 else []
    numbers = [*arguments[:1], *groups]
    is_plain = all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers)
    if len(arguments) > 2 or len(groups) > MAX_GROUPS or not is_plain:
        return None
    return Options(int(arguments[0]) if arguments else 0, [int(group) for group in groups] or None)


def _read_any(arguments: Sequence[str]) -> Options:
    # argparse is imported here: see _read_plain.
    from .terminal.arguments import ABOUT_GROUPS, Parser, add_deployment, group_ids, number_of, seconds, whole_number

    parser = Parser(prog=WORKER, description="Run tasks of the queue until MAX_TASKS have run or none is left.")
    parser.about_more = ABOUT_GROUPS
    add = parser.add_argument
    add(
        "max_tasks",
        metavar="MAX_TASKS",
        nargs="?",
        type=whole_number(0, hint=ABOUT_MAX_TASKS),
        default=0,
        help="how many tasks to run at most; 0 or absent: until the queue is empty",
    )
    add(
        "groups",
        metavar="GROUP_IDS",
        nargs="?",
        type=group_ids,
        help="only tasks of these groups, such as 3,5,6; absent: of every group",
    )
    add("--mode", choices=MODES, help="what becomes of a completed task's row; default TASKSERVER_MODE")
    batch = f"claim at most N at once (default 100, at most {MAX_BATCH})"
    add("--batch", metavar="N", type=whole_number(1, MAX_BATCH), default=100, help=batch)
    time = "end within about S seconds (also 50s, 5m or 1h): start no task that may take longer than what is left"
    add("--max-time", metavar="S", type=seconds(), help=time)
    memory = "start no more tasks once the process is larger than MB megabytes"
    add("--max-memory", metavar="MB", type=number_of("megabytes"), help=memory)
    slots = (
        "at most K workers of the same database, table and groups on this host; one more exits at once "
        f"(default {USUAL_SLOTS}, with --processes as many as these; 0: no limit)"
    )
    add("--slots", metavar="K", type=whole_number(0, MAX_SLOTS), help=slots)
    linger = (
        "wait for new tasks until S seconds have passed; if all slots are taken, wait for one: its worker then leaves "
        "after its task"
    )
    add("--linger", metavar="S", type=seconds(), help=linger)
    processes = "run K workers with these options, and a supervisor that replaces one that dies"
    add("--processes", metavar="K", type=whole_number(1, MAX_PROCESSES), help=processes)
    add("--verbose", action="store_true", help="report on standard error what it does")
    add_deployment(parser)
    return Options(**vars(parser.parse_args(arguments)))
