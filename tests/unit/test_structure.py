"""The structure of the package: who imports whom, and what belongs where."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from taskserver import errors
from taskserver.stores.schema import script
from tests.support.deployment import ROOT

pytestmark = pytest.mark.xdist_group("structure")  # they share the trees of all files

PACKAGE = ROOT / "taskserver"
DIALECTS = {"taskserver.stores.mysql", "taskserver.stores.postgresql", "taskserver.stores.sqlite"}
DRIVERS = {"pymysql", "sqlite3", "dotenv", "ssl"}
SQL = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|ALTER TABLE|DROP TABLE|BEGIN|PRAGMA)\b")
MAX_LINES = 400


def module_name(file: Path) -> str:
    """taskserver.stores.mysql.dialect for its file, taskserver.stores for its __init__.py."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}
IN_STORES = [name for name in MODULES if name.startswith("taskserver.stores.")]
IN_QUEUE = [name for name in MODULES if name.startswith("taskserver.stores.queue.")]
OUTSIDE_STORES = [name for name in MODULES if not name.startswith("taskserver.stores")]


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def nodes_of(module: str) -> list[ast.AST]:
    return list(ast.walk(tree_of(module)))


def texts_of(module: str) -> Iterator[ast.Constant]:
    """The texts in a module's code that are no docstrings."""
    documented = {id(node.value) for node in nodes_of(module) if isinstance(node, ast.Expr)}
    for node in nodes_of(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node


def imports_of(module: str) -> Iterator[str]:
    """What a module imports, anywhere in it, in full: the module, or the name that it takes from one."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, [base, node.module]))
            for alias in node.names:
                if (origin, alias.name) == ("taskserver", "__version__"):
                    continue  # of the package itself, whose __init__ runs before that of any module in it
                whole = f"{origin}.{alias.name}"
                yield whole if whole in MODULES else origin


@cache
def own_imports_of(module: str) -> set[str]:
    return {name for name in imports_of(module) if name.partition(".")[0] == "taskserver"} - {module}


@cache
def layers() -> list[list[str]]:
    """The table of docs/architecture.md, from what knows nothing of ours upwards: each layer's names in order."""
    plan = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`[^|]+`) \|", plan, re.MULTILINE)]


def place_of(module: str) -> tuple[int, int]:
    """The layer of a module, and where in that layer its folder stands; the package itself hands out these."""
    first = module.removeprefix("taskserver").removeprefix(".").partition(".")[0] or "spread"
    (place,) = [(number, names.index(first)) for number, names in enumerate(layers()) if first in names]
    return place


# ---- who imports whom


