"""How the package hangs together: who may import whom, what stands where, and what an empty run pays for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.deployment import ROOT, Deployment

PACKAGE = ROOT / "taskserver"
PLAN = ROOT / "docs" / "architecture.md"
FILES = sorted(PACKAGE.rglob("*.py"))
# The folders of stores/ that are no dialect's: every other one is.
OF_ALL_DIALECTS = ["queue"]
DIALECTS = {file.parent.name for file in PACKAGE.glob("stores/*/__init__.py")} - set(OF_ALL_DIALECTS)
DRIVERS = {"pymysql", "sqlite3", "dotenv", "ssl"}
SQL = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|ALTER TABLE|DROP TABLE|BEGIN|PRAGMA)\b")


def module_name(file: Path) -> str:
    """taskserver.stores.mysql.dialect for its file, taskserver.stores for its __init__.py."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


pytestmark = pytest.mark.xdist_group("structure")  # they share the trees of all files
MODULES = {module_name(file): file for file in FILES}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def of_each(modules: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """Makes one test of what is to hold for each of these: a thousand tests of a moment each take many moments more."""

    def decorate(check: Callable[[str], None]) -> Callable[[], None]:
        def check_each() -> None:
            for module in modules:
                check(module)

        return check_each

    return decorate


def imports_of(module: str, tree: ast.AST | None = None) -> Iterator[str]:
    """What a module imports, anywhere in it, in full: the module, or the name that it takes from one."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree or tree_of(module)):
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


def own_imports_of(module: str) -> set[str]:
    return {name for name in imports_of(module) if name.partition(".")[0] == "taskserver"} - {module}


@cache
def layers() -> list[list[str]]:
    """The table of docs/architecture.md, from what knows nothing of ours upwards: each layer's names in order."""
    rows = re.findall(r"^\| (`[^|]+`) \|", PLAN.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.findall(r"`(\w+)`", row) for row in rows]


def place_of(module: str) -> tuple[int, int]:
    """The layer of a module, and where in that layer its folder stands; the package itself hands out the server."""
    first = module.removeprefix("taskserver").removeprefix(".").partition(".")[0] or "server"
    for number, names in enumerate(layers()):
        if first in names:
            return number, names.index(first)
    pytest.fail(f"{module} has no layer in docs/architecture.md")


# ---- who imports whom


@of_each(MODULES)
def test_a_module_imports_only_layers_before_its_own(module: str) -> None:
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
                if not (module.startswith(imported + ".")):
                    visit(imported, (*way, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_the_errors_import_nothing() -> None:
    assert list(imports_of("taskserver.errors")) == []


def test_no_dialect_is_named_outside_the_stores() -> None:
    folders = tuple(f"taskserver.stores.{name}" for name in DIALECTS)
    assert len(folders) > 1
    for module in MODULES:
        if not module.startswith("taskserver.stores"):
            for imported in own_imports_of(module):
                assert not imported.startswith(folders), module


def test_only_stores_and_settings_know_a_driver() -> None:
    for module in MODULES:
        used = {name.partition(".")[0] for name in imports_of(module)} & DRIVERS
        reads_env_file = module in ("taskserver.settings.load", "taskserver.settings.env_file")
        allowed = {"dotenv"} if reads_env_file else DRIVERS - {"dotenv"}
        if reads_env_file or module.startswith("taskserver.stores."):
            assert used <= allowed, module
        else:
            assert not used, module


def test_there_are_at_most_eight_layers_and_each_of_their_names_exists() -> None:
    assert 5 < len(layers()) <= 8
    for name in [name for names in layers() for name in names]:
        assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists(), name


def test_the_top_of_the_package_holds_nothing_but_its_faces() -> None:
    faces = {"__init__.py", "__main__.py", "errors.py", "server.py", "py.typed"}
    assert {file.name for file in PACKAGE.glob("*.*")} == faces


# Inside stores/, from left to right: the files of stores/ itself, queue/, the dialects; a dialect imports no other.
INSIDE_STORES = [{""}, *({name} for name in OF_ALL_DIALECTS), DIALECTS]


@of_each([name for name in MODULES if name.startswith("taskserver.stores.")])
def test_inside_the_stores_imports_go_one_way(module: str) -> None:
    def folder(name: str) -> str:
        name = name.split(".")[2]
        return name if name in DIALECTS or name in OF_ALL_DIALECTS else ""

    allowed = {folder(module)}
    for level in INSIDE_STORES:
        if folder(module) in level:
            break
        allowed |= level
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


def verbs_in_code() -> dict[tuple[str, str, str], bool]:
    """Each public method of the store's parts, by file, class and name; whether its docstring has a transition."""
    found: dict[tuple[str, str, str], bool] = {}
    for module in [name for name in MODULES if name.startswith("taskserver.stores.queue.")]:
        for name, cls in classes_of(module).items():
            if name not in BENEATH_VERBS and "NamedTuple" not in map(ast.unparse, cls.bases):
                for verb in [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]:
                    found[MODULES[module].name, name, verb.name] = "→" in (ast.get_docstring(verb) or "")
    return found


def verbs_in_face() -> dict[tuple[str, str, str], bool]:
    """The same by the table in the docstring of stores/queue/store.py."""
    store = classes_of("taskserver.stores.queue.store")["Store"]
    # Of each attribute of Store: the class that it holds.
    parts = {
        node.name: ast.unparse(node.returns)
        for node in store.body
        if isinstance(node, ast.FunctionDef) and node.returns
    }
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


CHANGES_STATUS = re.compile(r"UPDATE .*SET\b.*\bstatus = (?!status\b).*WHERE", re.DOTALL)


def test_a_verb_that_sends_a_write_of_a_status_has_a_transition() -> None:
    for module in [name for name in MODULES if name.startswith("taskserver.stores.queue.")]:
        writes = set()
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Assign) and CHANGES_STATUS.search(
                ast.unparse(node.value).partition("WHERE")[0] + "WHERE"
            ):
                writes.add(ast.unparse(node.targets[0]))
        for cls in classes_of(module).values():
            for verb in [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]:
                used = {ast.unparse(node).removeprefix("self.") for node in ast.walk(verb)}
                if used & writes:
                    assert "→" in (ast.get_docstring(verb) or ""), f"{module}: {cls.name}.{verb.name}, {used & writes}"


# ---- parts: each has a face, and nobody reaches past it

# Names with an underscore that are public all the same, by their documentation.
PUBLIC = {
    *("_replace", "_make", "_fields", "_field_defaults", "_asdict"),  # of named tuples
    *("_exit", "_getframe", "_current_frames"),  # of os and sys
}
# Where a driver or the interpreter has no public word for what has to be done.
WITHOUT_A_PUBLIC_WORD = {
    ("taskserver.stores.mysql.dialect", "_closed"),
    ("taskserver.stores.mysql.session", "_sock"),
    ("taskserver.stores.mysql.session", "_read_timeout"),
    ("taskserver.stores.mysql.session", "_write_timeout"),
}


@of_each(MODULES)
def test_no_object_reaches_into_another_s_private_parts(module: str) -> None:
    for node in ast.walk(tree_of(module)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.endswith("__"):
            continue
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        is_super = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super"
        if not (is_own or is_super or node.attr in PUBLIC or (module, node.attr) in WITHOUT_A_PUBLIC_WORD):
            pytest.fail(f"{module}, line {node.lineno}: {ast.unparse(node)}")


@of_each(MODULES)
def test_no_private_name_is_imported_from_another_module(module: str) -> None:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("taskserver")):
            names = [alias.name for alias in node.names]
            private = [name for name in names if name.startswith("_") and not name.endswith("__")]
            assert not private, f"{module}, line {node.lineno}"


def classes_of(module: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree_of(module).body if isinstance(node, ast.ClassDef)}


def private_names_of(cls: ast.ClassDef) -> set[str]:
    """The private methods that a class defines, and what it uses of itself that is private."""
    names = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls", "super()"):
            names.add(node.attr)
    return {name for name in names if name.startswith("_") and not name.endswith("__")}


@of_each(MODULES)
def test_no_class_uses_private_parts_of_a_base_class_of_another_module(module: str) -> None:
    others = [classes_of(imported) for imported in own_imports_of(module)]
    for cls in classes_of(module).values():
        for base in [classes[name] for name in map(ast.unparse, cls.bases) for classes in others if name in classes]:
            shared = private_names_of(base) & private_names_of(cls)
            assert not shared, f"{module}: {cls.name} and its base class share {shared}"


OF_A_DIALECT = re.compile(r"\w+(Facts|Dialect)")


@of_each([name for name in MODULES if not name.startswith("taskserver.stores")])
def test_nothing_outside_the_stores_asks_which_dialect_it_has(module: str) -> None:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "type"):
            named = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            assert not list(filter(OF_A_DIALECT.fullmatch, named)), f"{module}, line {node.lineno}"
        if isinstance(node, ast.Attribute) and module != "taskserver.settings.dsn":
            assert not ast.unparse(node).endswith("dsn.kind"), f"{module}, line {node.lineno}"


DRIVERS_WORDS = re.compile(
    r"lastrowid|\b(INSTR|HEX|UNHEX|STRAIGHT_JOIN|FORCE INDEX|INDEXED BY|strftime|julianday|NOW)\b\(?"
)


@of_each([name for name in MODULES if name.startswith("taskserver.stores.queue")])
def test_no_word_of_a_driver_stands_outside_a_dialect_s_folder(module: str) -> None:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Attribute):
            assert node.attr != "lastrowid", f"{module}, line {node.lineno}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value):
            assert not DRIVERS_WORDS.search(node.value), f"{module}, line {node.lineno}"


