"""worker.py: one run, as cron starts it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ..errors import DatabaseError, SettingError, SetupFailed
from ..messages.log_records import FOR_LOG_ALONE, FULL_TEXT
from ..messages.printable import printable
from ..messages.programs import WORKER
from .terminal.log import LOG, set_up
from .terminal.prints import prints_to_log
from ..server import TaskServer
from ..settings.load import Settings, hide_secrets, load_settings
from ..host.slots import Slots
from ..worker.record import groups_text, host_name
from ..interrupts.stop import Stop
from .terminal.live_line import LiveLine
from .terminal.program import SIGNALS, Exit, Wishes, run_program, say
from .deployment import deployment_of, settings_in_words
from .report import Part, Report
from .worker_options import Options, read_options

LEFT_BEHIND = (
    "a thread, a process or a clean-up that a task left behind goes on beyond its timeout and a lease; this worker ends"
)


def main(folder: Path, arguments: list[str]) -> int:
    """Run tasks of the deployment in `folder`, unless options name another; return the exit code."""
    return run_program(WORKER, lambda: _run(folder, read_options(arguments)))


def _run(folder: Path, options: Options) -> int:
    folder, env_file = deployment_of(folder, options.folder, options.env_file)
    settings = load_settings(folder, env_file=env_file)
    hide_secrets()
    if options.verbose:
        say(settings_in_words(folder, env_file))
    if options.mode:
        settings = settings._replace(mode=options.mode)
    if options.processes is None:
        reports = [_work(settings, options, Part(Stop(), LiveLine(sys.stdout)))]
    else:
        from .supervisor import Supervisor  # most lines have one worker

        reports = Supervisor(settings, options, _work).run()
    for words in dict.fromkeys(report.words for report in reports if report.words and not report.outage):
        say(f"{WORKER}: {words}")
    _tell_of_database(settings, options, reports)
    return max((report.code for report in reports), default=int(Exit.OK))


def _tell_of_database(settings: Settings, options: Options, reports: Sequence[Report]) -> None:
    """Say that the database is away, or is there again: an empty run finds nothing noted, and says nothing."""
    # Path.exists would raise an error where var/ cannot be entered.
    if any(report.outage for report in reports) or os.path.exists(settings.outages):
        from .outage import tell_of_database

        tell_of_database(settings, reports, options.verbose)


def _work(settings: Settings, options: Options, part: Part) -> Report:
    """Be a worker."""
    try:
        return _be_worker(settings, options, part)
    except DatabaseError as error:
        from .outage import kind_of

        return Report(Exit.DATABASE, words=printable(str(error)), outage=kind_of(error))
    except SetupFailed as error:
        LOG.error(str(error), extra={FULL_TEXT: error.full_text, FOR_LOG_ALONE: True})
        raise


def _be_worker(settings: Settings, options: Options, part: Part) -> Report:
    stop, live = part.stop, part.live
    stop.ends_process = WORKER
    stop.signals = (*SIGNALS, signal.SIGPIPE)  # of SIGPIPE's own way a broken connection would end the process
    _obey_signals(part)
    standard_error, output = set_up(options.verbose, settings, live.clear, part.lines_left)
    with prints_to_log(sys.stdout, output), TaskServer.from_settings(settings) as server:
        slots = _slots(settings, options) if options.max_workers else None
        if slots is not None and not _take_slot(slots, server, options, part):
            return Report(Exit.OK)
        if part.tell_slot is not None:
            part.tell_slot()
        code, has_run_tasks = Exit.DATABASE, True
        try:
            result = server.run(
                options.max_tasks,
                options.groups,
                batch=options.batch,
                max_time=options.max_time,
                max_memory=options.max_memory,
                linger=options.linger,
                stop=stop,
                on_progress=lambda result: live.show(f"{result.in_words()}, {result.taken} taken up"),
            )
            code, has_run_tasks = Exit.OK, result.taken > 0
        finally:
            live.clear()
            if slots is not None and options.linger is not None:
                slots.leave()  # a successor waits, and a thread that a task left may hold up the end of this process
            if not part.is_supervised:
                standard_error.say_rest(standard_error.left_out)
            _limit_clean_up(settings, code, has_run_tasks, part)
    reason = result.reason.value if result.reason else "unknown"
    live.end(f"{result.in_words()} in {result.seconds:.1f} s; ended: {reason}")
    return Report(code, result.all_counts(), outage="")


def _slots(settings: Settings, options: Options) -> Slots:
    groups = groups_text(sorted(set(options.groups or ())))
    return Slots(settings.folder, host_name(), settings.queue, groups, options.max_workers)


def _take_slot(slots: Slots, server: TaskServer, options: Options, part: Part) -> bool:
    """Take a slot, in which a worker that lingers stays until a successor waits for it. False without one."""
    stop = part.stop
    try:
        if options.linger is None or not part.may_wait_for_slot:
            has_slot, others = slots.take(), "run here"
        else:
            has_slot, others = slots.take_or_succeed(stop.wait), "run here, and one more waits for each of them"
    except SettingError:
        server.store.tables.check()  # the database may lie in the same folder: its error matters more
        raise
    if has_slot and options.linger is not None:
        stop.lookouts.append(lambda: stop.relieve() if slots.has_successor() else None)
    elif not has_slot and not stop.asked:
        LOG.info("%d workers of these groups %s already: this one leaves", options.max_workers, others)
    return has_slot


def _obey_signals(part: Part) -> None:
    worker, wishes, asked = os.getpid(), Wishes(), 0

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if os.getpid() != worker:  # in a process that a task forked: the run belongs to its parent
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        wishes.hear(number)
        # A signal to all processes of a service comes by itself, and from the supervisor once more: it counts once.
        while asked < max(part.stops(), wishes.count - part.stops()):
            asked += 1
            part.stop.ask()

    for number in SIGNALS:
        signal.signal(number, ask)
    # worker.py held the signals back until they have a handler.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _limit_clean_up(settings: Settings, code: Exit, has_run_tasks: bool, part: Part) -> None:
    """End this process in time, and free its slot: Python waits for threads and processes that tasks left behind.

    It also calls what tasks left to be called at the end, as `atexit` and `__del__` do. None of that needs to end.
    """
    if part.is_supervised:  # until its report is written
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: os._exit(code))  # the run is over
    if has_run_tasks and settings.timeout_seconds:
        from ..interrupts.watchdog import Watchdog  # an empty run leaves nothing behind

        Watchdog(WORKER, LEFT_BEHIND).arm(settings.timeout_seconds + settings.lease_seconds)


if __name__ == "__main__":  # `python -m taskserver worker` is meant
    sys.exit(main(Path.cwd(), sys.argv[1:]))
