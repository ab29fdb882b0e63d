"""Which value of some arguments or of a result JSON cannot hold, and what to write in its place.

Imported once the encoder has failed. A value is judged by the names of its class and of that class's bases, so that
nothing is imported for it, and none of its own code runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from ..messages.classes import class_name, module_of, mro_of, namespace_of
from ..messages.text import shown, without_middle

MAX_STEP = 40
"""Characters of one key in a place."""
MAX_PLACE = 100
MAX_LOOKED_AT = 200_000
"""Values; the search is no work that a worker may spend a lease on."""

_Way = tuple["_Way | None", str]
"""The way to a value: that to what holds it, and the last step."""

_INSTEAD = {
    "datetime.datetime": "{0}.isoformat(), and read it back by datetime.fromisoformat({0})",
    "datetime.date": "{0}.isoformat(), and read it back by date.fromisoformat({0})",
    "datetime.time": "{0}.isoformat(), and read it back by time.fromisoformat({0})",
    "datetime.timedelta": "{0}.total_seconds(), and read it back by timedelta(seconds={0})",
    "decimal.Decimal": "str({0}), and read it back by Decimal({0})",
    "uuid.UUID": "str({0}), and read it back by UUID({0})",
    "pathlib.PurePath": "str({0}), and read it back by Path({0})",
    "enum.Enum": "{0}.value, and read it back by {1}({0})",
    "builtins.set": "sorted({0}), and read it back by set({0})",
    "builtins.frozenset": "sorted({0}), and read it back by frozenset({0})",
    "builtins.bytes": "base64.b64encode({0}).decode(), and read it back by base64.b64decode({0})",
    "builtins.bytearray": "base64.b64encode({0}).decode(), and read it back by base64.b64decode({0})",
    "django.Model": "its primary key, {0}.pk, and read it back by {1}.objects.get(pk={0})",
    "django.QuerySet": 'list({0}.values_list("pk", flat=True))',
    "django.Promise": "str({0})",
    "numpy.integer": "int({0})",
    "numpy.floating": "float({0})",
    "numpy.bool": "bool({0})",
    "numpy.bool_": "bool({0})",
    "numpy.ndarray": "{0}.tolist()",
    "pydantic.BaseModel": '{0}.model_dump(mode="json"), and read it back by {1}(**{0})',
}
"""What to write, by the class or a base of it: {0} is the value's name, {1} its class's."""
_BY_ATTRIBUTE = {
    "__dataclass_fields__": "dataclasses.asdict({0}), and read it back by {1}(**{0})",
    "keys": "dict({0})",
    "__iter__": "list({0})",
}
_HELD = "texts, numbers, True, False, None, and lists and dicts of them"


def fault_in(value: object, what: str) -> str | None:
    """The first value that JSON cannot hold, in a sentence that calls the whole one `what`.

    None without one, and where none of the first MAX_LOOKED_AT is one.
    """
    seen: set[int] = set()  # a value that holds itself would have no end
    left: list[tuple[Iterator[tuple[str, object]], _Way | None]] = [(iter([(what, value)]), None)]
    for _ in range(MAX_LOOKED_AT):
        while left and (found := next(left[-1][0], None)) is None:
            left.pop()
        if not left or found is None:
            return None
        (step, one), holder = found, left[-1][1]
        way = (holder, step)
        if issubclass(type(one), (dict, list, tuple)):
            if id(one) not in seen:
                seen.add(id(one))
                if fault := _fault_of_keys(one):
                    return f"a key of {_place(way)} {fault}"
                left.append((_steps(one), way))
        elif fault := _fault(one, step if holder else ""):
            return f"{_place(way)} {fault}"
    return None


def _steps(holder: Any) -> Iterator[tuple[str, object]]:
    if issubclass(type(holder), dict):
        yield from ((_step(key), inner) for key, inner in dict.items(holder))
    else:
        elements: Iterable[object] = (list if issubclass(type(holder), list) else tuple).__iter__(holder)
        yield from ((f"[{number}]", inner) for number, inner in enumerate(elements))


def _step(key: Any) -> str:
    kind = type(key)
    if issubclass(kind, str):
        return f'["{without_middle(shown(str.__str__(key))[1:-1], MAX_STEP)}"]'
    # A number without what a class of the site's own says of it.
    plain = key if kind in (bool, type(None)) else (int.__int__ if issubclass(kind, int) else float.__float__)(key)
    return f"[{shown(plain)}]"


def _place(way: _Way | None) -> str:
    steps = []
    while way is not None:
        way, step = way
        steps.append(step)
    return without_middle("".join(reversed(steps)), MAX_PLACE)


def _fault_of_keys(holder: Any) -> str | None:
    keys = dict.keys(holder) if issubclass(type(holder), dict) else ()
    wrong = next((type(key) for key in keys if not issubclass(type(key), (str, int, float, type(None)))), None)
    return None if wrong is None else f"is {_a(wrong)}; allowed: texts"


def _fault(value: Any, step: str) -> str | None:
    kind = type(value)
    if issubclass(kind, float) and not math.isfinite(value):
        return f"is {float.__repr__(value)}, which is no JSON number"
    if issubclass(kind, (str, int, float, type(None))):
        return None
    name = step[2:-2] if step[2:-2].isidentifier() else "value"
    instead = _instead_of(kind)
    if instead is None:
        return f"is {_a(kind)}, which JSON cannot hold; allowed: {_HELD}"
    return f"is {_a(kind)}, which JSON cannot hold: write {instead.format(name, class_name(kind))}"


def _instead_of(kind: type) -> str | None:
    names = (f"{_package_of(base)}.{class_name(base)}" for base in mro_of(kind))
    known = next((_INSTEAD[name] for name in names if name in _INSTEAD), None)
    attributes = {name for base in mro_of(kind) for name in namespace_of(base)}
    return known or next((words for name, words in _BY_ATTRIBUTE.items() if name in attributes), None)


def _package_of(kind: type) -> str:
    # The package alone: versions of Python differ in which file of it defines a class.
    module = module_of(kind)
    return module.partition(".")[0] if type(module) is str else ""


def _a(kind: type) -> str:
    name = class_name(kind)
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"  # not before U, as in UUID
