"""What the workers of a soak run do: the tasks of chaos, and those of web pages."""

from __future__ import annotations

from tests.faults.chaos import tasks

VERSION = "VERSION = 'first'"
"""The line of tasks.py that an upload changes; it also brings `new_page`."""
TICK = -1_000_000
"""The number of the periodic task."""
TASKS = f'''{tasks.TASKS}
{VERSION}
# Which line of the crontab this process is of.
record("worker", os.environ["SOAK_LINE"], "")


def page(number, kind):
    """Prints enough to rotate the log."""
    print("a line of a report\\n" * 200)
    play(number, kind)


def step(number, numbers, kind):
    """A stage of a pipeline: the first of the numbers is its own, `number` that of the last stage."""
    (page if len(numbers) == 1 else play)(numbers[0], kind)
    return {{"number": number, "numbers": numbers[1:], "kind": kind}}


def tick(number):
    with noted(number, VERSION):
        pass
'''
UPLOADED = f"{TASKS.replace(VERSION, VERSION.replace('first', 'second'))}\nnew_page = page\n"
