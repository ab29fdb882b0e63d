"""What `make demo` runs: the whole system at work, on SQLite, with the standard library of this Python as its input.

It does what a user would, with the real commands and a queue of its own under var/demo/; a user's .env and queue
are left alone. It ends with exit code 1 if what was built isn't all that was asked for.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from examples.demo import search, tasks  # noqa: E402

FOLDER = ROOT / "var" / "demo"
TASKS_FILE = ROOT / "examples" / "demo" / "tasks.py"
LOG_FILE = FOLDER / "taskserver.log"
INDEX_GROUP, PAGE_GROUP, LETTER_GROUP = 6, 5, 3
# One queue, and yet in this order: the smaller priority runs sooner.
INDEX_PRIORITY, PAGE_PRIORITY, LETTER_PRIORITY = 0, 10, 20
# Tests, bundled programs and hundreds of character tables: not what a reader searches for.
LEFT_OUT = {"test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip", "encodings", "__phello__"}
NOT_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}
READERS = ("ada@example.org", "grace@example.org", "linus@example.org")
SEARCHES = (
    "shared memory",
    "regular expression",
    "temporary file",
    "event loop",
    "abstract base class",
    "time zone",
    "mail message",
    "compress",
    "thread lock",
    "command line",
    "random number",
    "syntax tree",
)
SHOWN_SEARCH = SEARCHES[0]
LETTER_LINES = 14


class DemoError(Exception):
    """The demo can't go on, or didn't build what it should; the text says what to look at."""


def main() -> int:
    with open(__file__, "rb") as own_file:
        return _demo(own_file)


def _demo(own_file: BinaryIO) -> int:
    began = time.monotonic()
    try:
        _require_fts5()
        _require_no_other(own_file)
        if FOLDER.exists():
            shutil.rmtree(FOLDER)
        os.environ.update(_settings())
        _run("client.py", "init")
        modules = list(_modules())
        print(f"{len(modules)} modules of Python's own library: each gets indexed and a page; then letters")
        _add_tasks(modules)
        _run_workers()
        _run("client.py", "status")
        _show_what_was_built()
        _check_counts(len(modules))
    except (DemoError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"To look around: (. {_shown(_write_settings())}; {_python()} client.py list), {_shown(FOLDER)}/pages")
    print(f"It took {time.monotonic() - began:.0f} s. {_shown(TASKS_FILE)} did the work, {_shown(FOLDER)} holds it.")
    return 0


def _require_fts5() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.execute("CREATE VIRTUAL TABLE probe USING fts5(word)")
        except sqlite3.OperationalError:
            raise DemoError(
                f"the SQLite {sqlite3.sqlite_version} of {sys.executable} has no FTS5 (full-text search); "
                "use a Python whose sqlite3 has it, as Debian's and Ubuntu's"
            ) from None


def _require_no_other(own_file: BinaryIO) -> None:
    """Two demos in one folder would delete each other's work; the lock goes with this process."""
    try:
        fcntl.flock(own_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DemoError(f"another demo is running in {ROOT}: wait for it") from None


def _settings() -> Mapping[str, str]:
    """Every setting, defaults too: what isn't in the environment would come from a user's own .env."""
    return {
        "DEMO_FOLDER": str(FOLDER),
        "PYTHONIOENCODING": ":backslashreplace",  # what a terminal can't show is no error
        "TASKSERVER_DSN": "sqlite:///" + quote(str(FOLDER / "taskserver.db")),
        "TASKSERVER_TABLE": "jobs_queue",
        "TASKSERVER_MODE": "mark",  # what is done stays in the table, for `client.py status`
        "TASKSERVER_MODULES": tasks.__name__,
        "TASKSERVER_MAX_ATTEMPTS": "1",  # a task that fails here is a fault, and seen at once
        "TASKSERVER_BACKOFF": "exponential:60",
        "TASKSERVER_LEASE": "120",
        "TASKSERVER_TIMEOUT": "60",
        "TASKSERVER_DB_PATIENCE": "30",
        "TASKSERVER_LOG": str(LOG_FILE),
    }


def _modules() -> Iterator[str]:
    """The paths of the standard library's modules, relative to it, as `asyncio/queues.py`."""
    for source in sorted(tasks.LIBRARY.rglob("*.py")):
        path = source.relative_to(tasks.LIBRARY)
        # A folder such as config-3.11-x86_64-linux-gnu is no package, nor is its content a module.
        importable = all(part.isidentifier() for part in path.with_suffix("").parts)
        if importable and source.is_file() and not (LEFT_OUT | NOT_LIBRARY).intersection(path.parts):
            yield path.as_posix()


def _add_tasks(modules: list[str]) -> None:
    """Write the bulk file and add it: one task for each module, page and letter."""
    file = FOLDER / "tasks.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for path in modules:
            lines.write(_line("index_module", {"path": path}, INDEX_GROUP, INDEX_PRIORITY))
        for path in modules:
            lines.write(_line("render_page", {"module": search.module_name(path)}, PAGE_GROUP, PAGE_PRIORITY))
        for query in SEARCHES:
            for reader in READERS:
                lines.write(_line("send_letter", {"to": reader, "query": query}, LETTER_GROUP, LETTER_PRIORITY))
    _run("client.py", "add", "--bulk", _shown(file))


def _line(function: str, args: Mapping[str, str], group: int, priority: int) -> str:
    task = {"task": f"{tasks.__name__}.{function}", "args": args, "group_id": group, "priority": priority}
    return json.dumps(task) + "\n"


def _run_workers() -> None:
    """Do what cron does each minute, without the minutes, until nothing waits."""
    waiting = _count_waiting()
    while waiting:
        _run("worker.py", "100", "3,5,6")
        before, waiting = waiting, _count_waiting()
        if waiting >= before:
            raise DemoError(f"{waiting} tasks wait, and the last run finished none: see {_shown(LOG_FILE)}")


def _count_waiting() -> int:
    """How many tasks are neither done nor fatal."""
    total: dict[str, int] = _status()["total"]
    return sum(rows for status, rows in total.items() if status not in ("done", "fatal"))


def _count_sent() -> int:
    """How many letters an SMTP server took."""
    return sum(group["done"] for group in _status()["groups"] if group["group_id"] == LETTER_GROUP)


def _status() -> dict[str, Any]:
    report: dict[str, Any] = json.loads(_run("client.py", "status", "--json", quiet=True))
    return report


def _show_what_was_built() -> None:
    """A search, and the beginning of a letter."""
    _run("-m", search.__name__, SHOWN_SEARCH)
    letters = _letters()
    if letters:
        print(f"$ head -n {LETTER_LINES} {_shown(letters[0])}")
        print(*letters[0].read_text(encoding="utf-8").splitlines()[:LETTER_LINES], sep="\n")


def _check_counts(modules: int) -> None:
    """Compare what is there with what was asked for."""
    counts = [
        ("documents", search.count_documents(), modules),
        ("pages", len(list((FOLDER / "pages").glob("*.html"))), modules),
        ("letters", _count_sent() if os.environ.get("DEMO_SMTP") else len(_letters()), len(SEARCHES) * len(READERS)),
    ]
    print()
    print("Built:", ", ".join(f"{found} {what} of {asked}" for what, found, asked in counts))
    if any(found != asked for _, found, asked in counts):
        raise DemoError(f"not everything was built: see {_shown(LOG_FILE)}")


def _letters() -> list[Path]:
    return sorted((FOLDER / "mail" / "new").glob("*"))


def _run(*command: str, quiet: bool = False) -> str:
    """Run one of the commands; its output is shown as it comes, or returned if quiet."""
    if not quiet:
        print(f"$ {_python()}", shlex.join(command).replace("'", '"'), flush=True)
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE if quiet else None, text=True, check=False
    )
    if done.returncode:
        raise DemoError(f"{shlex.join(command)} ended with exit code {done.returncode}")
    return done.stdout or ""


def _python() -> str:
    """The interpreter as one would type it."""
    own = ROOT / ".venv" / "bin" / "python"
    return _shown(own) if own.exists() and own.samefile(sys.executable) else "python3"


def _write_settings() -> Path:
    """The settings of these commands as a file for a shell, so that a visitor can go on with them."""
    file = FOLDER / "env"
    file.write_text("".join(f"export {key}={shlex.quote(value)}\n" for key, value in _settings().items()), "utf-8")
    return file


def _shown(path: Path) -> str:
    """A path as one would type it in the repository."""
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    raise SystemExit(main())
