"""The frame of both programs: exit codes, their deployment, and how errors end them."""

# No deferred annotations here: named tuples would compile them in every empty run.

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC, EPIPE
from pathlib import Path
from typing import NamedTuple

from ...errors import DatabaseError, HostLimit, InvalidTask, SettingError
from ...host.files import fill_standard_descriptors
from ...messages.programs import CACHE_CUT_OFF, CLIENT
from ...messages.text import printable

_opened: os.stat_result | None = None
"""Standard error at the start of the program."""


class Exit(IntEnum):
    """The exit codes of worker.py and client.py."""

    OK = 0
    """Ran, or had nothing to do."""
    DATABASE = 1
    """The database could not be reached or used, or a limit of the host was reached."""
    USAGE = 2
    """Wrong usage or setting."""
    INTERRUPTED = 130
    """Ended by Ctrl-C, with the number of shells."""


WORKER_ENDED = 200
"""Added to the exit code of a worker of --processes: any other status means that it died."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals that ask a program to end."""
OUTPUT_FAILED = (EPIPE, ENOSPC, EIO, EBADF, EFBIG, EDQUOT)
MAX_UNEXPECTED_LENGTH = 500


def say(line: str) -> None:
    """Write a line on standard error; if that fails, the program ends as usual."""
    with suppress(OSError):
        # A task may have closed it, and opened another file with its number.
        if _opened is None or os.path.samestat(os.fstat(2), _opened):
            os.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))


def block_signals() -> None:
    """Block the signals that ask this program to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


class StopRequests:
    """Merges requests to stop: the same signal again within so many seconds is the same request.

    `timeout` sends a signal to its child and to the group of both; systemd sends it to each process of a service.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._counted: dict[int, float] = {}

    def is_new(self, number: int) -> bool:
        """Count a signal. Returns whether it is a new request."""
        now = time.monotonic()
        if now - self._counted.get(number, float("-inf")) < self._seconds:
            return False
        self._counted[number] = now
        return True


def deployment_of(usual: Path, folder: str | None, env_files: Sequence[str]) -> tuple[Path, Path | None]:
    """The folder and the settings file of --folder and --env; `usual` is the default folder.

    None as the file means the folder's `.env`. Raises SettingError, also if there are several files.
    """
    if len(env_files) > 1:
        several = "only status, check, metrics, page and doctor take several"
        raise SettingError(f"--env is given {len(env_files)} times: {several}; run this once for each")
    for option, given in (("--folder", folder), *(("--env", file) for file in env_files)):
        if given == "":
            raise SettingError(f"{option} is empty; allowed: a path")
    file = Path(env_files[0]).absolute() if env_files else None
    place = Path(folder).absolute() if folder is not None else usual if file is None else file.parent
    if not place.is_dir():
        raise SettingError(f"{place} is not a folder that this user can see; allowed: the folder of a deployment")
    return place, file


def settings_in_words(folder: Path, env_file: Path | None) -> str:
    """The place of a deployment, and the source of its settings."""
    file = env_file or folder / ".env"
    return f"the deployment in {folder}, with the settings {f'of {file}' if file.exists() else 'of the environment'}"


def run_program(name: str, command: Callable[[], int]) -> int:
    """Run a command; an error of taskserver becomes one line on standard error and an exit code."""
    os.umask(os.umask(0o022) | 0o022)  # nobody else may write to its files, even if the caller allows it
    _open_standard_streams()
    result = result_of(command)
    if result.words:
        print(f"{name}: {result.words}", file=sys.stderr)
    return result.code


class CommandResult(NamedTuple):
    """How a command ended."""

    code: int
    words: str = ""
    """One line for a person; empty if all is well."""
    error: Exception | None = None


def result_of(command: Callable[[], int]) -> CommandResult:
    """Run a command. Returns its result, even if it raises an error."""
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
        return _failed(DatabaseError(_unexpected(error)), Exit.DATABASE)
    # Here, as the frames of the error are released, and their memory too.
    words = "No memory: the host lets a program have no more of that; tasks may keep what they took until the run ends"
    return _failed(HostLimit(words), Exit.DATABASE)


def _unexpected(error: Exception) -> str:
    """One line instead of a traceback, for example if a server or proxy returns unexpected values."""
    from traceback import extract_tb  # rarely needed

    place = extract_tb(error.__traceback__)[-1]
    is_cut_off = isinstance(error, (ImportError, SyntaxError, NameError)) or str(error).startswith("module '")
    what = (
        f"was the last upload complete ({CLIENT} doctor says)? If so, the database's answer cannot be read, or this "
        "program has a bug"
    )
    if isinstance(error, EOFError):
        what = CACHE_CUT_OFF
    elif is_cut_off:
        what = "this program is incomplete (upload the folder again)"
    words = f"{type(error).__name__}: {str(error)[:MAX_UNEXPECTED_LENGTH]}"
    return f"{what}: {words} ({place.filename}, line {place.lineno}; PYTHONDEVMODE=1 shows the traceback)"


def _end_without_output(error: OSError) -> CommandResult:
    """End a program whose standard output could not be written."""
    # Python flushes the rest at exit, which must not fail again.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        return CommandResult(Exit.OK)  # the reader has stopped reading, like `head`
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
