"""What `make demo` runs: the whole system at work, on SQLite, with the standard library of this Python as its input.

It does what a user would, with the real commands and a queue of its own under var/demo/. It ends with exit code 1 if
what was built isn't all that was asked for.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "var" / "demo"
SETTINGS = """\
TASKSERVER_DSN=sqlite:///var/demo/taskserver.db
TASKSERVER_MODE=mark  # what is done stays in the table, for `client.py status`
TASKSERVER_MODULES=examples.demo.tasks
TASKSERVER_MAX_ATTEMPTS=1  # a task that fails here is a fault, and seen at once
TASKSERVER_LOG=var/demo/taskserver.log
"""
ENV = ("--env", "var/demo/settings.env")
# Tests, bundled programs and hundreds of character tables: not what a reader searches for.
LEFT_OUT = {"test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip", "encodings", "__phello__"}
LEFT_OUT |= {"site-packages", "dist-packages", "__pycache__"}
READERS = ("ada@example.org", "grace@example.org", "linus@example.org")
SEARCHES = ("shared memory", "regular expression", "temporary file", "event loop", "time zone", "compress")


def main() -> int:
    began = time.monotonic()
    sys.path.insert(0, str(ROOT))
    for name in [name for name in os.environ if name.startswith("TASKSERVER_")]:
        del os.environ[name]  # they would win over the demo's own
    os.environ["PYTHONIOENCODING"] = ":backslashreplace"  # what a terminal can't show is no error
    from examples.demo.tasks import LIBRARY

    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "pages").mkdir(parents=True)
    (ROOT / ENV[1]).write_text(SETTINGS)
    paths = sorted(path.relative_to(LIBRARY) for path in LIBRARY.rglob("*.py"))
    modules = [path.as_posix() for path in paths if not LEFT_OUT.intersection(path.parts)]
    print(f"{len(modules)} modules of Python's own library: each gets indexed and a page; then letters")

    run("client.py", *ENV, "init")
    # One queue, and yet in this order: the smaller priority runs sooner.
    tasks = [line("index_module", 6, 0, path=module) for module in modules]
    tasks += [line("render_page", 5, 10, path=module) for module in modules]
    tasks += [line("send_letter", 3, 20, to=reader, query=query) for query in SEARCHES for reader in READERS]
    (FOLDER / "tasks.jsonl").write_text("".join(tasks))
    run("client.py", *ENV, "add", "--bulk", "var/demo/tasks.jsonl")
    for _ in range(0, len(tasks), 100):  # as cron does each minute, without the minutes
        run("worker.py", *ENV, "100", "3,5,6")
    run("client.py", *ENV, "status")
    run("-m", "examples.demo.tasks", SEARCHES[0])

    status = json.loads(subprocess.check_output([sys.executable, "client.py", *ENV, "status", "--json"], cwd=ROOT))
    done, pages = status["total"]["done"], len(list((FOLDER / "pages").glob("*.html")))
    print(f"\nBuilt: {done} tasks done of {len(tasks)}, {pages} pages of {len(modules)}")
    print(f"To look around: {sys.executable} client.py {' '.join(ENV)} list, var/demo/pages, var/demo/mail/new")
    print(f"It took {time.monotonic() - began:.0f} s. examples/demo/tasks.py did the work, var/demo holds it.")
    return 0 if (done, pages) == (len(tasks), len(modules)) else 1


def line(function: str, group: int, priority: int, **args: str) -> str:
    task = {"task": f"examples.demo.tasks.{function}", "args": args, "group_id": group, "priority": priority}
    return json.dumps(task) + "\n"


def run(*command: str) -> None:
    """Run one of the commands, and show it."""
    print(f"$ python3 {shlex.join(command)}", flush=True)
    if code := subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode:
        sys.exit(f"demo: {shlex.join(command)} ended with exit code {code}: see var/demo/taskserver.log")


if __name__ == "__main__":
    sys.exit(main())
