"""The callables of a run in a test: those of production, and replacements by the test.

After `monkeypatch.setattr(tasks, "greet", …)` or `mock.patch("tasks.greet")` production would refuse the value, as it
is not defined in the module. Here it runs if it is a mock, or a function of the test.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from inspect import iscoroutinefunction
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from ..errors import BadTask, TaskServerError
from ..interrupts.coroutines import as_plain
from ..model.functions import GivenFunction, Parameters
from ..model.task_options import NO_OPTIONS, options_of
from ..settings.load import Settings
from ..worker.callables import Callables, TaskCallable


class PatchableCallables(Callables):
    """The callables of the listed modules, some of them replaced by tests."""

    def __init__(self, settings: Settings, called: list[str]) -> None:
        """Names are added to `called` in the order of the calls."""
        super().__init__(settings.modules, settings.folder)
        self._called = called
        self._roots = tuple(f"{name.removesuffix('.*')}." for name in settings.modules)

    def look_up(self, name: str) -> TaskCallable:
        try:
            found = super().look_up(name)
        except BadTask:
            replaced = self._replacement(name)
            if replaced is None:
                raise
            found = replaced

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._called.append(name)
            return found.call(*args, **kwargs)

        return found._replace(call=recorded)

    def given(self, function: Any) -> GivenFunction | None:
        """A test's replacement in a listed module that a producer adds itself; None if it is not one."""
        modules = [module for name, module in list(sys.modules.items()) if f"{name}.".startswith(self._roots)]
        for name in (name for module in modules for name in _names_in(module, function)):
            with suppress(TaskServerError):
                if found := self._replacement(name):
                    return GivenFunction(name, found.options, found.parameters)
        return None

    def _replacement(self, name: str) -> TaskCallable | None:
        """A test's replacement of a callable; None if there is none."""
        from unittest.mock import AsyncMock

        module, path = self.module_of(name)
        value: Any = module
        for part in path:
            value = getattr(value, part, None)
        mock = _mock_of(value)
        is_of_test = callable(value) if mock is not None else self._is_of_test(value, module)
        if not is_of_test or path[0] not in getattr(module, "__all__", path):
            return None
        options = options_of(value) if isinstance(value, FunctionType) else NO_OPTIONS
        # A mock would record the inspection of its signature. With a spec it checks arguments by itself.
        parameters = Parameters(value if mock is None else lambda *args, **kwargs: None)
        is_async = iscoroutinefunction(value) if mock is None else isinstance(mock, AsyncMock)
        return TaskCallable(as_plain(value) if is_async else value, options, parameters)

    def _is_of_test(self, value: Any, module: ModuleType) -> bool:
        """Whether a function belongs to the test: not to a library, nor to a listed module.

        Nor to a module that the listed one uses, for example for the decorator that made this function.
        """
        if type(value) is BuiltinFunctionType:
            return not isinstance(value.__self__, ModuleType)  # a method such as `letters.append`
        function = value.__func__ if type(value) is MethodType else value
        if type(function) is not FunctionType:
            return False
        others = [other for other in vars(module).values() if other is not value]
        used = {one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None) for one in others}
        home = function.__module__ or ""
        is_library = home.partition(".")[0] in sys.stdlib_module_names or "-packages" in function.__code__.co_filename
        return not (is_library or home in used or f"{home}.".startswith(self._roots))


def _mock_of(value: object) -> object:
    """The value if it is a mock, or its mock with autospec; else None."""
    from unittest.mock import NonCallableMock

    found = vars(value).get("mock") if type(value) is FunctionType else value
    return found if isinstance(found, NonCallableMock) else None


def _names_in(module: ModuleType, function: Any) -> Iterator[str]:
    """The names of a function in a module and its classes."""
    values = list(vars(module).values())
    classes = [one for one in values if issubclass(type(one), type) and one.__module__ == module.__name__]
    for holder in (module, *classes):
        # A class creates a new method object at each access.
        inner = function.__func__ if type(function) is MethodType and function.__self__ is holder else function
        place = module.__name__ if holder is module else f"{module.__name__}.{holder.__name__}"
        for name, value in list(vars(holder).items()):
            if value is function or (type(value) in (staticmethod, classmethod) and value.__func__ is inner):
                yield f"{place}.{name}"
