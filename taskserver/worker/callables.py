"""Finds the function that the name in a row may call, and nothing else.

A name is looked up only in the dictionaries of the listed modules, without getattr. So no property and no module's
__getattr__ runs, and only listed modules are imported.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from inspect import CO_COROUTINE
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..errors import BadTask, InvalidTask, ModuleBroken
from ..messages.classes import class_name, mro_of, namespace_of, namespace_of_module, qualified_class_name
from ..messages.error_text import describe
from ..messages.import_errors import why_not_imported
from ..messages.text import nearest, shown
from ..model.functions import Parameters, why_not_runnable
from ..model.names import IN_A_CLASS, NAMELESS, PLAIN_METHOD, WITHOUT_WRAPS, task_of_other_queue, why_private
from ..model.task import MAX_TASK_LENGTH
from ..model.task_options import Options, options_of

if TYPE_CHECKING:
    from .django_tasks import DjangoCall

MAX_NAMES_SHOWN = 5
BROKEN_SECONDS = 10.0
"""Time until a broken module is imported again: an upload may have been incomplete, but imports can be slow."""


class TaskCallable(NamedTuple):
    """The callable that a row names."""

    call: Callable[..., Any]
    options: Options
    parameters: Parameters


class Place(NamedTuple):
    """A module and a path in it."""

    module: str
    path: tuple[str, ...]
    """The name of a function, or of a class and its method."""


def readings(name: str) -> Iterator[Place]:
    """The places that a name may mean: with a colon one; else the path is the last part or the last two."""
    module, colon, path = name.partition(":")
    if colon:
        splits = [(module.split("."), path.split("."))]
    else:
        parts = name.split(".")
        splits = [(parts[:-1], parts[-1:]), (parts[:-2], parts[-2:])]
    for module_parts, path_parts in splits:
        if module_parts and len(path_parts) <= 2 and all(part.isidentifier() for part in module_parts + path_parts):
            yield Place(".".join(module_parts), tuple(path_parts))


class _FailedImport(NamedTuple):
    text: str
    at: float
    """By time.monotonic."""


class Callables:
    """Finds the callables of the listed modules by name, and caches them."""

    def __init__(self, modules: Sequence[str], folder: Path | None = None) -> None:
        """`modules` are names, or packages as `name.*`; messages name `folder` as their place."""
        self._exact = tuple(name for name in modules if not name.endswith(".*"))
        self._packages = tuple(name[:-2] for name in modules if name.endswith(".*"))
        self._listed = ", ".join(modules)
        self._found: dict[str, TaskCallable] = {}
        self._broken: dict[str, _FailedImport] = {}
        self._reported: set[str] = set()
        """Broken modules that `new_failures` returned."""
        self._folder = folder

    # ---- what was found, and modules that are broken

    def found(self, name: str) -> TaskCallable | None:
        """The callable of this name, if it was looked up before."""
        return self._found.get(name)

    def would_import(self, name: str) -> bool:
        """Whether finding this callable imports a new module."""
        return name not in self._found and any(
            place.module not in sys.modules and not self._failed_import(place.module) and self._is_listed(place.module)
            for place in readings(name)
        )

    def find_imported(self, name: str) -> TaskCallable | None:
        """The callable of this name; None if its module is not imported, or if it may not run."""
        try:
            return self._found.get(name) or (None if self.would_import(name) else self.find(name))
        except Exception:  # reported when its task runs
            return None

    def new_failures(self) -> list[str]:
        """The errors of modules that failed to import since the last call; each module only once."""
        new = [name for name in self._broken if name not in self._reported]
        self._reported.update(new)
        return [self._broken[name].text for name in new]

    def forget_failed_import(self, name: str) -> None:
        """Allow the import of this module again: it was interrupted, so the module may be fine."""
        for module in [module for module in self._broken if name.startswith(module)]:
            del self._broken[module]

    def _failed_import(self, module: str) -> _FailedImport | None:
        failed = self._broken.get(module)
        return failed if failed and time.monotonic() < failed.at + BROKEN_SECONDS else None

    # ---- finding one

    def find(self, name: str) -> TaskCallable:
        """The callable of this name.

        Raises BadTask if nothing of that name may run, ModuleBroken if its module cannot be imported.
        """
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self.look_up(name)
        return found

    def look_up(self, name: str) -> TaskCallable:
        """The same, not cached."""
        if len(name) > MAX_TASK_LENGTH:
            raise BadTask(f"{shown(name)} is longer than {MAX_TASK_LENGTH} characters")
        place = self._locate(name)
        namespace = namespace_of_module(self.import_module(place.module))
        if len(place.path) == 1:
            return self._function(name, place, namespace)
        return self._method(name, place, namespace)

    def module_of(self, name: str) -> tuple[ModuleType, tuple[str, ...]]:
        """The imported module of a name, and the callable's path in it. Raises like `find`."""
        place = self._locate(name)
        return self.import_module(place.module), place.path

    def _locate(self, name: str) -> Place:
        for place in readings(name):
            if place.module in self._exact or (self._is_below_package(place.module) and self._exists(place.module)):
                if why := why_private(place.path):
                    raise BadTask(f"{name!r} {why}")
                return place
        raise BadTask(
            f"{name!r} is in none of the modules that may run: {self._listed} (TASKSERVER_MODULES){self._hint(name)}"
        )

    def _hint(self, name: str) -> str:
        """A guess which name was meant."""
        if name in self._exact:
            return f"; name a function of it, as {name}.function"
        places = readings(f"{self._exact[0]}.{name}" if name.isidentifier() and self._exact else name)
        for place in places:
            module = nearest(place.module, self._exact)
            if module and not why_private(place.path):
                return f"; did you mean {'.'.join((module, *place.path))!r}?"
        return ""

    def _is_below_package(self, module: str) -> bool:
        """Whether a module is public, and a listed package or below one. Importing a __main__ would run it."""
        for package in self._packages:
            below = module.removeprefix(f"{package}.")
            if module == package or (below != module and not why_private(below.split("."))):
                return True
        return False

    def _exists(self, module: str) -> bool:
        """Whether this module exists at or below a listed package; the name may be that of a class instead."""
        if module in self._packages or module in sys.modules:
            return True
        parent = module.rpartition(".")[0]
        if not self._exists(parent):
            return False
        # The import system would read __path__ of a plain module, and so run its __getattr__.
        folders = namespace_of_module(self.import_module(parent)).get("__path__")
        try:
            return folders is not None and PathFinder.find_spec(module, folders) is not None
        except Exception as error:
            raise ModuleBroken(f"what package {parent} says of its folders cannot be used: {describe(error)}") from None

    def _is_listed(self, module: object) -> bool:
        return isinstance(module, str) and (module in self._exact or self._is_below_package(module))

    def import_module(self, name: str) -> ModuleType:
        """Import a listed module. Raises ModuleBroken, BadTask."""
        if failed := self._failed_import(name):
            raise ModuleBroken(failed.text)
        if self._broken.pop(name, None):
            importlib.invalidate_caches()
        try:
            module = importlib.import_module(name)
        except BaseException as error:  # a module may call sys.exit() too
            text = why_not_imported(name, error, self._folder)
            self._broken[name] = _FailedImport(text, time.monotonic())
            raise ModuleBroken(text) from error
        if not issubclass(type(module), ModuleType):
            raise BadTask(f"{name} has replaced its module by something else")
        return module

    def _function(self, name: str, place: Place, namespace: dict[str, Any]) -> TaskCallable:
        held = _look_up(name, place, namespace)
        of_django = _of_django(held)
        value = held if of_django is None else of_django.function
        if why := task_of_other_queue(value):
            raise BadTask(f"{name!r} is {why}")
        if type(value) is not FunctionType:
            raise BadTask(f"{name!r} is {_kind(value)}; only functions, static and class methods may run")
        if value.__module__ != place.module:
            raise BadTask(
                f"{name!r} is not defined in {place.module} but comes from {value.__module__}, by an import or by a "
                f"decorator without functools.wraps; {self._fix_of_import(place, value)}"
            )
        # An alias of a function in the module is fine; a function that a decorator made has another name.
        if namespace.get(value.__name__) is not held:
            raise BadTask(f"{name!r} is {value.__qualname__!r} inside: {NAMELESS}")
        return _ready(name, value, of_django or value)

    def _fix_of_import(self, place: Place, function: FunctionType) -> str:
        module = function.__module__
        if function.__qualname__ == function.__name__:  # else a decorator made it
            if self._is_listed(module):
                return f"name it {module}.{function.__name__}"
            if type(module) is str and module.startswith(f"{place.module}."):
                return f"name it {module}.{function.__name__}, and list {module} in TASKSERVER_MODULES, too"
        return "define a function there that calls it"

    def _method(self, name: str, place: Place, namespace: dict[str, Any]) -> TaskCallable:
        holder, method_name = place.path
        cls = _look_up(name, place, namespace)
        if not issubclass(type(cls), type):
            module = f"{place.module}.{holder}"
            too = f"; list {module} in TASKSERVER_MODULES, too" if sys.modules.get(module) is cls else ""
            raise BadTask(f"{name!r}: {holder} is {_kind(cls)}, not a class{too}")
        if namespace_of(cls).get("__module__") != place.module:
            raise BadTask(f"{name!r}: class {holder} is not defined in {place.module}")
        owner, method = self._inherited(name, cls, method_name)
        if type(method) not in (staticmethod, classmethod):
            is_plain = type(method) is FunctionType
            raise BadTask(f"{name!r} {PLAIN_METHOD if is_plain else f'is {_kind(method)} {IN_A_CLASS}'}")
        function = method.__func__
        if type(function) is not FunctionType or not self._is_listed(function.__module__):
            raise BadTask(f"{name!r} is not a function that is defined in a listed module")
        if function.__qualname__ != f"{qualified_class_name(owner)}.{function.__name__}":
            raise BadTask(f"{name!r} is {function.__qualname__!r} inside: {WITHOUT_WRAPS}")
        bound = function if type(method) is staticmethod else method.__get__(None, cls)
        return _ready(name, function, bound)

    def _inherited(self, name: str, cls: type, method_name: str) -> tuple[type, Any]:
        for owner in mro_of(cls):
            namespace = namespace_of(owner)
            if method_name not in namespace:
                continue
            if not self._is_listed(namespace.get("__module__")):
                break
            return owner, namespace[method_name]
        spaces = [space for space in map(namespace_of, mro_of(cls)) if self._is_listed(space.get("__module__"))]
        kinds = (staticmethod, classmethod)
        others = _instead(method_name, [one for space in spaces for one in _public(space) if type(space[one]) in kinds])
        raise BadTask(f"{name!r}: class {class_name(cls)} has no method {method_name!r} of a listed module{others}")


