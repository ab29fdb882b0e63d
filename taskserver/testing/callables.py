"""The callables of a run in a test: those of production, and what a test put in the place of one.

`monkeypatch.setattr(tasks, "greet", …)` and `mock.patch("tasks.greet")` leave a value that production refuses, as it
is not defined in the module. It runs here where the module's own source defines a function of that name, so that a name
which the module imports stays refused. So does what the module's own source put there: a plain function in a class, a
generator function, and the value of a decorator that did not use functools.wraps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import iscoroutinefunction
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

from ..errors import BadTask, InvalidTask, TaskServerError
from ..interrupts.coroutines import as_plain
from ..model.field_checks import name_of
from ..model.functions import GivenFunction, Parameters
from ..model.task_options import NO_OPTIONS, options_of
from ..settings.load import Settings
from ..worker.callables import Callables, TaskCallable


class Calls:
    """The calls of a run."""

    def __init__(self, keeps_frames: bool) -> None:
        """`keeps_frames`: whether a debugger is to see the variables of a call that failed; its row has no traceback.

        A worker lets go of them, as they may hold a connection.
        """
        self.names: list[str] = []
        """The callables, in the order in which they were called."""
        self._keeps_frames = keeps_frames
        self._tracebacks: list[tuple[BaseException, TracebackType | None]] = []

    def recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The callable, whose calls are recorded."""

        def recorded(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            self.names.append(name)
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


class PatchableCallables(Callables):
    """The callables of the listed modules, where tests may have replaced some."""

    def __init__(self, settings: Settings, calls: Calls) -> None:
        super().__init__(settings.modules, settings.folder)
        self._calls = calls
        # No module elsewhere is listed; of those below, `module_of` refuses some.
        self._roots = tuple(f"{name.removesuffix('.*')}." for name in settings.modules)

    def look_up(self, name: str) -> TaskCallable:
        """What a worker finds, or what a test put in its place; its calls are recorded."""
        try:
            found = super().look_up(name)
        except BadTask:
            replaced = self._replacement(name)
            if replaced is None:
                raise
            found = replaced
        return found._replace(call=self._calls.recorded(name, found.call))

    def given(self, function: Any) -> GivenFunction | None:
        """What a test put into a listed module, where a producer gives that itself; None where it is nothing such."""
        modules = [module for module in sys.modules if f"{module}.".startswith(self._roots)]
        names = [name for module in modules for name in _names_in(sys.modules[module], function)]
        if any(_has_name(function, name) for name in names):
            return None  # it stands in its own place, too
        for name in names:
            with suppress(TaskServerError):
                if found := self._replacement(name):
                    return GivenFunction(name, found.options, found.parameters)
        return None

    def _replacement(self, name: str) -> TaskCallable | None:
        """What a test put in the place of a callable; None where it did not."""
        module, path = self.module_of(name)
        exported = getattr(module, "__all__", path)
        source = self._source_of(module, path)
        if source is None or path[0] not in exported:
            return None
        value: Any = module
        for part in path:
            value = getattr(value, part, None)
        if not _is_replacement(value) or _is_of_module(value, source, module, path):
            return None
        options = options_of(value) if isinstance(value, FunctionType) else NO_OPTIONS
        call = as_plain(value) if _is_async(value) else value
        return TaskCallable(call, options, _parameters_of(value))

    def _source_of(self, module: ModuleType, path: tuple[str, ...]) -> CodeType | None:
        """The code of the function that the source has at a path: for an inherited method that of a base class."""
        for owner in _classes_of(module).get(path[0], object).__mro__ if len(path) > 1 else ():
            # A class that inherits the method has one of its own while a test replaces it there.
            is_listed = path[1] in vars(owner) and f"{owner.__module__}.".startswith(self._roots)
            if is_listed and (code := _code_at(sys.modules[owner.__module__], (owner.__name__, path[1]))):
                return code
        return _code_at(module, path)


def _names_in(module: ModuleType, function: Any) -> list[str]:
    """The names under which a module, or a class of it, holds a function."""
    names = [name for name, value in vars(module).items() if value is function]
    for class_name, holder in _classes_of(module).items():
        # A class makes the method anew whenever it is asked for one.
        inner = function.__func__ if type(function) is MethodType and function.__self__ is holder else function
        for name, value in vars(holder).items():
            if value is function or (type(value) in (staticmethod, classmethod) and value.__func__ is inner):
                names.append(f"{class_name}.{name}")
    return [f"{module.__name__}.{name}" for name in names]


def _classes_of(module: ModuleType) -> dict[str, type]:
    """The classes that a module defines; a mock is none, whatever it says of itself."""
    values = vars(module).items()
    classes = {name: value for name, value in values if issubclass(type(value), type)}
    return {name: value for name, value in classes.items() if value.__module__ == module.__name__}


def _parameters_of(value: Callable[..., Any]) -> Parameters:
    # A mock records that it is asked for its signature. One with a spec refuses wrong arguments by itself.
    return Parameters((lambda *args, **kwargs: None) if _is_mock(value) else value)


def _has_name(function: Any, name: str) -> bool:
    try:
        return name_of(function) == name
    except InvalidTask:
        return False


def _code_at(module: ModuleType, path: tuple[str, ...]) -> CodeType | None:
    """The code of the function that the module's source defines at a path; None where there is none."""
    get_code = getattr(getattr(module.__spec__, "loader", None), "get_code", None)
    code = get_code(module.__name__) if get_code else None
    for part in path:
        inside = [one for one in (code.co_consts if code else ()) if isinstance(one, CodeType) and one.co_name == part]
        code = inside[-1] if inside else None
    return code


def _is_replacement(value: object) -> bool:
    kinds = (FunctionType, MethodType, BuiltinFunctionType)
    return callable(value) and (_is_mock(value) or isinstance(value, kinds))


def _is_mock(value: object, kind: str = "NonCallableMock") -> bool:
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, getattr(mock, kind))


def _is_async(value: object) -> bool:
    # The flags of a function that a mock with a spec shows are mocks, too, and so each of them seems to be set.
    return _is_mock(value, "AsyncMock") if _is_mock(value) else iscoroutinefunction(value)


def _is_of_module(value: Any, source: CodeType, module: ModuleType, path: tuple[str, ...]) -> bool:
    """Whether the module itself put this there: its own function, or what a decorator made of that.

    The decorator is one of the module, or of what the module uses.
    """
    if _is_mock(value):
        return False
    if _is_code_of(value, source):
        return bool(vars(module)[path[0]].__module__ == module.__name__)  # a test's class may inherit it
    if not any(_is_code_of(function, source) for function in _functions_in(value)):
        return False
    others = [other for other in vars(module).values() if other is not value]
    used = {other.__name__ if isinstance(other, ModuleType) else getattr(other, "__module__", None) for other in others}
    return value.__module__ in used | {module.__name__}


def _is_code_of(function: Any, source: CodeType) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and (code.co_name, code.co_firstlineno) == (source.co_name, source.co_firstlineno)


def _functions_in(value: object) -> list[FunctionType]:
    """The functions that a function may call: those in its closure, and in theirs, for a method those of its object."""
    found, left = list[FunctionType](), [value]
    while left:
        one = left.pop()
        if type(one) is MethodType:
            left.append(one.__func__)
            if not isinstance(one.__self__, type):
                left += getattr(one.__self__, "__dict__", {}).values()
        elif type(one) is FunctionType and one not in found:
            found.append(one)
            left += map(_content, one.__closure__ or ())
    return found


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None
