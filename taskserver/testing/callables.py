"""The callables of a run in a test: those of production, and what a test put in the place of one.

`monkeypatch.setattr(tasks, "greet", …)` and `mock.patch("tasks.greet")` leave a value that production refuses, as it is
not defined in the module. It runs here if it is a mock, or a function of the test.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import iscoroutinefunction
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

from ..errors import BadTask, InvalidTask, TaskServerError
from ..interrupts.coroutines import as_plain
from ..model.functions import GivenFunction, Parameters
from ..model.names import name_of
from ..model.task_options import NO_OPTIONS, options_of
from ..settings.load import Settings
from ..worker.callables import Callables, TaskCallable


class PatchableCallables(Callables):
    """The callables of the listed modules, where tests may have replaced some. Their calls are recorded."""

    def __init__(self, settings: Settings, keeps_frames: bool) -> None:
        """`keeps_frames`: whether a debugger is to see the variables of a call that failed; its row has no traceback.

        A worker lets go of them, as they may hold a connection.
        """
        super().__init__(settings.modules, settings.folder)
        self.called: list[str] = []
        """The callables, in the order in which they were called."""
        self._keeps_frames = keeps_frames
        self._roots = tuple(f"{name.removesuffix('.*')}." for name in settings.modules)
        self._tracebacks: list[tuple[BaseException, TracebackType | None]] = []

    # ---- calls

    def look_up(self, name: str) -> TaskCallable:
        try:
            found = super().look_up(name)
        except BadTask:
            replaced = self._replacement(name)
            if replaced is None:
                raise
            found = replaced
        return found._replace(call=self._recorded(name, found.call))

    def _recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            self.called.append(name)
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                if not self._keeps_frames:
                    raise
                self._tracebacks.append((error, error.__traceback__))
                raise error.with_traceback(None)  # noqa: B904  # it is the same one

        return recorded

    def give_back_frames(self) -> None:
        """Give the errors their tracebacks, once the run has ended."""
        for error, trace in self._tracebacks:
            error.__traceback__ = trace

    # ---- what a test put there

    def given(self, function: Any) -> GivenFunction | None:
        """What a test put into a listed module, where a producer gives that itself; None if it did not."""
        modules = [module for name, module in list(sys.modules.items()) if f"{name}.".startswith(self._roots)]
        names = [name for module in modules for name in _names_in(module, function)]
        with suppress(InvalidTask):
            if name_of(function) in names:
                return None  # it stands in its own place, too
        for name in names:
            with suppress(TaskServerError):
                if found := self._replacement(name):
                    return GivenFunction(name, found.options, found.parameters)
        return None

    def _replacement(self, name: str) -> TaskCallable | None:
        """What a test put in the place of a callable; None if it did not."""
        from unittest.mock import AsyncMock

        module, path = self.module_of(name)
        value: Any = module
        for part in path:
            value = getattr(value, part, None)
        if path[0] not in getattr(module, "__all__", path) or not self._is_of_test(value, module):
            return None
        options = options_of(value) if isinstance(value, FunctionType) else NO_OPTIONS
        mock = _mock_of(value)
        # A mock records that it is asked for its signature. One with a spec refuses wrong arguments by itself.
        parameters = Parameters(value if mock is None else lambda *args, **kwargs: None)
        is_async = iscoroutinefunction(value) if mock is None else isinstance(mock, AsyncMock)
        return TaskCallable(as_plain(value) if is_async else value, options, parameters)

    def _is_of_test(self, value: Any, module: ModuleType) -> bool:
        """Whether a value is a mock, or a function that neither a listed module defines nor a library.

        Nor a module from which the listed one takes something else, as the decorator that made this.
        """
        if _mock_of(value) is not None:
            return callable(value)
        if type(value) is BuiltinFunctionType:
            return not isinstance(value.__self__, ModuleType)  # a method, as `letters.append`
        function = value.__func__ if type(value) is MethodType else value
        if type(function) is not FunctionType:
            return False
        others = [other for other in vars(module).values() if other is not value]
        used = {one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None) for one in others}
        home = function.__module__ or ""
        is_library = home.partition(".")[0] in sys.stdlib_module_names or "-packages" in function.__code__.co_filename
        return not (is_library or home in used or f"{home}.".startswith(self._roots))


def _mock_of(value: object) -> object:
    """The mock that a value is, or with autospec has; None for anything else."""
    from unittest.mock import NonCallableMock

    found = vars(value).get("mock") if type(value) is FunctionType else value
    return found if isinstance(found, NonCallableMock) else None


def _names_in(module: ModuleType, function: Any) -> list[str]:
    """The names under which a module, or a class of it, holds a function."""
    names = [name for name, value in vars(module).items() if value is function]
    for class_name, holder in list(vars(module).items()):
        if not issubclass(type(holder), type) or holder.__module__ != module.__name__:
            continue
        # A class makes the method again whenever it is asked for one.
        inner = function.__func__ if type(function) is MethodType and function.__self__ is holder else function
        for name, value in vars(holder).items():
            if value is function or (type(value) in (staticmethod, classmethod) and value.__func__ is inner):
                names.append(f"{class_name}.{name}")
    return [f"{module.__name__}.{name}" for name in names]
