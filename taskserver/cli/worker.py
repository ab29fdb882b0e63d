"""worker.py: one run, as cron starts it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ..errors import DatabaseError, HostLimit, SettingError, SetupFailed
from ..messages.log_records import LOG_ONLY, FULL_TEXT
from ..messages.text import count_of, printable
from ..messages.programs import WORKER
from .terminal.log import LOG, prints_to_log, set_up
from ..server import TaskServer
from ..settings.load import Settings, hide_secrets, load_settings, sources
from ..host.files import NO_ROOM
from ..host.once_an_hour import OVER, OnceAnHour
from ..host.process_identity import host_name
from ..host.slots import FOLDER, Slots
from ..worker.limits import check_system
from ..worker.result import Reason, RunResult
from ..worker.record import groups_text
from ..interrupts.stop import Stop
from .terminal.program import (
    WORKER_ENDED,
    SIGNALS,
    Exit,
    StopRequests,
    block_signals,
    deployment_of,
    result_of,
    run_program,
    say,
    settings_in_words,
)
from .worker_options import Options, read_options

WAKE_EVERY_SECONDS = 0.2
ONE_REQUEST_SECONDS = 0.1
FORWARDED_SECONDS = 1.0
"""A signal to all processes of a service may come again from the supervisor, at most so much later."""


def main(folder: Path, arguments: list[str]) -> int:
    """Run tasks of the deployment in `folder`, unless options name another; return the exit code."""
    return run_program(WORKER, lambda: _run(folder, read_options(arguments)))


def _run(folder: Path, options: Options) -> int:
    check_system()
    folder, env_file = deployment_of(folder, options.folder, options.env_files or ())

    def run() -> int:
        settings = load_settings(folder, env_file=env_file)
        hide_secrets()
        if options.verbose:
            say(f"{settings_in_words(folder, env_file)}; {sources(folder, env_file)[0]}")
        if options.mode:
            settings = settings._replace(mode=options.mode)
        if options.processes is None:
            return _work(settings, options, Stop())
        from .processes import Processes  # most lines have one worker

        return Processes(settings, options, _work).run()

    once = OnceAnHour(folder, WORKER, str(env_file or ""))  # other lines may have the same wrong setting
    return _reported(once, options, run)


def _reported(once: OnceAnHour, options: Options, command: Callable[[], int]) -> int:
    """Run a command, and report its error as one line once an hour."""
    code, words, error = result_of(command)
    if options.verbose and words:
        say(f"{WORKER}: {words}")
    elif error:
        once.report(error, lambda words: say(f"{WORKER}: {words}"))
    return code


def _work(settings: Settings, options: Options, stop: Stop) -> int:
    """Run one worker, and return its exit code."""
    once = OnceAnHour(settings.folder, WORKER, settings.queue)

    def work() -> int:
        try:
            has_run = _run_tasks(settings, options, stop)
        except DatabaseError as error:
            if not options.verbose:
                LOG.error(printable(str(error)), extra={LOG_ONLY: True})
            raise
        except SetupFailed as error:
            LOG.error(str(error), extra={FULL_TEXT: error.full_text, LOG_ONLY: True})
            raise
        # Not for a person at a terminal, who sees that all is well.
        if has_run and not os.isatty(2) and once.end_outage():
            LOG.info(OVER)
            say(f"{WORKER}: {OVER}")
        return Exit.OK

    return _reported(once, options, work)


def _run_tasks(settings: Settings, options: Options, stop: Stop) -> bool:
    """False if no slot was free: then the database was not used."""
    stop.ends_process = WORKER
    stop.signals = (*SIGNALS, signal.SIGPIPE)  # with the default SIGPIPE a broken connection would kill the process
    _obey_signals(stop, ONE_REQUEST_SECONDS if options.processes is None else FORWARDED_SECONDS)
    standard_error, output = set_up(options.verbose, settings, options.processes or 1)
    with prints_to_log(sys.stdout, output), TaskServer.from_settings(settings) as server:
        groups = groups_text(sorted(set(options.groups or ())))
        slots = Slots(settings.folder, host_name(), settings.queue, groups, options.max_workers)
        if options.max_workers and not _take_slot(slots, server, options, stop):
            return False
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
            )
            code, has_run_tasks = Exit.OK, result.taken > 0
        finally:
            if options.linger is not None:
                slots.leave()  # a successor waits, and a thread that a task left may delay the end of this process
            standard_error.count_rest()
            status = code if options.processes is None else WORKER_ENDED + code
            _limit_clean_up(settings, status, has_run_tasks)
    _show_summary(result)
    if stop.asked and result.reason is not Reason.STOPPED:
        os._exit(status)  # the signal came after the run's last check: skip the clean-up
    return True


def _show_summary(result: RunResult) -> None:
    with suppress(OSError, ValueError):  # a task may have closed standard output, or the terminal is gone
        if sys.stdout.isatty():
            reason = result.reason.value if result.reason else "unknown"
            print(printable(f"{result.in_words()} in {result.seconds:.1f} s; ended: {reason}"), flush=True)


def _take_slot(slots: Slots, server: TaskServer, options: Options, stop: Stop) -> bool:
    """Take a slot; a lingering worker keeps it until a successor waits. False if none is free."""
    try:
        if options.linger is None:
            has_slot, others = slots.take(), "at work here"
        else:
            has_slot, others = slots.take_or_wait(stop.wait), "at work here, and one more waits for each of them"
    except OSError as error:
        server.store.tables.check()  # the database may be in the same folder: its error is more important
        raise (HostLimit if error.errno in NO_ROOM else SettingError)(
            f"{error.filename or FOLDER} cannot be used ({error.strerror}): workers are counted there; make it "
            "writable for their user, or free some space, or count none with --slots 0"
        ) from None
    if has_slot and options.linger is not None:
        stop.lookouts.append(lambda: stop.hand_over() if slots.has_successor() else None)
    elif not has_slot and not stop.asked:
        LOG.info("%s of these groups %s already: this one exits", count_of(options.max_workers, "worker"), others)
    return has_slot


def _obey_signals(stop: Stop, seconds: float) -> None:
    worker, requests = os.getpid(), StopRequests(seconds)

    def ask(number: int, frame: FrameType | None) -> None:
        if os.getpid() != worker:  # in a process that a task forked: the run belongs to its parent
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif requests.is_new(number):
            stop.ask()

    for number in SIGNALS:
        signal.signal(number, ask)
    # Called last, after functions of tasks: then Python removes its handlers, and a signal would look like a death.
    atexit.register(block_signals)
    # worker.py blocked the signals until now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _limit_clean_up(settings: Settings, status: int, has_run_tasks: bool) -> None:
    """End this process in time, and free its slot.

    Python waits for threads and processes that tasks left, and calls their `atexit` and `__del__`: these may hang.
    """
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: os._exit(status))  # the run is over
    if not has_run_tasks:
        return  # an empty run leaves nothing behind
    # If a signal comes just when Python starts to wait for a thread, it is seen only when Python wakes.
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, WAKE_EVERY_SECONDS, WAKE_EVERY_SECONDS)
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # after Python resets its handlers an alarm would kill
    if settings.timeout_seconds:
        import faulthandler

        faulthandler.dump_traceback_later(settings.timeout_seconds + settings.lease_seconds, exit=True, file=2)