MAX_LINES = 400


@of_each(MODULES)
def test_no_file_is_longer_than_a_reader_s_patience(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= MAX_LINES, module


# ---- what stands where


@of_each([name for name in MODULES if not name.startswith("taskserver.stores")])
def test_no_sql_stands_outside_the_stores(module: str) -> None:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not SQL.match(node.value), f"{module}, line {node.lineno}"


@of_each(MODULES)
def test_nothing_of_a_row_could_be_evaluated_or_unpickled(module: str) -> None:
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "runpy", "code"}
    assert not forbidden & {name.partition(".")[0] for name in imports_of(module)}, module
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), f"{module}, line {node.lineno}"


@of_each(MODULES)
def test_every_file_says_first_what_it_is(module: str) -> None:
    assert ast.get_docstring(tree_of(module)) or MODULES[module].stat().st_size == 0, module


def test_the_typed_package_says_so() -> None:
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize(("readable", "kind"), [("schema.sql", "mysql"), ("schema.postgresql.sql", "postgresql")])
def test_the_readable_schema_is_the_one_that_is_applied(readable: str, kind: str) -> None:
    from taskserver.stores.schema import script

    assert (ROOT / readable).read_text(encoding="utf-8") == script(kind), f"run make -B {readable}"


def test_what_the_package_hands_out_is_there() -> None:
    import taskserver

    for name in taskserver.__all__:
        assert hasattr(taskserver, name)


