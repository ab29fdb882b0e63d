"""The frame of both programs: exit codes, the deployment they are for, and how errors end them."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC, EPIPE
from pathlib import Path
from typing import NamedTuple

from ...errors import DatabaseError, HostLimit, InvalidTask, SettingError
from ...host.files import fill_standard_descriptors
from ...messages.programs import CLIENT
from ...messages.text import printable

_opened: os.stat_result | None = None
"""Standard error as the program found it."""


class Exit(IntEnum):
    """The exit codes of worker.py and client.py."""

    OK = 0
    """Ran, or had nothing to do."""
    DATABASE = 1
    """The database could not be reached or used, or the host lets the program have too little."""
    USAGE = 2
    """Wrong usage or setting."""
    INTERRUPTED = 130
    """Ended by Ctrl-C, as shells number it."""


WORKER_ENDED = 200
"""Added to the exit code of a worker of --processes: with any other status it died."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals that ask a program to end."""
OUTPUT_FAILED = (EPIPE, ENOSPC, EIO, EBADF, EFBIG, EDQUOT)
MAX_UNFORESEEN_LENGTH = 500


def say(line: str) -> None:
    """Write a line on standard error; it must not change how the program ends that nobody takes it."""
    with suppress(OSError):
        # A task may have closed it, and a file of its own have got its number.
        if _opened is None or os.path.samestat(os.fstat(2), _opened):
            os.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))


def block_signals() -> None:
    """Hold the signals back that ask this program to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


class Wishes:
    """Merges requests to end: the same signal within so many seconds is the same request.

    `timeout` sends a signal to its child, and to the group of both; systemd to each process of a service.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._counted: dict[int, float] = {}

    def hear(self, number: int) -> bool:
        """Note a signal. Whether it is a new request."""
        now = time.monotonic()
        if now - self._counted.get(number, float("-inf")) < self._seconds:
            return False
        self._counted[number] = now
        return True


def deployment_of(usual: Path, folder: str | None, env_file: str | None) -> tuple[Path, Path | None]:
    """The folder and the file of settings that --folder and --env name, with `usual` as the folder without them.

    No file stands for the folder's `.env`. Raises SettingError.
    """
    for option, given in (("--folder", folder), ("--env", env_file)):
        if given == "":
            raise SettingError(f"{option} is empty; allowed: a path")
    file = None if env_file is None else Path(env_file).absolute()
    place = Path(folder).absolute() if folder is not None else usual if file is None else file.parent
    if not place.is_dir():
        raise SettingError(f"{place} is no folder that this user can see; allowed: the folder of a deployment")
    return place, file


def settings_in_words(folder: Path, env_file: Path | None) -> str:
    """Where a deployment lies, and where its settings come from."""
    file = env_file or folder / ".env"
    return f"the deployment in {folder}, with the settings {f'of {file}' if file.exists() else 'of the environment'}"


def run_program(name: str, command: Callable[[], int]) -> int:
    """Run a command; an error of taskserver becomes one line on standard error and an exit code."""
    os.umask(os.umask(0o022) | 0o022)  # nobody else may write to what it makes, whatever its caller allows
    _open_standard_streams()
    result = result_of(command)
    if result.words:
        print(f"{name}: {result.words}", file=sys.stderr)
    return result.code


class CommandResult(NamedTuple):
    """How a command ended."""

    code: int
    words: str = ""
    """For a person: one line; empty where all is well."""
    error: Exception | None = None


def result_of(command: Callable[[], int]) -> CommandResult:
    """Run a command; its result, also where it raises an error."""
    try:
        try:
            return CommandResult(command())
        finally:
            if not sys.stdout.closed:  # a task may have closed standard output
                sys.stdout.flush()
    except (SettingError, InvalidTask) as error:
        return _failed(error, Exit.USAGE)
    except (DatabaseError, HostLimit) as error:
        return _failed(error, Exit.DATABASE)
    except KeyboardInterrupt:
        return CommandResult(Exit.INTERRUPTED)
    except OSError as error:
        if error.errno in OUTPUT_FAILED and error.filename is None:
            return _end_without_output(error)
        return _failed(HostLimit(f"the host refused something: {error}"), Exit.DATABASE)
    except MemoryError:
        pass
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return _failed(DatabaseError(_unforeseen(error)), Exit.DATABASE)
    # Here the frames that led to the error are gone, and with them what they held.
    words = "No memory: the host lets a program have no more of that; tasks may keep what they took until the run ends"
    return _failed(HostLimit(words), Exit.DATABASE)


def _unforeseen(error: Exception) -> str:
    """In place of a traceback: a server, or a proxy before it, may answer with other values than were asked for."""
    from traceback import extract_tb  # most programs end well

    place = extract_tb(error.__traceback__)[-1]
    is_cut_off = isinstance(error, (ImportError, SyntaxError, NameError)) or str(error).startswith("module '")
    what = (
        "this program is not whole (upload the folder again)"
        if is_cut_off
        else f"was the last upload whole ({CLIENT} doctor says)? If so, an answer of the database cannot be read, or "
        "this program has a mistake"
    )
    words = f"{type(error).__name__}: {str(error)[:MAX_UNFORESEEN_LENGTH]}"
    return f"{what}: {words} ({place.filename}, line {place.lineno}; PYTHONDEVMODE=1 shows the way there)"


def _end_without_output(error: OSError) -> CommandResult:
    """End a program whose standard output could not be written."""
    # Python flushes the rest at exit, which must not fail once more.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        return CommandResult(Exit.OK)  # the reader has seen enough, as `head` does
    return _failed(OSError(f"standard output cannot be written: {error.strerror}"), Exit.USAGE)


def _open_standard_streams() -> None:
    """Open standard streams that the caller closed."""
    global _opened
    fill_standard_descriptors()
    _opened = os.fstat(2)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _failed(error: Exception, code: Exit) -> CommandResult:
    return CommandResult(code, printable(str(error)), error)
