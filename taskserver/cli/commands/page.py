"""client.py page and metrics: the status page as one file, hashes for the page on the web, and Prometheus' text."""

from __future__ import annotations

import argparse
import hashlib
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from getpass import getpass
from pathlib import Path
from typing import Any

from ...errors import DatabaseError, InvalidTask, SettingError
from ...health.metrics import Gauge, as_text, gauges_when_away, read_gauges, together
from ...host.files import write_atomically
from ...host.once_an_hour import OVER, OnceAnHour
from ...messages.programs import CLIENT, install_command
from ...messages.text import shown
from ...model.task import MAX_SECONDS
from ...settings.page import TOKEN_NAME
from ..terminal.arguments import Queue, look_at, note_error, whole_seconds
from ..terminal.output import note
from ..terminal.program import Exit, result_of

JINJA = "jinja2>=3.1,<4"
NEW_FILE_MODE = 0o644
"""On many hosts the web server or node exporter reads it from another account."""
ITERATIONS = 600_000
SHORT = 12
DEFAULT_EVERY = "5m"


def add_page(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "page", description="write the status page as one file; make its password or a token"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--output", metavar="FILE", type=Path, help="write it into FILE, whole or not at all; else print it"
    )
    what.add_argument(
        "--password", action="store_true", help="ask for a password, print its hash for TASKSERVER_PAGE_PASSWORD"
    )
    what.add_argument(
        "--token",
        metavar="NAME",
        nargs="?",
        const="",
        help="make a token: with a name for TASKSERVER_ADD_TOKENS, without one for TASKSERVER_METRICS_TOKEN",
    )
    parser.add_argument(
        "--every",
        metavar="S",
        type=whole_seconds(1, MAX_SECONDS),
        default=DEFAULT_EVERY,
        help="how often cron makes it: the file warns once it is three times as old; default %(default)s",
    )
    parser.add_argument("--no-doctor", action="store_true", help="without the doctor's findings, which take longer")
    parser.set_defaults(run_on_queues=_page)


def _page(queues: Sequence[Queue], options: argparse.Namespace) -> int:
    if options.password:
        print(_hash_of(_ask()))
    elif options.token is not None:
        _make_token(options.token)
    elif options.output is None:
        return _write(queues, options)
    else:
        # Report errors once an hour for each file of settings.
        once = OnceAnHour(queues[0].folder, "page", *(str(queue.env_file or "") for queue in queues))
        code, _, error = result_of(lambda: _write(queues, options))
        if error:
            once.report(error, _print_error)
        elif code == Exit.OK and once.end_outage():
            _print_error(OVER)
        return code
    return Exit.OK


# ---- the file


def _write(queues: Sequence[Queue], options: argparse.Namespace) -> int:
    try:
        from ...web.one_file import away, one_file, read_part
    except ImportError as error:
        if str(error.name).startswith("taskserver"):
            raise SettingError("this bundle does not include the page: upload the one made with --web") from None
        raise SettingError(
            f"the package {error.name} is missing, which makes the page: {install_command(JINJA)}; "
            "or upload the bundle that has it inside (python packaging/bundle.py --web makes it)"
        ) from None

    def read(queue: Queue) -> tuple[Mapping[str, Any], DatabaseError | None]:
        with queue.open() as server:
            try:
                return read_part(server, queue.folder, not options.no_doctor, queue.env_file), None
            except DatabaseError as error:
                # The file must show it: an old one would show that all is well.
                return away(server.settings.table, error), error

    looks = look_at(queues, read)
    parts = {queue.name: seen[0] if seen else away(queue.name, result.error) for queue, seen, result in looks}
    _give(one_file(parts, options.every), options.output)
    failures = {queue.name: seen[1] if seen else result.error for queue, seen, result in looks}
    if "" in failures and failures[""] is not None:
        raise failures[""]
    if words := [f"{name}: {error}" for name, error in failures.items() if error is not None]:
        raise DatabaseError("; ".join(words))
    return Exit.OK


def _give(text: str, path: Path | None) -> None:
    if path is None:
        sys.stdout.write(text)
    else:
        write_atomically(path, text, _mode_of(path))


def _mode_of(path: Path) -> int:
    """The rights of an existing file, which its owner may have chosen."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        return NEW_FILE_MODE


def _print_error(words: str) -> None:
    note(f"{CLIENT}: {words}")


# ---- secrets


def _ask() -> str:
    """The password: typed twice at a terminal, else the first line of standard input. Raises InvalidTask."""
    try:
        if sys.stdin.isatty():
            password = getpass("Password for the page: ")
            if password != getpass("The same once more: "):
                raise InvalidTask("the two passwords differ; nothing was made")
        else:
            password = sys.stdin.readline().rstrip("\r\n").removeprefix("\ufeff")  # as some editors write
        password.encode()
    except EOFError:
        raise InvalidTask("no password was typed; nothing was made") from None
    except UnicodeError:
        raise InvalidTask("the password is not UTF-8 text") from None
    if not password.isprintable():
        raise InvalidTask("the password has control characters, as in a file that is not UTF-8 text")
    if not password:
        raise InvalidTask(f"the password is empty; type one, or pipe it: {CLIENT} page --password < file")
    if len(password) < SHORT:
        note(f"{CLIENT}: it has {len(password)} characters; {SHORT} or more are hard to guess")
    if sys.stdout.isatty():
        note("Put this into .env, in single quotes, as TASKSERVER_PAGE_PASSWORD='…':")
    return password


def _hash_of(password: str) -> str:
    """The hash in werkzeug's format: method, iterations, salt and digest."""
    salt = secrets.token_urlsafe(16)
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), salt.encode(), ITERATIONS)
    return f"pbkdf2:sha256:{ITERATIONS}${salt}${digest.hex()}"


def _make_token(name: str) -> None:
    if name and not re.fullmatch(TOKEN_NAME, name):
        raise InvalidTask(f"--token {shown(name)}: allowed: up to 60 letters from a to z, digits, _, . and -")
    token = secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    print(f"token, which only its user gets: {token}")
    if name:
        print(f"entry of TASKSERVER_ADD_TOKENS:  {name};sha256={digest};tasks=tasks.send_letter;groups=*")
    else:
        print(f"TASKSERVER_METRICS_TOKEN={digest}")


# ---- metrics


def add_metrics(subparsers: Any) -> None:
    parser = subparsers.add_parser("metrics", description="print metrics for Prometheus: tasks, waits, runs, stats")
    parser.add_argument(
        "--textfile",
        metavar="PATH",
        type=Path,
        help="write them into this file instead; node exporter reads files whose name ends in .prom",
    )
    parser.set_defaults(run_on_queues=_metrics)


def _metrics(queues: Sequence[Queue], options: argparse.Namespace) -> int:
    # Old numbers would look like an idle queue, and node exporter would read the file for ever.
    try:
        looks = look_at(queues, _gauges)
    except DatabaseError:
        _give(as_text(gauges_when_away()), options.textfile)
        raise
    gauges = {queue.name: seen or gauges_when_away() for queue, seen, _ in looks}
    _give(as_text(gauges.get("") or together(gauges)), options.textfile)
    for queue, _, result in looks:
        note_error(queue, result)
    return max(result.code for _, _, result in looks)


def _gauges(queue: Queue) -> Sequence[Gauge]:
    with queue.open() as server:
        return read_gauges(server.store, server.settings)