def test_a_module_imports_only_layers_before_its_own() -> None:
    for name in [name for names in layers() for name in names]:
        assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists(), name
    for module in MODULES:
        for imported in own_imports_of(module):
            assert place_of(imported) <= place_of(module), f"{module} imports {imported}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " → ".join([*way, module])
        if module not in done:
            for imported in own_imports_of(module):
                # A package is imported before what lies in it, and may hand it out.
                if not module.startswith(imported + "."):
                    visit(imported, (*way, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_the_errors_import_nothing_and_have_one_root() -> None:
    assert list(imports_of("taskserver.errors")) == []
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, BaseException):
            assert issubclass(error, errors.TaskServerError), name


def test_no_dialect_is_imported_or_asked_for_outside_its_folder() -> None:
    for module in MODULES:
        for imported in own_imports_of(module):
            folder = ".".join(imported.split(".")[:3])
            is_allowed = folder not in DIALECTS or module == "taskserver.stores" or module.startswith(folder)
            assert is_allowed, f"{module} imports {imported}"
        for node in nodes_of(module) if module in OUTSIDE_STORES else ():
            if isinstance(node, ast.Attribute) and node.attr == "kind" and module != "taskserver.settings.dsn":
                assert not ast.unparse(node).endswith("dsn.kind"), f"{module}, line {node.lineno}"


def test_only_stores_and_settings_know_a_driver() -> None:
    for module in MODULES:
        used = {name.partition(".")[0] for name in imports_of(module)} & DRIVERS
        if module in ("taskserver.settings.load", "taskserver.settings.env_file"):
            assert used <= {"dotenv"}, module
        else:
            assert not used or (module in IN_STORES and "dotenv" not in used), module


# ---- the face of the store: a table of all verbs

# Classes of queue/ that hold no verbs: the face itself, and what verbs are made of.
BENEATH_VERBS = {"Store", "Adding", "FinishWrites", "CallersRows", "ManyRows"}
ROW_OF_FACE = re.compile(r"^    (\w+\.py) +(?:store\.)?\w+ +(\w+(?:, \w+)*)(?: {2,}(\S.*))?$", re.MULTILINE)


def verbs_in_code() -> set[tuple[str, str, bool]]:
    """Each public method of the store's parts: its file, its name, and whether its docstring has a transition."""
    return {
        (MODULES[module].name, node.name, "→" in (ast.get_docstring(node) or ""))
        for module in IN_QUEUE
        for cls in tree_of(module).body
        if isinstance(cls, ast.ClassDef) and cls.name not in BENEATH_VERBS
        if "NamedTuple" not in map(ast.unparse, cls.bases)
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_"
    }


def test_the_table_of_the_store_names_each_verb_and_transition() -> None:
    """A transition is also in the verb's own docstring, which is more exact."""
    face = ast.get_docstring(tree_of("taskserver.stores.queue.store"), clean=False) or ""
    rows = ROW_OF_FACE.findall(face)
    named = {(file, verb, "→" in transition) for file, verbs, transition in rows for verb in verbs.split(", ")}
    assert named == verbs_in_code()


def test_each_verb_of_the_store_is_called_in_tests_contract() -> None:
    """But those of callers' own connections: tests/producers has these, for each driver."""
    folder = ROOT / "tests" / "contract"
    proofs = "".join(file.read_text(encoding="utf-8") for file in [*folder.glob("test_*.py"), folder / "verbs.py"])
    verbs = {(file, verb) for file, verb, _ in verbs_in_code() if file != "callers.py"}
    assert len(verbs) > 80
    assert {(file, verb) for file, verb in verbs if not re.search(rf'["\.]{verb}\b', proofs)} == set()


# ---- what stands where

DRIVERS_WORDS = re.compile(
    r"lastrowid|\b(INSTR|HEX|UNHEX|STRAIGHT_JOIN|FORCE INDEX|INDEXED BY|strftime|julianday|NOW)\b\(?"
)


def test_sql_is_only_in_stores_and_words_of_drivers_only_in_dialects() -> None:
    for module in [*OUTSIDE_STORES, *IN_QUEUE]:
        for node in nodes_of(module):
            if isinstance(node, ast.Attribute):
                assert node.attr != "lastrowid", f"{module}, line {node.lineno}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value):
                assert module in IN_QUEUE, f"{module}, line {node.lineno}"
                assert not DRIVERS_WORDS.search(node.value), f"{module}, line {node.lineno}"


def test_every_file_has_a_docstring_and_at_most_400_lines() -> None:
    for module, file in MODULES.items():
        text = file.read_text(encoding="utf-8")
        assert ast.get_docstring(tree_of(module)) or not text, module
        assert len(text.splitlines()) <= MAX_LINES, module


@pytest.mark.parametrize(("readable", "kind"), [("schema.sql", "mysql"), ("schema.postgresql.sql", "postgresql")])
def test_the_readable_schema_is_the_one_that_is_applied(readable: str, kind: str) -> None:
    assert (ROOT / readable).read_text(encoding="utf-8") == script(kind), f"run make -B {readable}"


NAME_THE_FILES = {
    "taskserver.stores.schema",  # the readable files at the top
    "taskserver.messages.programs",
    *("taskserver.messages.import_errors", "taskserver.cli.commands.check", "taskserver.web"),  # look for them
}


def test_messages_do_not_hard_code_program_names() -> None:
    """If pip has installed the package there is no client.py."""
    for module in set(MODULES) - NAME_THE_FILES:
        for text in texts_of(module):
            assert not re.search(r"\b(client|worker)\.py\b", str(text.value)), f"{module}, line {text.lineno}"