def _look_up(name: str, place: Place, namespace: dict[str, Any]) -> Any:
    """The value of a name in a module's namespace. Raises BadTask."""
    part, exported = place.path[0], _exported(namespace)
    if part in exported and part in namespace:
        return namespace[part]
    is_one = _is_function_of if len(place.path) == 1 else _is_class_of
    there = [other for other in _public(namespace) if other in exported and is_one(place.module, namespace[other])]
    others = _instead(part, there)
    if part in exported or namespace.get("__all__") is None:
        raise BadTask(f"{name!r}: module {place.module} has no {part!r}{others}")
    raise BadTask(f"{name!r}: {part!r} is not in __all__ of {place.module}{others}")


def _instead(part: str, names: Sequence[str]) -> str:
    """The end of the message that a name is missing: a similar name, or the first names."""
    if meant := nearest(part, names):
        return f"; did you mean {meant!r}?"
    more = ", …" if len(names) > MAX_NAMES_SHOWN else ""
    return f"; there is {', '.join(names[:MAX_NAMES_SHOWN])}{more}" if names else "; it has nothing that may run"


def _exported(namespace: dict[str, Any]) -> frozenset[str]:
    """The names in a module's __all__, or all names without one. An __all__ of another type exports none."""
    exported = namespace.get("__all__")
    names = list(namespace) if exported is None else exported
    if type(names) not in (list, tuple):
        return frozenset()
    return frozenset(name for name in cast("Iterable[object]", names) if type(name) is str)