def test_all_errors_have_one_root() -> None:
    from taskserver import errors

    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, BaseException):
            assert issubclass(error, errors.TaskServerError), name


# ---- what is imported when


def modules_after(code: str) -> set[str]:
    """The modules that a fresh Python has imported after some code, and not before."""
    program = f"import sys; before = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    environ = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def modules_of_run(deployment: Deployment, *arguments: str, dsn: str | None = None) -> set[str]:
    """The modules that one run of worker.py imports, by the interpreter's own account."""
    environ = {"PATH": os.defpath, "HOME": str(deployment.home)} | ({"TASKSERVER_DSN": dsn} if dsn else {})
    command = [sys.executable, "-X", "importtime", str(deployment.folder / "worker.py"), *arguments]
    done = subprocess.run(command, cwd=deployment.home, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_a_page_of_an_old_python_that_imports_the_package_is_told_which_one_is_needed() -> None:
    program = "import sys; sys.version_info = (3, 9, 2, 'final', 0)\nimport taskserver"
    environ = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True)
    assert ended.stderr.endswith("ImportError: taskserver needs Python 3.10 or newer, and this is 3.9\n")


def test_importing_the_package_imports_no_driver_and_no_worker() -> None:
    imported = modules_after("import taskserver")
    assert "taskserver.server" in imported
    unwanted = DRIVERS | {"json.decoder", "inspect", "argparse", "logging", "hashlib", "socket", "asyncio"}
    assert not unwanted & imported
    assert (
        not {
            "taskserver.worker.life",
            "taskserver.worker.callables",
            "taskserver.worker.run",
            "taskserver.cli.commands",
        }
        & imported
    )


def test_a_task_that_is_added_by_its_name_costs_no_look_at_signatures() -> None:
    """A CGI page imports everything for each visitor."""
    by_name = modules_after("from taskserver.model.new_task import new_task\nnew_task('tasks.send', {'to': 'x'})")
    assert not {"inspect", "difflib", "taskserver.model.functions"} & by_name


def test_a_server_imports_its_own_driver_alone() -> None:
    opened = "from taskserver import TaskServer\nTaskServer({!r})"
    assert not {"pymysql", "dotenv"} & modules_after(opened.format("sqlite:///x.db"))
    of_mysql = modules_after(opened.format("mysql://u@h/db"))
    assert "pymysql" in of_mysql
    assert not {"sqlite3", "dotenv"} & of_mysql


