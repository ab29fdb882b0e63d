"""How the package hangs together: who may import whom, what stands where, and who names whom."""

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
# The folders of stores/ that are no dialect's: every other one is.
OF_ALL_DIALECTS = {"queue"}
DIALECTS = {file.parent.name for file in PACKAGE.glob("stores/*/__init__.py")} - OF_ALL_DIALECTS
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


def classes_of(module: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree_of(module).body if isinstance(node, ast.ClassDef)}


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
    """The layer of a module, and where in that layer its folder stands; the package itself hands out the server."""
    first = module.removeprefix("taskserver").removeprefix(".").partition(".")[0] or "server"
    for number, names in enumerate(layers()):
        if first in names:
            return number, names.index(first)
    pytest.fail(f"{module} has no layer in docs/architecture.md")


# ---- who imports whom


def test_a_module_imports_only_layers_before_its_own() -> None:
    for module in MODULES:
        for imported in own_imports_of(module):
            assert imported in MODULES, f"{module} imports {imported}, which is no module"
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


def test_no_dialect_is_named_or_asked_for_outside_the_stores() -> None:
    folders = tuple(f"taskserver.stores.{name}" for name in DIALECTS)
    assert len(folders) > 1
    for module in OUTSIDE_STORES:
        for imported in own_imports_of(module):
            assert not imported.startswith(folders), module
        for node in nodes_of(module):
            if isinstance(node, ast.Attribute) and node.attr == "kind" and module != "taskserver.settings.dsn":
                assert not ast.unparse(node).endswith("dsn.kind"), f"{module}, line {node.lineno}"


def test_only_stores_and_settings_know_a_driver() -> None:
    for module in MODULES:
        used = {name.partition(".")[0] for name in imports_of(module)} & DRIVERS
        if module in ("taskserver.settings.load", "taskserver.settings.env_file"):
            assert used <= {"dotenv"}, module
        else:
            assert not used or (module in IN_STORES and "dotenv" not in used), module


def test_there_are_at_most_eight_layers_and_each_of_their_names_exists() -> None:
    assert 5 < len(layers()) <= 8
    for name in [name for names in layers() for name in names]:
        assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists(), name
    faces = {"__init__.py", "__main__.py", "errors.py", "server.py", "py.typed"}
    assert {file.name for file in PACKAGE.glob("*.*")} == faces


def test_inside_the_stores_imports_go_one_way() -> None:
    """From stores/ itself to queue/ and then to the dialects; a dialect imports no other."""

    def folder(name: str) -> str:
        name = name.split(".")[2]
        return name if name in DIALECTS or name in OF_ALL_DIALECTS else ""

    for module in IN_STORES:
        own = folder(module)
        allowed = {"", own, *(OF_ALL_DIALECTS if own in DIALECTS else ())}
        for imported in own_imports_of(module):
            if imported.startswith("taskserver.stores."):
                assert folder(imported) in allowed, f"{module} imports {imported}"


OF_EACH_DIALECT = {"__init__.py", "dialect.py", "session.py", "claiming.py", "errors.py", "facts.py"}
OF_ONE_DIALECT = {
    "sqlite": {"rebuilding.py"},  # SQLite cannot alter a CHECK: an upgrade, which few runs import, makes tables again
    "postgresql": {"notices.py"},  # only PostgreSQL can wake a waiting worker
}


def test_dialects_have_the_same_files() -> None:
    for name in DIALECTS:
        files = {file.name for file in (PACKAGE / "stores" / name).glob("*.*")}
        assert files == OF_EACH_DIALECT | OF_ONE_DIALECT.get(name, set()), name


# ---- the face of the store: a table of all verbs

# Classes of queue/ that hold no verbs: the face itself, and what verbs are made of.
BENEATH_VERBS = {"Store", "Adding", "FinishWrites", "CallersRows", "ManyRows"}
ROW_OF_FACE = re.compile(r"^    (\w+\.py) +(?:store\.)?(\w+) +(\w+(?:, \w+)*)(?: {2,}(\S.*))?$", re.MULTILINE)
PROVED_ELSEWHERE = {"callers.py"}
"""Its verbs are those of callers' own connections, of each driver: tests/producers."""


def verbs_of(cls: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}


def has_transition(verb: ast.FunctionDef) -> bool:
    return "→" in (ast.get_docstring(verb) or "")


def verbs_in_code() -> dict[tuple[str, str, str], bool]:
    """Each public method of the store's parts, by file, class and name; whether its docstring has a transition."""
    return {
        (MODULES[module].name, name, verb): has_transition(node)
        for module in IN_QUEUE
        for name, cls in classes_of(module).items()
        if name not in BENEATH_VERBS and "NamedTuple" not in map(ast.unparse, cls.bases)
        for verb, node in verbs_of(cls).items()
    }