def _public(namespace: Any) -> list[str]:
    return [name for name in list(namespace) if type(name) is str and not name.startswith("_")]


def _is_function_of(module: str, value: object) -> bool:
    is_plain = type(value) is FunctionType and type(value.__module__) is str
    return is_plain and value.__module__ == module and not why_not_runnable(value)


def _is_class_of(module: str, value: object) -> bool:
    of = namespace_of(cast(type, value)).get("__module__") if issubclass(type(value), type) else None
    return type(of) is str and of == module


def _of_django(value: object) -> DjangoCall | None:
    base = sys.modules.get("django.tasks.base")
    if base is None or not issubclass(type(value), base.Task):
        return None
    from .django_tasks import DjangoCall  # it imports Django

    return DjangoCall(value)


def _kind(value: object) -> str:
    """A value's kind as text, only from its type: the value's own methods must not run."""
    kind = type(value)
    if kind is FunctionType:
        return "a plain function"
    if issubclass(kind, type):
        return "a class"
    if issubclass(kind, ModuleType):
        return "a module"
    return f"an object of type {class_name(kind)}"


def _ready(name: str, function: FunctionType, bound: Callable[..., Any]) -> TaskCallable:
    if why := why_not_runnable(function):
        raise BadTask(f"{name!r} {why}")
    call = bound
    if function.__code__.co_flags & CO_COROUTINE and type(bound) in (FunctionType, MethodType):  # no Django task
        from ..interrupts.coroutines import as_plain  # few tasks are coroutines

        call = as_plain(bound)
    try:
        return TaskCallable(call, options_of(function), Parameters(bound))
    except InvalidTask as error:
        raise BadTask(f"{name!r}: {error}") from None