NEVER_IN_AN_EMPTY_RUN = {"pymysql", "dotenv", "ssl", "inspect", "json", "json.decoder", "importlib.util", "hashlib"} | {
    "taskserver.stores.schema",
    "taskserver.stores.upgrading",
    "tempfile",
    "grp",
    "subprocess",
    "asyncio",
    "unittest",
    "email",
    "importlib.metadata",
    "importlib.resources",
    "concurrent.futures",
    "difflib",
    "taskserver.stores.facts",
    "taskserver.stores.queue.stats",
    "taskserver.stores.queue.adding",
    "taskserver.stores.queue.finishes",
    "taskserver.stores.queue.views",
    "taskserver.stores.free_rows",
    "taskserver.worker.stats",
    "taskserver.worker.run_context",
    "taskserver.worker.life",
    "taskserver.worker.call",
    "taskserver.worker.preparing",
    "taskserver.worker.callables",
    "taskserver.model.arguments",
    "taskserver.model.new_task",
    "taskserver.cli.client",
    "taskserver.stores.mysql.dialect",
    "psycopg",
}


def test_an_empty_run_on_sqlite_imports_only_what_it_uses(deployment: Deployment) -> None:
    dsn = "sqlite:///var/taskserver.db"
    assert deployment.client("init", env={"TASKSERVER_DSN": dsn}).returncode == 0
    imported = modules_of_run(deployment, "100", "3,5,6", dsn=dsn)
    assert {"sqlite3", "taskserver.worker.run", "taskserver.cli.worker"} <= imported
    assert not NEVER_IN_AN_EMPTY_RUN & imported


def test_an_empty_run_with_its_file_imports_dotenv_and_nothing_more(deployment: Deployment) -> None:
    assert deployment.client("init").returncode == 0
    imported = modules_of_run(deployment, "100", "3,5,6")
    assert "dotenv" in imported
    assert not (NEVER_IN_AN_EMPTY_RUN - {"dotenv"}) & imported - modules_of_dotenv()


def modules_of_dotenv() -> set[str]:
    return modules_after("from dotenv import dotenv_values")


def test_an_empty_run_on_mysql_imports_only_what_the_driver_needs(deployment: Deployment, mysql_dsn: str) -> None:
    assert deployment.client("init", env={"TASKSERVER_DSN": mysql_dsn}).returncode == 0
    imported = modules_of_run(deployment, "100", "3,5,6", dsn=mysql_dsn)
    assert "pymysql" in imported
    assert not (NEVER_IN_AN_EMPTY_RUN - {"taskserver.stores.mysql.dialect"}) & imported - modules_after(
        "import pymysql"
    )
    assert "sqlite3" not in imported


PROVED_ELSEWHERE = {"callers.py": "tests/producers/test_callers_connection.py"}
"""Whose verbs are those of callers' own connections, of each driver."""


def test_each_verb_of_the_store_has_a_test_of_the_contract_that_calls_it() -> None:
    proofs = "".join(file.read_text(encoding="utf-8") for file in ROOT.glob("tests/contract/test_*.py"))
    proofs += (ROOT / "tests/contract/verbs.py").read_text(encoding="utf-8")
    document = ast.get_docstring(tree_of("taskserver.stores.queue.store"), clean=False) or ""
    verbs = {
        (file, verb.strip())
        for file, row in re.findall(r"^    (\w+\.py) +\S+ +(\w[\w, ]*)", document, re.MULTILINE)
        for verb in re.split(r"  +", row)[0].split(",")
    }
    assert len(verbs) > 80, verbs
    unproved = {(file, verb) for file, verb in verbs if not re.search(rf'["\.]{verb}\b', proofs)}
    assert {(file, verb) for file, verb in unproved if file not in PROVED_ELSEWHERE} == set()
    assert all((ROOT / file).exists() for file in PROVED_ELSEWHERE.values())


def test_messages_call_the_programs_by_the_names_that_a_person_has() -> None:
    """Where pip has installed the package there is no client.py."""
    named = {
        (module, text)
        for module in MODULES
        for text in texts_of(module)
        if re.search(r"\b(client|worker)\.py\b", text) and module not in NAME_THE_FILES
    }
    assert named == set()


NAME_THE_FILES = {
    "taskserver.stores.schema",  # the readable files at the top
    "taskserver.messages.programs",
    "taskserver.messages.import_errors",  # looks for others beside them
    "taskserver.cli.commands.check",  # the same
    "taskserver.web",  # looks for them
}


def texts_of(module: str) -> Iterator[str]:
    """The texts in a module's code that are no docstrings."""
    tree = tree_of(module)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value
