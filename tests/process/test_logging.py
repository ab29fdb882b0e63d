"""The log: what tasks log and print goes there, with their ids, whatever they and their modules do to `logging`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_BACKOFF": "fixed:100"}
TASKS = """
import logging
import sys
import threading
import time

from taskserver import Retry, task

def say(text="said"):
    print(text)

def half():
    print("half", end="")

def dots():
    for _ in range(3):
        print("." * 60_000, end="")

def fail(message="no luck"):
    raise ValueError(message)

def log(level="info", message="connected", name="shop.mail"):
    logging.getLogger(name).log(getattr(logging, level.upper()), message)

def wrong():
    logging.getLogger("shop").warning("%d of %d", 1)

def in_a_thread():
    thread = threading.Thread(target=log)
    thread.start()
    thread.join()

def leave_a_thread():
    def speak():
        while not (HERE / "go").exists():
            time.sleep(0.01)
        log("warning", "from the thread of before")
        (HERE / "spoken").touch()
    threading.Thread(target=speak).start()

def wait_for_the_thread():
    (HERE / "go").touch()
    while not (HERE / "spoken").exists():
        time.sleep(0.01)

def in_an_event_loop():
    import asyncio
    async def both():
        await asyncio.gather(asyncio.to_thread(log), asyncio.to_thread(print, "x"))
    asyncio.run(both())

def chained():
    try:
        fail('inner')
    except ValueError as error:
        raise KeyError('outer') from error

@task(timeout=0.2)
def long():
    time.sleep(60)

def later():
    raise Retry('not yet', delay=60)

def endless():
    raise ValueError('begins' + '\\x1b' * 5_000_000 + 'ends')

def with_a_stack():
    logging.warning('here', stack_info=True)
    logging.info('quiet')
