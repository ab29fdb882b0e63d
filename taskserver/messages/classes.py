"""Reads attributes of classes and modules without running a site's code.

A metaclass, or a module's own `__getattr__`, may return anything or hang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
namespace_of: Callable[[type], dict[str, Any]] = type.__dict__["__dict__"].__get__
class_name: Callable[[type], str] = type.__dict__["__name__"].__get__
qualified_class_name: Callable[[type], str] = type.__dict__["__qualname__"].__get__
module_of: Callable[[type], object] = type.__dict__["__module__"].__get__
"""The name of a class's module, which the class may have replaced by anything."""
namespace_of_module: Callable[[ModuleType], dict[str, Any]] = vars(ModuleType)["__dict__"].__get__


def is_kind(kind: type, kinds: Iterable[type]) -> bool:
    """Whether a class is or inherits from one of these, as `except` sees it."""
    return any(one is each for one in mro_of(kind) for each in kinds)