def verbs_in_face() -> dict[tuple[str, str, str], bool]:
    """The same by the table in the docstring of stores/queue/store.py."""
    store = classes_of("taskserver.stores.queue.store")["Store"]
    # Of each attribute of Store: the class that it holds.
    parts = {name: ast.unparse(verb.returns) for name, verb in verbs_of(store).items() if verb.returns}
    for node in ast.walk(store):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            parts[ast.unparse(node.targets[0]).removeprefix("self.")] = ast.unparse(node.value.func)
    rows = ROW_OF_FACE.findall(ast.get_docstring(tree_of("taskserver.stores.queue.store"), clean=False) or "")
    return {
        (file, parts.get(part, part), verb): "→" in transition
        for file, part, verbs, transition in rows
        for verb in verbs.split(", ")
    }


def test_the_store_s_face_names_each_verb_its_file_and_whether_it_changes_a_status() -> None:
    """A transition is also in the verb's own docstring, which is more exact."""
    assert verbs_in_face() == verbs_in_code()


def test_each_verb_of_the_store_has_a_test_of_the_contract_that_calls_it() -> None:
    folder = ROOT / "tests" / "contract"
    proofs = "".join(file.read_text(encoding="utf-8") for file in [*folder.glob("test_*.py"), folder / "verbs.py"])
    verbs = {(file, verb) for file, _, verb in verbs_in_code() if file not in PROVED_ELSEWHERE}
    assert len(verbs) > 80
    assert {(file, verb) for file, verb in verbs if not re.search(rf'["\.]{verb}\b', proofs)} == set()


# ---- parts: each has a face, and nobody reaches past it

# Names with an underscore that are public all the same, by their documentation.
PUBLIC = {
    *("_replace", "_make", "_fields", "_field_defaults", "_asdict"),  # of named tuples
    *("_exit", "_getframe", "_current_frames"),  # of os and sys
}
# Where a driver or the interpreter has no public word for what has to be done.
WITHOUT_A_PUBLIC_WORD = {
    ("taskserver.stores.mysql.dialect", "_closed"),
    *(("taskserver.stores.mysql.session", name) for name in ("_sock", "_read_timeout", "_write_timeout")),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_no_object_reaches_into_another_s_private_parts() -> None:
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                is_super = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super"
                if not (is_own or is_super or node.attr in PUBLIC or (module, node.attr) in WITHOUT_A_PUBLIC_WORD):
                    pytest.fail(f"{module}, line {node.lineno}: {ast.unparse(node)}")
            if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("taskserver")):
                private = [alias.name for alias in node.names if is_private(alias.name)]
                assert not private, f"{module}, line {node.lineno}"


def private_names_of(cls: ast.ClassDef) -> set[str]:
    """The private methods that a class defines, and what it uses of itself that is private."""
    names = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls", "super()"):
            names.add(node.attr)
    return set(filter(is_private, names))


def test_no_class_uses_private_parts_of_a_base_class_of_another_module() -> None:
    for module in MODULES:
        others = [classes_of(imported) for imported in own_imports_of(module)]
        for cls in classes_of(module).values():
            for base in [
                classes[name] for name in map(ast.unparse, cls.bases) for classes in others if name in classes
            ]:
                shared = private_names_of(base) & private_names_of(cls)
                assert not shared, f"{module}: {cls.name} and its base class share {shared}"


# ---- what stands where

DRIVERS_WORDS = re.compile(
    r"lastrowid|\b(INSTR|HEX|UNHEX|STRAIGHT_JOIN|FORCE INDEX|INDEXED BY|strftime|julianday|NOW)\b\(?"
)


def test_no_word_of_a_driver_stands_outside_a_dialect_s_folder_and_no_sql_outside_the_stores() -> None:
    for module in [*OUTSIDE_STORES, *IN_QUEUE]:
        for node in nodes_of(module):
            if isinstance(node, ast.Attribute):
                assert node.attr != "lastrowid", f"{module}, line {node.lineno}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value):
                assert module in IN_QUEUE, f"{module}, line {node.lineno}"
                assert not DRIVERS_WORDS.search(node.value), f"{module}, line {node.lineno}"


FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "runpy", "code"}


def test_nothing_of_a_row_could_be_evaluated_or_unpickled() -> None:
    for module in MODULES:
        assert not FORBIDDEN & {name.partition(".")[0] for name in imports_of(module)}, module
        for node in nodes_of(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), f"{module}, line {node.lineno}"


def test_every_file_says_first_what_it_is_and_none_is_longer_than_a_reader_s_patience() -> None:
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


def test_messages_call_the_programs_by_the_names_that_a_person_has() -> None:
    """If pip has installed the package there is no client.py."""
    for module in set(MODULES) - NAME_THE_FILES:
        for text in texts_of(module):
            assert not re.search(r"\b(client|worker)\.py\b", str(text.value)), f"{module}, line {text.lineno}"
