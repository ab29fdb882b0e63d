"""Calls a task's callable, and describes its return value or exception.

Stands between a run and user code: no exception of a row or a task gets past it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from types import AsyncGeneratorType, GeneratorType
from typing import Any, NamedTuple, cast

from ..errors import BadTask, Fatal, InvalidTask, Later, Retry, is_delay
from ..interrupts.alarm import Alarm, end_child
from ..messages.classes import class_name, is_kind
from ..messages.error_text import NO_TEXT, describe, describe_failure, drop_our_frames, full_traceback
from ..model.arguments import write_arguments
from ..model.attempt import NextStage
from ..model.task_options import Options
from .preparing import Call

MAX_SIDE_CALL_SECONDS = 10.0
"""How long user code other than a task may run; less if the lease is short, as no lease is renewed meanwhile."""


class WrongOutcomes(TypeError):
    """The return value of a batch has not one outcome for each task."""


class Returned(NamedTuple):
    """The return value of a successful call: the task's result, or the arguments of its next stage."""

    next_stage: NextStage | None = None
    result: str | None = None
    """The result as JSON, if it is kept."""
    fault: str = ""
    """Why the result could not be kept."""


class Failure(NamedTuple):
    """An exception of user code as text, because its own methods may do anything."""

    error: BaseException | None
    """Never used here, only passed on to user code. None if there was none."""
    text: str
    """For the column error_text."""
    full_text: str = ""
    """For the log, with the whole traceback."""
    delay_seconds: float | None = None
    """The delay of a Retry, else None."""
    later_seconds: float | None = None
    """The delay of a Later, else None."""
    is_retry: bool = False
    """Whether the task raised Retry."""
    is_raised: bool = False
    """Whether user code raised it, or returned it as an outcome; else it is our own."""
    was_cancelled: bool = False
    """Whether a person cancelled a task of the call, which interrupted it."""
    why_fatal: str = ""
    """Why an option forbids a retry; empty if none does."""

    def is_a(self, *kinds: type[BaseException]) -> bool:
        """Whether the exception is of one of these types, as `except` would see it."""
        # isinstance and issubclass may run code of the exception's class or metaclass.
        return is_kind(type(self.error), kinds)

    @property
    def is_final(self) -> bool:
        """Whether no retry follows, even below the limit of attempts."""
        return self.is_a(Fatal) or self.why_fatal != ""

    def with_options(self, options: Options) -> Failure:
        """The failure, fatal if the options of the callable forbid a retry."""
        if not self.is_raised:  # e.g. a database error at the commit: not the task's own, and may be temporary
            return self
        return self._replace(why_fatal=options.why_fatal(cast("type[BaseException]", type(self.error))))


def run_user_code(
    alarm: Alarm, timeout_seconds: float, function: Callable[..., object], *args: Any
) -> tuple[Failure | None, Any]:
    """Run user code. Returns its failure, or None and its return value."""
    worker = os.getpid()
    try:
        returned = alarm.call(timeout_seconds, function, *args)
    except BaseException as error:  # sys.exit() and the like end the task, not the worker
        end_child(worker, error)
        drop_our_frames(error)
        return _described(error, alarm), None
    end_child(worker, None)
    return None, returned


def _described(error: BaseException, alarm: Alarm) -> Failure:
    """The exception as text; only its type if that takes too long."""
    try:
        return alarm.call(side_call_seconds(alarm), failure_of_raised, error)
    except BaseException:  # its own methods hang, or end the process
        return undescribed(error)


def side_call_seconds(alarm: Alarm) -> float:
    """How long user code other than a task may run."""
    return min(MAX_SIDE_CALL_SECONDS, alarm.again_after_seconds)


def failure_of(error: BaseException) -> Failure:
    """The exception as text; its own methods may hang, or end the process."""
    kind = type(error)
    if issubclass(kind, BadTask):  # says all in its one line
        return Failure(error, describe(error))
    if issubclass(kind, Later):
        message = describe(error).partition(": ")[2]
        return Failure(error, message, later_seconds=_chosen_delay(error) or 0.0)
    is_retry = issubclass(kind, Retry)
    delay = _chosen_delay(error) if is_retry else None
    return Failure(error, describe_failure(error), full_traceback(error), delay, is_retry=is_retry)


def failure_of_raised(error: BaseException) -> Failure:
    """The same for an exception that user code raised, or returned as an outcome."""
    return failure_of(error)._replace(is_raised=True)


def undescribed(error: BaseException) -> Failure:
    """A failure whose exception has no usable text."""
    return Failure(error, f"{class_name(type(error))}: {NO_TEXT}", is_raised=True)


