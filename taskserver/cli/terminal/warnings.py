"""Warnings about new tasks: a worker would refuse them, or no worker serves their group.

They are added anyway, as they may be for another host or a later upload. Names and arguments are compared with the
source of the listed modules beside the program: no code of a module runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from inspect import Parameter, Signature
from typing import Any

from ...errors import DatabaseError
from ...health.judge import describe_unserved
from ...messages.programs import CLIENT
from ...messages.text import nearest
from ...model.arguments import as_call, read_item
from ...model.functions import Parameters
from ...model.new_task import NewTask
from ...model.pipeline import read_stages
from ...server import TaskServer
from ...settings.load import Settings
from .output import note

MAX_NAMES, MAX_WARNINGS = 100, 5
"""Names that are checked, and warnings that get a line."""
NOT_FOUND = f"a worker that does not find it either makes the task fatal ({CLIENT} retry ID --as NAME renames it)"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OTHER_QUEUES = re.compile(r"shared_task\b|actor\b|\w+(\.\w+)*\.(task|db_task|periodic_task|actor)\b")
_OWN = re.compile(r"(\w+\.)?task\b(?!.*\bbatch=)", re.DOTALL)
"""A decorator that keeps the parameters of its function."""


def warn_of_tasks(server: TaskServer, tasks: Iterable[NewTask]) -> None:
    """Warn of tasks that a worker would refuse, and of groups that no recent run serves."""
    names: dict[str, Any] = {}
    groups = set()
    for task in tasks:
        for stage in read_stages(task.stages):
            names[stage.task] = ...
            groups.add(stage.group_id or 0)
        names[task.task] = task.args
        groups.add(task.group_id)
        if len(names) >= MAX_NAMES:
            break
    warn_of_names(server.settings, names)
    try:
        unserved = describe_unserved(groups, server.store.views.runs())
    except DatabaseError:  # a producer's account may not read them
        return
    if unserved:
        _warn(f"{unserved}; have a crontab line name it, or no groups")


def warn_of_names(settings: Settings, names: Mapping[str, Any]) -> None:
    """Warn of names that a worker would refuse; `names` have the arguments as JSON, or ... if they are unknown."""
    problems = list(filter(None, (_problem(settings, name, args) for name, args in names.items())))
    for problem in problems[:MAX_WARNINGS]:
        _warn(problem)
    if len(problems) > MAX_WARNINGS:
        _warn(f"and {len(problems) - MAX_WARNINGS} more names like these")


def _warn(words: str) -> None:
    note(f"{CLIENT}: warning: {words}")


def _problem(settings: Settings, name: str, args: Any) -> str:
    """Why a worker would refuse it; empty if it would not, or if no listed module is beside the program."""
    *outer, function = re.split("[.:]", name)
    for module in (".".join(outer), ".".join(outer[:-1])):  # the second one for a method
        if text := _source(settings, module):
            return problem_in_source(text, name, module, function, args)
    beside = [module for module in settings.modules if _source(settings, module)]
    if not beside:
        return ""
    meant = _hint(name, [f"{module}.{function}" for module in beside])
    return f"{name!r} is not in TASKSERVER_MODULES ({', '.join(beside)}); {NOT_FOUND}{meant}"


def _source(settings: Settings, module: str) -> bytes:
    """The source of a listed module beside the program; empty if it is not listed, or missing."""
    # shop.jobs.* lists shop.jobs and all below it.
    below = (one[:-1] for one in settings.modules if one.endswith(".*"))
    if module not in settings.modules and not any(f"{module}.".startswith(package) for package in below):
        return b""
    path = settings.folder.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        try:
            return file.read_bytes()
        except OSError:
            continue
    return b""


def problem_in_source(source: bytes, name: str, module: str, function: str, args: Any) -> str:
    """Why a module's source does not fit a name and its arguments; empty if it fits, or cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    defined = [one.name for one in ast.walk(tree) if isinstance(one, _FUNCTIONS)]
    if function not in defined:
        return f"{name!r}: module {module} has no function {function!r}; {NOT_FOUND}{_hint(function, defined)}"
    found = [one for one in tree.body if isinstance(one, _FUNCTIONS) and one.name == function]
    if not found or name.replace(":", ".") != f"{module}.{function}":  # a method
        return ""
    decorators = [ast.unparse(one) for one in found[-1].decorator_list]
    other = next((one.partition("(")[0] for one in decorators if _is_of_other_queue(one, tree)), None)
    if other:
        problem = f"@{other} makes {name} a task of another queue: remove it, see docs/django.md#coming-from-celery"
    elif args is not ... and all(map(_OWN.match, decorators)):
        takes = _parameters(found[-1].args)
        problem = takes.argument_error(name, *as_call(read_item(args)), takes_list=False) or ""
    else:
        problem = ""
    return problem and f"{problem}; as it is, a worker makes the task fatal"


def _hint(name: str, names: Iterable[str]) -> str:
    meant = nearest(name, names)
    return f"; did you mean {meant!r}?" if meant else ""


def _is_of_other_queue(decorator: str, tree: ast.Module) -> bool:
    first = decorator.partition(".")[0]
    aliases = [one for one in ast.walk(tree) if isinstance(one, ast.alias) and one.name == "taskserver"]
    is_ours = first in [one.asname or one.name for one in aliases]
    return not is_ours and _OTHER_QUEUES.match(decorator) is not None


def _parameters(written: ast.arguments) -> Parameters:
    positional = [*written.posonlyargs, *written.args]
    optional = positional[len(positional) - len(written.defaults) :]
    optional += [one for one, default in zip(written.kwonlyargs, written.kw_defaults, strict=True) if default]
    kinds = (
        (Parameter.POSITIONAL_ONLY, written.posonlyargs),
        (Parameter.POSITIONAL_OR_KEYWORD, written.args),
        (Parameter.VAR_POSITIONAL, [written.vararg]),
        (Parameter.KEYWORD_ONLY, written.kwonlyargs),
        (Parameter.VAR_KEYWORD, [written.kwarg]),
    )
    parameters = [
        Parameter(one.arg, kind, default=None if one in optional else Parameter.empty)
        for kind, several in kinds
        for one in several
        if one
    ]
    return Parameters(Signature(parameters))
