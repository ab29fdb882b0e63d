"""worker.py: one run, as cron starts it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import TextIO

from ..errors import SettingError
from ..log import LOG, PrintsToLog, set_up
from ..run_result import RunResult
from ..server import TaskServer
from ..settings import Settings, load_settings
from ..slots import Slots
from ..runner import groups_text, host_name
from ..stopping import Stop
from .live_line import LiveLine
from .program import Exit, run_program
from .worker_options import Options, read_options

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEFT_BEHIND = "a thread or a process that a task left behind goes on beyond its timeout and a lease; this worker ends"


def main(folder: Path, arguments: list[str]) -> int:
    """Run tasks with the settings in `folder`. The exit code."""
    return run_program("worker.py", lambda: _run(folder, read_options(arguments)))


def _run(folder: Path, options: Options) -> int:
    settings = load_settings(folder)
    if options.mode:
        settings = settings._replace(mode=options.mode)
    stop = Stop()
    stop.ends_process = "worker.py"
    _obey_signals(stop)
    live = LiveLine(sys.stdout)
    standard_error = set_up(options.verbose, settings.log_file, live.clear)
    with _prints_kept_from(sys.stdout), TaskServer.from_settings(settings) as server:
        if options.slots and not _take_slot(server, options):
            LOG.info("%d workers of these groups run here already: this one leaves", options.slots)
            return Exit.OK
        code = Exit.DATABASE
        try:
            result = server.run(
                options.max_tasks,
                options.groups,
                batch=options.batch,
                max_time=options.max_time,
                max_memory=options.max_memory,
                stop=stop,
                on_progress=lambda result: live.show(_progress(result)),
            )
            code = Exit.OK
        finally:
            live.clear()
            standard_error.end()
            _wait_no_longer_than_for_a_task(settings, code)
    live.end(_summary(result))
    return code


def _take_slot(server: TaskServer, options: Options) -> bool:
    settings = server.settings
    queue = f"{settings.dsn.place} {settings.table}"
    slots = Slots(settings.folder, host_name(), queue, groups_text(sorted(set(options.groups or ()))), options.slots)
    try:
        return slots.take()
    except SettingError:
        server.store.check_tables()  # the database may lie in the same folder, and is what matters more
        raise


@contextmanager
def _prints_kept_from(stdout: TextIO) -> Iterator[None]:
    """Send what tasks print to the log unless a person watches: cron would mail it."""
    if stdout.isatty():
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout.fileno())  # for bytes, and for programs that tasks start
    os.close(nowhere)
    prints = PrintsToLog(stdout)
    try:
        with redirect_stdout(prints):
            yield
    finally:
        prints.end()


def _obey_signals(stop: Stop) -> None:
    worker = os.getpid()

    def ask(number: int, frame: FrameType | None) -> None:
        if os.getpid() == worker:
            stop.ask()
        else:  # a process that a task forked: its run is not ours
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in SIGNALS:
        signal.signal(number, ask)
    # worker.py held them back: they find their handler now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _wait_no_longer_than_for_a_task(settings: Settings, code: Exit) -> None:
    """Python waits for threads and processes that tasks left behind, which may never end."""
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: os._exit(code))  # the run is over already
    is_left = threading.active_count() > 1 or "multiprocessing" in sys.modules
    if is_left and settings.timeout_seconds:
        from ..watchdog import Watchdog  # few runs leave anything

        Watchdog("worker.py", LEFT_BEHIND).arm(settings.timeout_seconds + settings.lease_seconds)


def _progress(result: RunResult) -> str:
    return f"{_counts(result)}, {result.taken} taken up"


def _summary(result: RunResult) -> str:
    reason = result.reason.value if result.reason else "unknown"
    return f"{_counts(result)} in {result.seconds:.1f} s; ended: {reason}"


def _counts(result: RunResult) -> str:
    failed = f", {result.failed} to be tried again" if result.failed else ""
    lost = f", {result.lost} lost" if result.lost else ""
    return f"{result.done} done{failed}, {result.fatal} fatal{lost}"