"""


def log_of(queue: Queue) -> list[str]:
    """The lines of the log, without their dates and process ids."""
    lines = (queue.folder / "worker.log").read_text().splitlines()
    return [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \d+ ", "", line) for line in lines]


def said_of(queue: Queue) -> list[str]:
    """Of these, those that tasks printed or logged."""
    return [line for line in log_of(queue) if re.match(r"[A-Z]+ (task \d+ \S+.*, attempt \d+, )?\S+: ", line)]


def run(queue: Queue, *args: object, **env: str) -> str:
    """A run with a log; what it wrote on standard error."""
    ended = queue.worker(*args, **{"TASKSERVER_LOG": "worker.log", **env})
    assert (ended.returncode, ended.stdout) == (0, "")
    return ended.stderr


# ---- what tasks log


def test_what_a_task_logs_and_prints_goes_to_the_log_with_its_id_name_and_attempt(queue: Queue) -> None:
    queue.add("tasks.log")
    queue.add("tasks.log", '["error", "first\\nsecond"]')
    queue.sql("UPDATE jobs_queue SET attempts = 2 WHERE id = 2")
    queue.add("tasks.half")
    queue.add("tasks.say", '["whole"]')
    queue.add("tasks.wrong")
    queue.add("tasks.dots")
    assert run(queue) == ""
    *lines, first_dots, more_dots = said_of(queue)
    assert first_dots.startswith("INFO task 6 tasks.dots, attempt 1, printed: ...")
    assert len(first_dots) < 13_000
    assert more_dots.startswith("INFO task 6")
    assert lines == [
        "INFO task 1 tasks.log, attempt 1, shop.mail: connected",
        "ERROR task 2 tasks.log, attempt 3, shop.mail: first",
        "INFO task 3 tasks.half, attempt 1, printed: half",
        "INFO task 4 tasks.say, attempt 1, printed: whole",
        "WARNING task 5 tasks.wrong, attempt 1, shop: '%d of %d' (TypeError while it was formatted)",
    ]
    assert "    second" in log_of(queue)


@pytest.mark.parametrize(("level", "kept"), [("debug", 4), ("info", 3), ("warning", 2)], ids=str)
def test_the_log_has_what_is_at_least_of_its_level(queue: Queue, level: str, kept: int) -> None:
    for one in ("debug", "info", "warning", "error"):
        queue.add("tasks.log", json.dumps([one]))
    queue.add("tasks.say")
    assert run(queue, TASKSERVER_LOG_LEVEL=level) == ""
    said = [line for line in said_of(queue) if "shop.mail" in line]
    assert [line.partition(" ")[0] for line in said] == ["DEBUG", "INFO", "WARNING", "ERROR"][-kept:]
    assert any("printed: said" in line for line in log_of(queue)) == (level != "warning")
    assert any(line.startswith("INFO run ends") for line in log_of(queue)) == (level != "warning")


def test_threads_that_a_task_starts_log_with_its_id_and_one_that_it_left_behind_with_none(queue: Queue) -> None:
    for task in ("in_a_thread", "leave_a_thread", "wait_for_the_thread", "in_an_event_loop"):
        queue.add(f"tasks.{task}")
    assert run(queue) == ""
    first, second, *others = said_of(queue)
    assert first == "INFO task 1 tasks.in_a_thread, attempt 1, shop.mail: connected"
    assert second == "WARNING shop.mail: from the thread of before"
    by = "INFO task 4 tasks.in_an_event_loop, attempt 1, "
    assert {f"{by}shop.mail: connected", f"{by}printed: x"} <= set(others)


# ---- what modules do to `logging`

SET_UPS = {
    "a file": ("logging.basicConfig(filename=HERE / 'theirs')", "WARNING:shop.mail:w\n"),
    "standard output": ("logging.basicConfig(stream=sys.stdout, level='INFO')", ""),
    "force": ("logging.basicConfig(filename=HERE / 'theirs', force=True)", "WARNING:shop.mail:w\n"),
    "dictConfig": (
        "import logging.config\nlogging.config.dictConfig({'version': 1, 'handlers': {'h': {'class': "
        "'logging.FileHandler', 'filename': str(HERE / 'theirs')}}, 'root': {'handlers': ['h'], 'level': 'INFO'}})",
        "i\nw\n",
    ),
    "dictConfig of a logger that does not propagate": (
        "import logging.config\nlogging.config.dictConfig({'version': 1, 'handlers': {'h': {'class': "
        "'logging.FileHandler', 'filename': str(HERE / 'theirs')}}, "
        "'loggers': {'shop': {'handlers': ['h'], 'propagate': False}}})",
        "w\n",
    ),
    "shutdown": ("logging.shutdown()", ""),
    "a factory that names tasks as we do": (
        "made = logging.getLogRecordFactory()\n"
        "def make(*args, **named):\n    record = made(*args, **named)\n    record.task_id = 7\n    return record\n"
        "logging.setLogRecordFactory(make)",
        "",
    ),
}


@pytest.mark.parametrize(("set_up", "options"), [*((one, ()) for one in SET_UPS), ("dictConfig", ("--processes", 1))])
def test_a_module_that_sets_up_logging_has_its_own_and_the_log_has_each_record_once(
    queue: Queue, set_up: str, options: tuple[object, ...]
) -> None:
    code, theirs = SET_UPS[set_up]
    queue.define(f"\n{code}\n")
    queue.add("tasks.log", '["info", "i"]')
    queue.add("tasks.log", '["warning", "w"]')
    assert run(queue, 0, *options) == ""
    assert said_of(queue) == [
        "INFO task 1 tasks.log, attempt 1, shop.mail: i",
        "WARNING task 2 tasks.log, attempt 1, shop.mail: w",
    ]
    file = queue.folder / "theirs"
    assert (file.read_text() if file.exists() else "") == theirs


LEVELS = {
    "of the root": ("logging.basicConfig(level='WARNING')", ["w"]),
    "of a logger": ("logging.getLogger('shop').setLevel('CRITICAL')", []),
    "disabled": ("logging.disable()", []),
}


@pytest.mark.parametrize(("code", "kept"), LEVELS.values(), ids=LEVELS)
def test_a_level_that_a_module_sets_is_that_of_the_log_for_tasks_and_not_for_our_words(
    queue: Queue, code: str, kept: list[str]
) -> None:
    queue.define(f"\n{code}\n")
    queue.add("tasks.log", '["info", "i"]')
    queue.add("tasks.log", '["warning", "w"]')
    run(queue)
    assert [line.partition("shop.mail: ")[2] for line in said_of(queue)] == kept
    assert any("task 2 tasks.log is done" in line for line in log_of(queue))


SILENCERS = {
    "dictConfig": "logging.config.dictConfig({'version': 1})",
    "disable": "logging.disable()",
    "handlers": "OURS.handlers.clear(); OURS.setLevel(100); OURS.propagate = False; OURS.disabled = True",
    "filter": "OURS.addFilter(lambda record: 1 / 0); OURS.addHandler(logging.NullHandler())",
    "shutdown": "logging.shutdown()",
}


@pytest.mark.parametrize("silencer", SILENCERS)
def test_our_words_come_whatever_a_task_does_to_logging(queue: Queue, silencer: str) -> None:
    code = "\nimport logging.config\n\nOURS = logging.getLogger('taskserver')\n\ndef silence():\n    "
    queue.define(code + SILENCERS[silencer] + "\n")
    for task in ("silence", "fail", "say"):
        queue.add(f"tasks.{task}")
    assert run(queue, TASKSERVER_MAX_ATTEMPTS="1") == "task 2 tasks.fail is fatal: ValueError: no luck\n"
    text = (queue.folder / "worker.log").read_text()
    assert all(words in text for words in ("run begins", "task 2 tasks.fail is fatal", "printed: said", "run ends"))


# ---- without a log


def test_without_a_log_the_warnings_of_tasks_are_twenty_lines_of_standard_error(queue: Queue) -> None:
    queue.define(
        "def warn():\n    for n in range(25):\n        logging.warning('number %d\\nmore', n)\n    logging.info('x')\n"
    )
    queue.add("tasks.warn")
    ended = queue.worker()
    first, *_, last = ended.stderr.splitlines()
    assert first == "task 1 tasks.warn, attempt 1, root: number 0"
    assert last == "and 5 more warnings of tasks: set TASKSERVER_LOG to have them all in a file"
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (0, "", 21)


@pytest.mark.parametrize("program", ["worker", "client"])
def test_a_person_at_the_shell_sees_what_tasks_log(queue: Queue, program: str) -> None:
    queue.add("tasks.log")
    ended = queue.worker("--verbose") if program == "worker" else queue.client("run", "1")
    assert ended.returncode == 0
    assert "task 1 tasks.log, attempt 1, shop.mail: connected\n" in ended.stderr


# ---- failures


def test_a_failed_attempt_is_one_record_with_its_traceback_and_no_frame_of_ours(queue: Queue) -> None:
    (queue.folder / "broken.py").write_text("1 / 0\n")
    names = ("tasks.chained", "tasks.long", "broken.task", "tasks.later", "tasks.with_a_stack", "os.system")
    for task in (*names, "tasks.endless"):
        queue.add(task)
    stderr = run(queue, TASKSERVER_MODULES="tasks,broken")
    assert [line.partition(":")[0] for line in stderr.splitlines()] == [
        "module broken cannot be imported",
        "task 6 os.system is fatal",
    ]
    lines = log_of(queue)
    at = lines.index("ERROR task 1 tasks.chained failed, attempt 1 of 10: KeyError: 'outer'")
    assert lines[at + 1] == "    Traceback (most recent call last):"
    assert lines[at + 2].startswith(f'      File "{queue.folder}/tasks.py", line ')
    assert "    ValueError: inner" in lines
    assert any(line.startswith("INFO task 1 tasks.chained will be retried in 1") for line in lines)
    assert "    taskserver.interrupts.stop.TaskInterrupted: it ran for longer than its timeout of 0.2 s" in lines
    assert "    ZeroDivisionError: division by zero" in lines
    assert "INFO task 4 tasks.later failed, attempt 1 of 10: Retry: not yet" in lines
    at = lines.index("WARNING task 5 tasks.with_a_stack, attempt 1, root: here")
    assert not [line for line in lines[:at] if f"{queue.folder}/taskserver/" in line]
    assert lines[at + 1] == "    Stack (most recent call last):"
    quiet = lines.index("INFO task 5 tasks.with_a_stack, attempt 1, root: quiet")
    assert lines[quiet - 1].strip().startswith("logging.warning('here'")
    assert any(line.endswith("ends") for line in lines)
    assert sum(map(len, lines)) < 10**6
    ends = r"INFO run ends after \d+\.\d s, as no new task is left \(empty\): 1 done, 5 to be tried again, 1 fatal"
    assert re.fullmatch(ends, lines[-1])


def test_a_lost_task_is_only_in_the_log_until_it_is_fatal(queue: Queue) -> None:
    queue.add("tasks.fail")
    queue.sql("UPDATE jobs_queue SET status = 1, attempts = 1, claim = 1, started_at = created_at, due_at = created_at")
    assert run(queue, 1) == ""
    words = "ERROR task 1 tasks.fail failed, and will be retried: lost"
    assert [line for line in log_of(queue) if line.startswith(words)]


def test_as_json_each_line_of_the_log_is_an_object(queue: Queue) -> None:
    queue.add("tasks.say", '["a\\nb \\u001b[2J"]')
    queue.add("tasks.log", '["warning", "x\\ny"]')
    queue.add("tasks.fail", '["\\ud800"]')
    queue.add("os.system")
    stderr = run(queue, TASKSERVER_LOG_FORMAT="json")
    assert stderr.startswith("task 4 os.system is fatal: BadTask")
    found: list[dict[str, Any]] = [json.loads(line) for line in (queue.folder / "worker.log").read_text().splitlines()]
    begin, *_, end = found
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", begin.pop("time"))
    pid = begin.pop("pid")
    assert begin == {"level": "info", "logger": "taskserver", "message": "run begins: groups all"}
    assert end["message"].startswith("run ends")
    of_task = {number: [one for one in found if one.get("task_id") == number] for number in (1, 2, 3, 4)}
    assert [(one["logger"], one["message"], one["task"], one["attempt"]) for one in of_task[1][:2]] == [
        ("printed", "a", "tasks.say", 1),
        ("printed", "b \x1b[2J", "tasks.say", 1),
    ]
    logged = of_task[2][0]
    assert (logged["logger"], logged["level"], logged["message"]) == ("shop.mail", "warning", "x\ny")
    failed, retried = of_task[3]
    assert (failed["level"], failed["attempt"], failed["pid"]) == ("error", 1, pid)
    assert failed["error"].startswith("ValueError: ")
    assert failed["traceback"].startswith("Traceback (most recent call last):\n")
    assert retried["message"].startswith("task 3 tasks.fail will be retried in ")
    (bad,) = of_task[4]
    assert (bad["level"], bad["is_fatal"], bad["attempt"], "traceback" in bad) == ("error", True, 0, False)