def _chosen_delay(error: BaseException) -> float | None:
    """The seconds that a Retry or Later asks for; None if it has no valid delay."""
    try:
        delay: float | None = error.delay  # type: ignore[attr-defined]
    except BaseException:  # a subclass of the task's own
        return None
    return delay if is_delay(delay) else None


def run_call(call: Call) -> object:
    """Call the callable, and return its value. Raises what it raises."""
    returned: object = call.callable.call(*call.args, **call.kwargs)
    if returned is not None and _has_not_run(returned):
        # A retry would not help a stage, whose return value is needed.
        alone = WrongOutcomes if call.callable.options.batch else TypeError
        kind = alone if call.next_stage is None else Fatal
        raise kind(_not_run(returned))
    return returned


def _has_not_run(returned: object) -> bool:
    """Whether a return value is a coroutine or generator that nobody runs: then the work is not done."""
    kind = type(returned)
    if issubclass(kind, Coroutine) or kind is GeneratorType:
        cast(Any, returned).close()  # else it warns that it was never awaited
        return True
    return kind is AsyncGeneratorType


def _not_run(returned: object) -> str:
    kind = type(returned).__name__
    return f"it returned a value of type {kind}, which nobody runs: call plain functions, or those of async def"


def run_alone(call: Call, keeps_result: bool) -> Returned:
    """Call the callable for one task. `keeps_result`: whether its result is kept if no stage follows.

    Raises what the callable raises, and Fatal if the next stage can't take the return value.
    """
    return returned_as(run_call(call), call.next_stage, keeps_result)


def returned_as(value: object, following: NextStage | None, keeps_result: bool) -> Returned:
    """A return value as the task's result, or as the next stage's arguments. Raises Fatal if it can't be those."""
    if following is not None:
        return Returned(stage_after(value, following))
    return NOTHING if value is None or not keeps_result else _kept(value)


def _kept(value: object) -> Returned:
    """The return value as JSON; the task is done even if it cannot be kept."""
    from ..model.results import write_result  # few tasks return anything

    try:
        return Returned(result=write_result(value))
    except InvalidTask as error:
        return Returned(fault=str(error))
    except BaseException as error:  # an object of the task's own class may raise anything, or hang
        return Returned(fault=f"what it returned raises {class_name(type(error))} as JSON")


NOTHING = Returned()


def run_batch(
    call: Call, followings: Sequence[NextStage | None], keeps_results: bool
) -> list[Failure | Returned] | None:
    """Call a callable that takes several tasks. Returns a Failure or a Returned for each task.

    `followings` are the next stages, one for each task. None means that all tasks are done without a result. Raises
    what the callable raises, and WrongOutcomes if there is not one outcome for each task.
    """
    returned = run_call(call)
    if returned is None and not any(followings):
        return None
    values = [None] * len(followings) if returned is None else _one_for_each(returned, len(followings))
    return [_outcome(value, following, keeps_results) for value, following in zip(values, followings, strict=True)]


def _one_for_each(returned: object, count: int) -> Sequence[object]:
    """The elements of a returned list, without calling methods of its class. Raises WrongOutcomes."""
    kind = type(returned)
    if not issubclass(kind, (list, tuple)):
        raise WrongOutcomes(f"it returned {kind.__name__}; {_ALLOWED}")
    values = [*(list if issubclass(kind, list) else tuple).__iter__(cast(Any, returned))]
    if len(values) != count:
        raise WrongOutcomes(f"it returned a list of {len(values)} for {count} tasks; {_ALLOWED}")
    return values


_ALLOWED = "allowed: None where all are done, or a list with an outcome for each task, in their order"


def _outcome(value: object, following: NextStage | None, keeps_result: bool) -> Failure | Returned:
    if issubclass(type(value), type) and issubclass(cast(type, value), BaseException):
        value = cast("type[BaseException]", value)()  # as `raise` does
    if issubclass(type(value), BaseException):
        return failure_of_raised(cast(BaseException, value))
    if value is not None and _has_not_run(value):
        return failure_of_raised((TypeError if following is None else Fatal)(_not_run(value)))
    try:
        return returned_as(value, following, keeps_result)
    except Fatal as error:
        return failure_of_raised(error)


def stage_after(returned: object, following: NextStage) -> NextStage:
    """The next stage with the return value of this one as arguments. Raises Fatal if it cannot take them."""
    try:
        return following._replace(args=write_arguments(returned, "what it returned"))
    except Exception as error:
        # An object of the task's own class may raise anything, and str() of that error too.
        fault = error if isinstance(error, InvalidTask) else f"what it returned raises {type(error).__name__} as JSON"
        raise Fatal(
            f"{fault}; the next stage, {following.task}, gets an object as keywords, an array as positions, None as no "
            "arguments"
        ) from None
