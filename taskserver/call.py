"""One task called: its row made ready, the callable run, and whatever comes of it told in words.

Stands between the runner and foreign code: nothing that a row or a task does gets past it as an exception.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import CoroutineType, GeneratorType
from typing import Any, NamedTuple, TypeGuard, cast

from .arguments import check_size, read_arguments, read_item, write_arguments
from .callables import Callables, TaskCallable
from .error_text import describe, describe_failure, full_traceback, type_name
from .errors import BadTask, Fatal, InvalidTask, Retry, TaskServerError, is_delay
from .lifecycle import ClaimedTask, NextStage
from .nearest import nearest
from .stopping import TaskInterrupted
from .time_limit import TimeLimit

TELLING_SECONDS = 10.0
"""For so long an exception may take to give its text."""
NOT_RUN = (CoroutineType, GeneratorType)
"""What a function hands back whose body did not run."""


class WrongOutcomes(TypeError):
    """What a callable of several tasks returned tells not what became of each."""


class Call(NamedTuple):
    """A row whose callable is found and takes its arguments."""

    callable: TaskCallable
    args: list[Any]
    kwargs: dict[str, Any]
    next_stage: NextStage | None = None
    """What gets what it returns."""


def fetch_long(task: ClaimedTask, fetch_args: Callable[[ClaimedTask], str | None]) -> ClaimedTask:
    """The task with the arguments that its claim left in the database for being long. Raises BadTask."""
    check_size(task.args_bytes)
    if task.args is None and task.args_bytes:
        return task._replace(args=fetch_args(task))
    return task


def prepare(task: ClaimedTask, callables: Callables) -> Call:
    """Make a row ready to run whose long arguments were fetched.

    Raises BadTask where the row can never run, ModuleBroken where its module cannot be imported.
    """
    try:
        return _prepare(task, callables)
    except TaskServerError:
        raise
    except Exception as error:  # a listed module can hold objects as odd as any row
        raise BadTask(f"it cannot be made ready: {describe(error)}") from error


def _prepare(task: ClaimedTask, callables: Callables) -> Call:
    found = callables.find(task.task)
    takes_list = found.options.batch is not None
    args, kwargs = ([[read_item(task.args)]], {}) if takes_list else read_arguments(task.args)
    try:
        found.check_arguments(args, kwargs)
    except TypeError as error:
        hint = ": with @task(batch=…) it gets one list" if takes_list else _hint_at_keyword(found, kwargs)
        raise BadTask(f"{task.task}{found.parameters} does not take these arguments: {error}{hint}") from None
    return Call(found, args, kwargs, None if task.stages is None else next_stage_of(task))


def next_stage_of(task: ClaimedTask) -> NextStage | None:
    """What gets what this one returns. Raises BadTask."""
    from .stages import next_stage  # few tasks have any

    return next_stage(task)


def _hint_at_keyword(found: TaskCallable, kwargs: dict[str, Any]) -> str:
    names = list(found.signature.parameters)
    unknown = next((key for key in kwargs if key not in names), None)
    meant = nearest(unknown, names) if unknown is not None else None
    return f"; {unknown!r} is none of them, did you mean {meant!r}?" if meant else ""


class Returned(NamedTuple):
    """What is done with what a call returned that ended well."""

    next_stage: NextStage | None = None
    result: str | None = None
    """As JSON, where it is kept."""
    fault: str = ""
    """Why it is not kept, though it was to be."""


class Failure(NamedTuple):
    """What foreign code raised, in plain words: an exception's own code may do anything when it is asked."""

    error: BaseException
    """Not to be touched: only handed on, to foreign code."""
    text: str
    """For error_text."""
    full_text: str = ""
    """For the log: with the whole traceback."""
    delay_seconds: float | None = None
    """Chosen by a Retry."""

    def is_a(self, kind: type[BaseException]) -> bool:
        # isinstance would ask the exception for its class.
        return issubclass(type(self.error), kind)


def run_foreign(
    time_limit: TimeLimit, timeout_seconds: float, function: Callable[..., object], *args: Any
) -> tuple[Failure | None, Any]:
    """Run what is not our code; how it failed, or None and what it returned."""
    worker = os.getpid()
    raised: BaseException | None = None
    returned: object = None
    try:
        returned = time_limit.call(timeout_seconds, function, *args)
    except BaseException as error:  # sys.exit() and the like end the task, not the worker
        raised = error
    if os.getpid() != worker:
        # A process that the task forked came out of its call: it must not go on as a second worker.
        os._exit(_exit_code(raised))
    return (None, returned) if raised is None else (_told(raised, time_limit), None)


def _exit_code(raised: BaseException | None) -> int:
    """As Python itself would end."""
    if raised is None:
        return 0
    code = raised.code if type(raised) is SystemExit else 1
    return 0 if code is None else code if type(code) is int else 1


def _told(error: BaseException, time_limit: TimeLimit) -> Failure:
    try:
        return time_limit.call(TELLING_SECONDS, failure_of, error)
    except BaseException:  # it hangs, or ends the process, when it is asked
        return untold(error)


def failure_of(error: BaseException) -> Failure:
    """An exception in words."""
    kind = type(error)
    if issubclass(kind, BadTask):  # says all in its one line
        return Failure(error, describe(error))
    delay = _chosen_delay(error) if issubclass(kind, Retry) else None
    return Failure(error, describe_failure(error), full_traceback(error), delay)


