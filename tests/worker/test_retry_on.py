"""Which exceptions have a task tried again: `@task(retry_on=…, fatal_on=…)`, in each way to execute."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

from taskserver import DatabaseError, Fatal, Retry, Status
from taskserver.interrupts.stop import TaskInterrupted
from taskserver.model.task_options import Options, options_of, task
from taskserver.worker.call import failure_of, failure_of_raised
from tests.support.sites import Site

CODE = """
import time

import taskserver
from taskserver import Fatal, Retry, task

@task(retry_on=(ConnectionError, TimeoutError))
def alone(name): raise {"refused": ConnectionRefusedError, "wrong": ValueError}[name](name)

@task(retry_on=OSError, batch=10)
def together(items):
    return [{"refused": ConnectionRefusedError, "wrong": ValueError}.get(item["name"]) for item in items]

@task(fatal_on=KeyError, commit_every=10)
def shared(name): raise {"missing": KeyError, "wrong": ValueError}[name](name)

@task(fatal_on=LookupError, transactional=True)
async def transactional():
    taskserver.connection()
    raise KeyError("missing")

@task(retry_on=KeyError, timeout=0.1)
def hangs():
    while True:
        time.sleep(0.01)
"""


def given(**options: Any) -> Options:
    def work() -> None: ...

    task(**options)(work)
    assert isinstance(work, FunctionType)
    return options_of(work)


class Refused(ConnectionError): ...


class Both(Retry, Fatal): ...


@pytest.mark.parametrize(
    ("options", "error", "is_final"),
    [
        ({}, ValueError(), False),
        ({"retry_on": ConnectionError}, Refused(), False),
        ({"retry_on": ConnectionError}, OSError(), True),
        ({"retry_on": (KeyError, ConnectionError)}, Refused(), False),
        ({"retry_on": BaseException}, SystemExit(), False),
        ({"fatal_on": ConnectionError}, Refused(), True),
        ({"fatal_on": ConnectionError}, ValueError(), False),
        ({"retry_on": OSError, "fatal_on": ConnectionError}, Refused(), True),
        ({"retry_on": OSError, "fatal_on": ConnectionError}, OSError(), False),
        ({"retry_on": ConnectionError, "fatal_on": OSError}, Refused(), True),
        ({"retry_on": KeyError}, Retry(), False),
        ({"fatal_on": Exception}, Retry(), False),
        ({"retry_on": Exception}, Fatal(), True),
        ({}, Both(), True),
        ({"retry_on": KeyError}, TaskInterrupted("late"), False),
    ],
)
def test_an_exception_is_final_if_the_options_say_so(
    options: dict[str, Any], error: BaseException, is_final: bool
) -> None:
    assert failure_of_raised(error).with_options(given(**options)).is_final is is_final


def test_an_error_of_the_database_s_is_not_final() -> None:
    """As the database's, where it could not commit what the task wrote."""
    options = given(retry_on=KeyError, fatal_on=DatabaseError)
    assert not failure_of(DatabaseError("a deadlock")).with_options(options).is_final


RETRIED, FATAL = Status.ERROR, Status.FATAL


@pytest.mark.parametrize(
    ("name", "each", "statuses"),
    [
        ("alone", ["refused", "wrong"], [RETRIED, FATAL]),
        ("together", ["refused", "wrong", "well"], [RETRIED, FATAL, Status.DONE]),
        ("shared", ["missing", "wrong"], [FATAL, RETRIED]),
        ("transactional", [None], [FATAL]),
        ("hangs", [None], [RETRIED]),
    ],
)
def test_each_way_to_execute_retries_what_the_options_say(
    make_site: Any,
    site_dsn: str,
    caplog: pytest.LogCaptureFixture,
    name: str,
    each: list[str | None],
    statuses: list[Status],
) -> None:
    site: Site = make_site(site_dsn, mode="mark")
    for word in each:
        site.add_args(name, word and {"name": word})
    site.run(max_tasks=len(each))
    assert site.columns("status, attempts") == [(status, 1) for status in statuses]
    reason = "fatal_on names it" if name in ("shared", "transactional") else "retry_on does not name it"
    logged = [f" is fatal, as {reason}: " in message for message in caplog.messages]
    assert sum(logged) == statuses.count(FATAL)
