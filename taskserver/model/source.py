"""What the text of a module says of a function, before a task for it is added: nothing of the module runs."""

from __future__ import annotations

import ast
import re
from inspect import Parameter, Signature
from typing import Any

from .arguments import as_call
from .functions import Parameters

_OTHER_QUEUES = re.compile(r"shared_task\b|actor\b|\w+(\.\w+)*\.(task|db_task|periodic_task|actor)\b")
_OWN = re.compile(r"(\w+\.)?task\b(?!.*\bbatch=)", re.DOTALL)


def why_doubtful(source: bytes, name: str, args: Any, *, checks_arguments: bool = True) -> str:
    """What a worker will refuse in a task of this name and these arguments, in words; empty if nothing is seen.

    Only a function of the module itself is looked at, and only below decorators that leave its parameters as they are.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    function = name.replace(":", ".").rpartition(".")[2]
    found = [one for one in tree.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    definition = next((one for one in reversed(found) if one.name == function), None)
    if definition is None:
        return ""
    decorators = [ast.unparse(one) for one in definition.decorator_list]
    for decorator in decorators:
        if _OTHER_QUEUES.match(decorator) and decorator.partition(".")[0] not in _names_of_ours(tree):
            called = decorator.partition("(")[0]
            return f"@{called} makes {name} a task of another queue: remove it, see docs/django.md#coming-from-celery"
    if not (checks_arguments and all(map(_OWN.match, decorators))):
        return ""
    positions, keywords = as_call({} if args is None else args)
    return _parameters(definition.args).misfit(name, positions, keywords, takes_list=False) or ""


def _names_of_ours(tree: ast.Module) -> set[str]:
    """The names under which a module imports taskserver."""
    imported = [alias for one in ast.walk(tree) if isinstance(one, ast.Import) for alias in one.names]
    return {alias.asname or alias.name for alias in imported if alias.name == "taskserver"}


def _parameters(written: ast.arguments) -> Parameters:
    positional: list[tuple[ast.arg, Any]] = [(one, Parameter.POSITIONAL_ONLY) for one in written.posonlyargs]
    positional += [(one, Parameter.POSITIONAL_OR_KEYWORD) for one in written.args]
    defaults = [None] * (len(positional) - len(written.defaults)) + written.defaults
    keywords = zip(written.kwonlyargs, written.kw_defaults, strict=True)
    rows: list[tuple[ast.arg | None, Any, ast.expr | None]] = [
        *((one, kind, default) for (one, kind), default in zip(positional, defaults, strict=True)),
        (written.vararg, Parameter.VAR_POSITIONAL, None),
        *((one, Parameter.KEYWORD_ONLY, default) for one, default in keywords),
        (written.kwarg, Parameter.VAR_KEYWORD, None),
    ]
    return Parameters(
        Signature([Parameter(one.arg, kind, default=default or Parameter.empty) for one, kind, default in rows if one])
    )