def _chosen_delay(error: BaseException) -> float | None:
    """The seconds that a task chose by raising Retry; None where it did not, or put in something that is no delay."""
    try:
        delay: float | None = error.delay  # type: ignore[attr-defined]
    except BaseException:  # a class of the task's own
        return None
    return delay if is_delay(delay) else None


def run_call(call: Call) -> object:
    """Call it; what it returns. Raises whatever the callable raises."""
    returned = call.callable.call(*call.args, **call.kwargs)
    if type(returned) in NOT_RUN:
        returned.close()
        # No other try would help a stage, whose result is wanted.
        alone = WrongOutcomes if call.callable.options.batch else TypeError
        kind = alone if call.next_stage is None else Fatal
        raise kind(f"it returned a {type(returned).__name__}, which nobody runs: call plain functions")
    return returned


def run_alone(call: Call, keeps_result: bool) -> Returned:
    """Call it for one task, whose result is to be kept unless a stage that follows gets it.

    Raises whatever the callable raises, and Fatal where it returned what can be no arguments of the next stage.
    """
    return _returned(run_call(call), call.next_stage, keeps_result)


def _returned(value: object, following: NextStage | None, keeps_result: bool) -> Returned:
    if following is not None:
        return Returned(stage_after(value, following))
    return NOTHING if value is None or not keeps_result else _kept(value)


def _kept(value: object) -> Returned:
    """What was returned as JSON: the task is done, whatever comes of that."""
    from .reports import write_result  # few tasks return anything

    try:
        return Returned(result=write_result(value))
    except InvalidTask as error:
        return Returned(fault=str(error))
    except TaskInterrupted:
        return INTERRUPTED
    except BaseException as error:  # what has a class of its own may raise anything as it is written down, or hang
        return Returned(fault=f"raises {type_name(error)} as JSON")


NOTHING = Returned()
INTERRUPTED = Returned(fault="raises TaskInterrupted as JSON")
MOST_INTERRUPTED = 3
"""So many results of one call may take too long; the others are not kept then."""


def run_batch(call: Call, followings: Sequence[NextStage | None], keeps_results: bool) -> list[object] | None:
    """Call what takes several tasks; for each the exception with which it failed, else what it returned for it.

    None where all are done, and there is nothing more to tell. Raises whatever the callable raises, and TypeError where
    what it returned does not tell of each task.
    """
    returned = run_call(call)
    if returned is None and not any(followings):
        return None
    values = [None] * len(followings) if returned is None else _one_for_each(returned, len(followings))
    outcomes: list[object] = []
    interrupted = 0
    for value, following in zip(values, followings, strict=True):
        outcome = _outcome(value, following, keeps_results and interrupted < MOST_INTERRUPTED)
        interrupted += outcome is INTERRUPTED
        outcomes.append(outcome)
    return outcomes


def _one_for_each(returned: object, count: int) -> Sequence[object]:
    """The elements of what was returned, read past whatever a class of its own says that they are."""
    kind = type(returned)
    if not issubclass(kind, (list, tuple)):
        raise WrongOutcomes(f"it returned {kind.__name__}; {_ALLOWED}")
    values = [*(list if issubclass(kind, list) else tuple).__iter__(cast(Any, returned))]
    if len(values) != count:
        raise WrongOutcomes(f"it returned a list of {len(values)} for {count} tasks; {_ALLOWED}")
    return values


_ALLOWED = "allowed: None where all are done, or a list with an outcome for each task, in their order"


def _outcome(value: object, following: NextStage | None, keeps_result: bool) -> BaseException | Returned:
    if is_error(value):
        return value
    if issubclass(type(value), type) and issubclass(cast(type, value), BaseException):
        return cast("type[BaseException]", value)()  # as `raise` would
    try:
        return _returned(value, following, keeps_result)
    except Fatal as error:
        return error


def is_error(outcome: object) -> TypeGuard[BaseException]:
    """Whether it is an exception, without asking it."""
    return issubclass(type(outcome), BaseException)


def tell(errors: Sequence[BaseException], told: list[Failure]) -> None:
    """Put in words what was not yet, for as long as it may take; `told` shows how far this came."""
    until = time.monotonic() + TELLING_SECONDS
    for error in errors[len(told) :]:
        if time.monotonic() >= until:  # it was interrupted, which one of them may have kept to itself
            return
        told.append(failure_of(error))


def untold(error: BaseException) -> Failure:
    """An exception that does not say what it is."""
    return Failure(error, f"{type_name(error)}: (its text cannot be had)")


def stage_after(returned: object, following: NextStage) -> NextStage:
    """The next stage with what the one before it returned as arguments. Raises Fatal where that can be none."""
    try:
        return following._replace(args=write_arguments(returned, "what it returned"))
    except Exception as error:
        # What has a class of its own may raise anything as it is written down, and as its error is shown.
        told = error if isinstance(error, InvalidTask) else f"what it returned raises {type(error).__name__} as JSON"
        raise Fatal(
            f"{told}; the next stage, {following.task}, gets an object as keywords, an array as positions, None as no "
            "arguments"
        ) from None
