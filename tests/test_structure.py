"""How the package hangs together: who may import whom, what stands where, and what an empty run pays for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tests.deployment import ROOT, Deployment

PACKAGE = ROOT / "taskserver"
PLAN = ROOT / "docs" / "architecture.md"
FILES = sorted(PACKAGE.rglob("*.py"))
DRIVERS = {"pymysql", "sqlite3", "dotenv", "ssl"}
SQL = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|ALTER TABLE|DROP TABLE|BEGIN|PRAGMA)\b")


def module_name(file: Path) -> str:
    """taskserver.stores.mysql for taskserver/stores/mysql.py, taskserver.stores for its __init__.py."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in FILES}


@lru_cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


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
                whole = f"{origin}.{alias.name}"
                yield whole if whole in MODULES else origin


def own_imports_of(module: str) -> set[str]:
    return {name for name in imports_of(module) if name.partition(".")[0] == "taskserver"} - {module}


def layers() -> list[list[str]]:
    """The chain of docs/architecture.md, `errors, printable ← dsn ← …`, from what knows nothing upwards."""
    chain = " ".join(
        line.strip() for line in PLAN.read_text(encoding="utf-8").splitlines() if "←" in line and line[:4] == "    "
    )
    return [[name.strip() for name in layer.split(",")] for layer in chain.split("←") if layer.strip()]


def layer_of(module: str) -> int:
    """Where a module stands in the chain; all of stores/ and all of commands/ stand together."""
    first = module.removeprefix("taskserver").removeprefix(".").partition(".")[0]
    if not first:
        return layer_of("taskserver.server")  # the package itself only hands out what others may use
    for number, names in enumerate(layers()):
        if first in names:
            return number
    pytest.fail(f"{module} has no place in the chain of imports in docs/architecture.md")


# ---- who imports whom


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_stands_before_it_in_the_plan(module: str) -> None:
    for imported in own_imports_of(module):
        assert imported in MODULES, f"{module} imports {imported}, which is no module"
        assert layer_of(imported) <= layer_of(module), f"{module} imports {imported}"


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


def test_no_command_is_imported_by_anything_but_commands() -> None:
    for module in MODULES:
        if not module.startswith("taskserver.commands"):
            assert not any(name.startswith("taskserver.commands") for name in own_imports_of(module)), module


def test_a_store_is_named_by_its_package_alone() -> None:
    for module in MODULES:
        if not module.startswith("taskserver.stores"):
            assert not own_imports_of(module) & {"taskserver.stores.mysql", "taskserver.stores.sqlite"}, module


def test_only_stores_and_settings_know_a_driver() -> None:
    for module in MODULES:
        used = {name.partition(".")[0] for name in imports_of(module)} & DRIVERS
        allowed = {"dotenv"} if module == "taskserver.settings" else DRIVERS - {"dotenv"}
        if module == "taskserver.settings" or module.startswith("taskserver.stores."):
            assert used <= allowed, module
        else:
            assert not used, module


def test_every_file_of_the_package_is_in_the_plan() -> None:
    plan = PLAN.read_text(encoding="utf-8")
    for file in FILES:
        path = file.relative_to(PACKAGE)
        if path.name != "__init__.py" and path.parts[0] != "commands":
            assert f"{path.as_posix()} " in plan, f"{path} is not in docs/architecture.md"
    for name in re.findall(r"^ {4,6}(?:stores/)?(\w+\.(?:py|sql)) ", plan, re.MULTILINE):
        assert any(ROOT.glob(f"{name}")) or any(PACKAGE.rglob(name)), f"{name} is in docs/architecture.md only"


# ---- what stands where


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("taskserver.stores")])
def test_no_sql_stands_outside_the_stores(module: str) -> None:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not SQL.match(node.value), f"{module}, line {node.lineno}"


@pytest.mark.parametrize("module", MODULES)
def test_nothing_of_a_row_could_be_evaluated_or_unpickled(module: str) -> None:
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "runpy", "code"}
    assert not forbidden & {name.partition(".")[0] for name in imports_of(module)}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), f"{module}, line {node.lineno}"


@pytest.mark.parametrize("module", MODULES)
def test_every_file_says_first_what_it_is(module: str) -> None:
    assert ast.get_docstring(tree_of(module)) or MODULES[module].stat().st_size == 0, module


def test_the_typed_package_says_so() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_the_readable_schema_is_the_one_that_is_applied() -> None:
    assert (ROOT / "schema.sql").read_bytes() == (PACKAGE / "stores" / "mysql.sql").read_bytes()


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
    assert not {"taskserver.executor", "taskserver.callables", "taskserver.runner", "taskserver.commands"} & imported


def test_a_server_imports_its_own_driver_alone() -> None:
    opened = "from taskserver import TaskServer\nTaskServer({!r})"
    assert not {"pymysql", "dotenv"} & modules_after(opened.format("sqlite:///x.db"))
    of_mysql = modules_after(opened.format("mysql://u@h/db"))
    assert "pymysql" in of_mysql
    assert not {"sqlite3", "dotenv"} & of_mysql


NEVER_IN_AN_EMPTY_RUN = {"pymysql", "dotenv", "ssl", "inspect", "json", "json.decoder", "importlib.util", "hashlib"} | {
    "tempfile",
    "subprocess",
    "asyncio",
    "unittest",
    "email",
    "importlib.metadata",
    "importlib.resources",
    "concurrent.futures",
    "difflib",
    "taskserver.nearest",
    "taskserver.misplaced",
    "taskserver.mounts",
    "taskserver.stores.facts",
    "taskserver.stores.stats",
    "taskserver.figures",
    "taskserver.executor",
    "taskserver.call",
    "taskserver.callables",
    "taskserver.arguments",
    "taskserver.new_task",
    "taskserver.commands.client",
    "taskserver.stores.mysql",
}


def test_an_empty_run_on_sqlite_imports_only_what_it_uses(deployment: Deployment) -> None:
    dsn = "sqlite:///var/taskserver.db"
    assert deployment.client("init", env={"TASKSERVER_DSN": dsn}).returncode == 0
    imported = modules_of_run(deployment, "100", "3,5,6", dsn=dsn)
    assert {"sqlite3", "taskserver.runner", "taskserver.commands.worker"} <= imported
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
    assert not (NEVER_IN_AN_EMPTY_RUN - {"taskserver.stores.mysql"}) & imported - modules_after("import pymysql")
    assert "sqlite3" not in imported
