"""The bundle, as its user has it: python3 and nothing else, no rights but to var/, started from elsewhere.

It is made from a copy of this repository in which a developer left all sorts of things. As root, its programs run as
nobody. full_bundle is the one with the packages of the status page, of the metrics and of PostgreSQL.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes.util import find_library
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.utils import canonicalize_name

from taskserver import __version__
from taskserver.health import files
from taskserver.messages.finding import Level
from tests.conftest import without
from tests.support.deployment import ROOT, TIMEOUT_SECONDS
from tests.support.hosts import BARE, VERSIONS, as_user, is_usable, open_folder, own, own_all, users_python
from tests.support.repositories import INSTANT, copy_of_repository, in_git
from tests.support.servers import NOBODY
from tests.support.venvs import make_venv

NAME = f"taskserver-{__version__}"
STRAY = "left behind by a developer"
STRAYS = (
    *(".env", "tasks.py", "notes.txt", "tests/test_draft.py", "var/taskserver.db", "var/slots/1.lock"),
    *("taskserver/notes.txt", "taskserver/worker/call.py.orig", "taskserver/__pycache__/draft.cpython-311.pyc"),
    *("docs/.draft.md.swp", "examples/enqueue.php~", "packaging/draft.py", ".git-credentials"),
)
ALWAYS = ["PyMySQL", "python-dotenv", "cronsim"]
WEB = ["itsdangerous", "Jinja2", "MarkupSafe", "Werkzeug"]
OPTIONS = ["--web", "--metrics", "--postgresql"]
FULL = f"{NAME}{''.join(OPTIONS).replace('--', '-')}.zip"
PACKAGES = {"bundle": ALWAYS, "full_bundle": [*ALWAYS, *WEB, "prometheus_client", "psycopg", "typing_extensions"]}
NO_LIBPQ = "libpq is not installed, which psycopg calls where it is plain Python"
Run = subprocess.CompletedProcess[str]


class Bundle(NamedTuple):
    """What `make bundle` wrote."""

    source: Path
    folder: Path
    archive: Path


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def bundle(place: Path) -> Bundle:
    source = copy_of_repository(place / "repository")
    for name in STRAYS:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(STRAY)
    return _bundle_of(source)


@pytest.fixture(scope="module")
def full_bundle(bundle: Bundle, place: Path) -> Bundle:
    return _bundle_of(_copy(bundle.source, place / "full-repository"), full=True)


@pytest.fixture(params=PACKAGES)
def either(request: pytest.FixtureRequest) -> tuple[Bundle, list[str]]:
    """A bundle, and the packages in it."""
    return request.getfixturevalue(request.param), PACKAGES[request.param]


def _make_bundle(source: Path, *options: str, full: bool = False, python: str = sys.executable, **env: str) -> Run:
    """Runs the script of a repository, from elsewhere, where pip gets nothing."""
    command = [python, *options, str(source / "packaging" / "bundle.py"), *(OPTIONS if full else [])]
    environ = {"PATH": os.defpath, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, **env}
    return subprocess.run(command, cwd="/", env=environ, capture_output=True, text=True)


def _bundle_of(source: Path, full: bool = False, **env: str) -> Bundle:
    made = _make_bundle(source, full=full, **env)
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    packages = ", ".join(rf"{name} \S+" for name in PACKAGES["full_bundle" if full else "bundle"])
    assert re.fullmatch(rf"wrote dist/{NAME}/ and .*: \d+ files, \d\.\d MB, with {packages} inside\n", made.stdout)
    return Bundle(source, source / "dist" / NAME, source / "dist" / (FULL if full else f"{NAME}.zip"))


@pytest.fixture
def repository(bundle: Bundle, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return _copy(bundle.source, tmp_path / "repository")


def _copy(source: Path, target: Path) -> Path:
    return shutil.copytree(source, target, ignore=shutil.ignore_patterns("dist"))


def _tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Rights and content of all that lies in a folder; a folder has no content."""
    return {
        path.relative_to(folder).as_posix(): (
            stat.S_IMODE(path.stat().st_mode),
            b"" if path.is_dir() else path.read_bytes(),
        )
        for path in sorted(folder.rglob("*"))
    }


# ---- what is in it


def test_it_has_what_a_host_needs_and_every_file_of_the_package(bundle: Bundle) -> None:
    needed = {"worker.py", "client.py", "schema.sql", ".htaccess", "var/.htaccess", ".env.example", "crontab.example"}
    needed |= {
        "schema.postgresql.sql",
        "README.md",
        "LICENSE",
        "requirements.txt",
        "START-HERE.txt",
        "THIRD-PARTY.txt",
        "FILES.txt",
    }
    needed |= {
        "tasks.example.py",
        "pymysql/__init__.py",
        "dotenv/__init__.py",
        "cronsim/__init__.py",
        "docs/guarantees.md",
    }
    package = {f"taskserver/{path.relative_to(ROOT / 'taskserver')}" for path in (ROOT / "taskserver").rglob("*.*")}
    needed |= {name for name in package if ".pyc" not in name}
    there = set(_tree(bundle.folder))
    assert needed <= there
    assert not {name for name in there if name.startswith("taskserver/") and "." in name} - needed
    assert "Require all denied" in (bundle.folder / "var" / ".htaccess").read_text()


def test_what_its_texts_link_to_is_in_it(bundle: Bundle) -> None:
    links = 0
    for path in bundle.folder.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            links += 1
            assert (path.parent / target).exists(), f"{path.relative_to(bundle.folder)} links to {target}"
    assert links > 10


def test_pictures_of_the_documents_are_in_it_as_they_are(bundle: Bundle) -> None:
    pictures = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.webp")]
    assert pictures
    for name in pictures:
        assert (bundle.folder / name).read_bytes() == (ROOT / name).read_bytes(), name


def test_nothing_of_the_developer_is_in_it(bundle: Bundle) -> None:
    places = [str(ROOT), str(bundle.source), str(Path.home()), sys.prefix, sys.base_prefix]
    machine = [f"{place}/".encode() for place in places if place not in ("/", "/usr", "/usr/local")]
    for name, (_, content) in _tree(bundle.folder).items():
        assert STRAY.encode() not in content, name
        assert not any(path in content for path in machine), name
        assert b"\r" not in content or name.endswith(".webp"), name
        assert not re.search(r"__pycache__|\.pyc$|\.so$|/RECORD$|/INSTALLER$|^tests|^var/[^.]|^tasks\.py$", name), name


def test_only_the_programs_may_be_executed_and_only_the_owner_may_look_into_var(bundle: Bundle) -> None:
    for name, (mode, content) in _tree(bundle.folder).items():
        path = bundle.folder / name
        program = content.startswith(b"#!")
        assert mode == (0o700 if name == "var" else 0o755 if path.is_dir() or program else 0o644), name
        assert not program or "/" not in name or name.startswith("examples/"), name
    assert stat.S_IMODE(bundle.folder.stat().st_mode) == 0o755


def test_the_packages_that_are_listed_are_those_inside(either: tuple[Bundle, list[str]]) -> None:
    bundle, packages = either
    lines = (bundle.folder / "THIRD-PARTY.txt").read_text().splitlines()
    listed = [match.groups() for line in lines if (match := re.fullmatch(r"(\S+) (\S+), licence (.+), (\S+)/", line))]
    assert [name for name, *_ in listed] == packages
    for name, number, licence, folder in listed:
        described = (bundle.folder / folder / "METADATA").read_text(encoding="utf-8")
        assert f"Name: {name}\n" in described
        assert f"Version: {number}\n" in described
        assert re.search(rf"^(License.*|Classifier: License :: .*): {re.escape(licence)}$", described, re.MULTILINE)
        assert any("opyright" in path.read_text() for path in (bundle.folder / folder).rglob("LICENSE*"))
    program = "import pymysql, dotenv.version; print(pymysql.VERSION_STRING, dotenv.version.__version__)"
    command = [sys.executable, *BARE, "-B", "-c", program]
    imported = subprocess.run(command, cwd=bundle.folder, env={}, capture_output=True, text=True)
    assert imported.stdout.split() == [number for _, number, *_ in listed[:2]], imported.stderr


IMPORT_ALL = """
import sys
sys.path.insert(0, sys.argv[1])
import importlib, pkgutil, taskserver
for module in pkgutil.walk_packages(taskserver.__path__, "taskserver."):
    if module.name in ("taskserver.testing.fixtures", "taskserver.django", "taskserver.worker.django_tasks"):
        continue  # for pytest and Django, which import them themselves
    chosen = ("taskserver.web", "taskserver.web", "taskserver.stores.postgresql")
    if len(sys.argv) > 2 or not module.name.startswith(chosen):
        importlib.import_module(module.name)
        print(module.name)
for name in ["dotenv", "pymysql", "cronsim", *sys.argv[2:]]:
    print(importlib.import_module(name).__file__)
"""
IMPORTED = {
    "bundle": [],
    "full_bundle": [
        *("jinja2", "markupsafe", "werkzeug", "itsdangerous", "prometheus_client"),
        *("psycopg", "typing_extensions"),
    ],
}


@pytest.mark.parametrize("kind", IMPORTED)
def test_all_that_its_modules_import_is_in_it(request: pytest.FixtureRequest, kind: str) -> None:
    bundle = request.getfixturevalue(kind)
    if IMPORTED[kind] and not find_library("pq"):
        without(NO_LIBPQ)
    command = [sys.executable, *BARE, "-B", "-c", IMPORT_ALL, str(bundle.folder), *IMPORTED[kind]]
    ended = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "taskserver.stores.mysql.dialect" in ended.stdout
    assert ("taskserver.stores.postgresql.dialect" in ended.stdout) == (kind == "full_bundle")
    assert ended.stdout.count(str(bundle.folder)) == 3 + len(IMPORTED[kind])


def test_what_the_status_page_is_made_of_is_in_it(repository: Path) -> None:
    page = {f"taskserver/web/draft/page.{suffix}" for suffix in ("html", "css", "js", "svg")}
    for name in page:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("")
    assert page <= set(_tree(_bundle_of(repository).folder))


def test_the_doctor_names_the_files_that_an_upload_did_not_bring_whole(bundle: Bundle, tmp_path: Path) -> None:
    folder = shutil.copytree(bundle.folder, tmp_path / "taskserver")
    (folder / "worker.py").write_bytes((folder / "worker.py").read_bytes().replace(b"\n", b"\r\n"))
    for name in ("crontab.example", "docs/page.md", "passenger_wsgi.py"):  # a panel may write the last one
        (folder / name).write_text("of the owner")
    assert files.whole(folder).level is Level.OK
    (folder / "pymysql" / "connections.py").write_bytes(b"")
    (folder / "taskserver" / "web" / "templates" / "page.css").unlink()
    finding = files.whole(folder)
    assert finding.level is Level.CRITICAL
    assert finding.words.endswith(f"in {folder}: pymysql/connections.py, taskserver/web/templates/page.css")
    (folder / "FILES.txt").write_bytes(b"")
    assert files.whole(folder).words.endswith(": FILES.txt")


# ---- with the packages of the status page, of the metrics and of PostgreSQL


def test_with_all_that_may_be_chosen_it_has_those_packages_besides_and_plain_python_alone(
    bundle: Bundle, full_bundle: Bundle
) -> None:
    plain, full = _tree(bundle.folder), _tree(full_bundle.folder)
    assert [name for name in plain if full.get(name) != plain[name]] == ["FILES.txt", "THIRD-PARTY.txt"]
    besides = {name: mode for name, (mode, content) in full.items() if name not in plain}
    tops = {name.partition("/")[0].removesuffix(".py") for name in besides if ".dist-info" not in name}
    assert tops == set(IMPORTED["full_bundle"])
    suffixes = {Path(name).suffix for name in besides if "." in name and ".dist-info" not in name}
    assert suffixes == {".py", ".pyi", ".typed"}
    assert "_speedups" not in " ".join(full)


RENDER = """
import sys
sys.path.insert(0, sys.argv[1])
import itsdangerous, jinja2, markupsafe, werkzeug.test, werkzeug.wrappers
page = jinja2.Environment(autoescape=True).from_string("<p>{{ name }}</p>").render(name=sys.argv[2])
print(werkzeug.test.Client(werkzeug.wrappers.Response(page)).get("/").text)
print(itsdangerous.Signer("key").unsign(itsdangerous.Signer("key").sign("Ada")).decode())
print(markupsafe._escape_inner.__module__)
"""


def test_the_packages_of_the_status_page_work_without_any_other(
    place: Path, full_bundle: Bundle, python: list[str]
) -> None:
    folder = place / "unpacked"
    with zipfile.ZipFile(full_bundle.archive) as archive:
        archive.extractall(folder)
    command = [*as_user(), python[0], "-I", "-S", "-B", "-c", RENDER, str(folder / NAME), "<Ada & 'Bob'>"]
    ended = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True)
    shown = ["<p>&lt;Ada &amp; &#39;Bob&#39;&gt;</p>", "Ada", "markupsafe._native"]
    assert (ended.stdout.splitlines(), ended.stderr) == (shown, "")


SELECT = """
import sys
sys.path.insert(0, sys.argv[1])
import psycopg
with psycopg.connect(sys.argv[2]) as connection:
    print(psycopg.pq.__impl__, *connection.execute("SELECT %s::text, 6 * 7", ["Ada"]).fetchone())
"""


def test_the_driver_of_postgresql_works_with_the_client_library_of_the_machine(
    place: Path, full_bundle: Bundle, postgresql_dsn: str, python: list[str]
) -> None:
    if not find_library("pq"):
        without(NO_LIBPQ)
    command = [*as_user(), python[0], "-I", "-S", "-B", "-c", SELECT, str(full_bundle.folder), postgresql_dsn]
    ended = subprocess.run(command, cwd="/", env={"PATH": os.defpath}, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("python Ada 42\n", "")


def test_make_installs_the_packages_of_the_status_page_where_they_are_asked_for() -> None:
    def steps(*arguments: str) -> str:
        command = ["make", "--dry-run", "bundle", *arguments]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    every = steps(f"ARGS={' '.join(OPTIONS)}")
    pattern = r"^\.ci/setup venv cron web metrics postgresql\n.*bundle\.py --web --metrics --postgresql$"
    assert re.search(pattern, every, re.MULTILINE)
    assert re.search(r"^\.ci/setup venv cron *\n.*bundle\.py *$", steps(), re.MULTILINE)


# ---- the zip


def test_the_zip_is_the_folder(bundle: Bundle, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle.archive) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == f"{NAME}/"
        modes = {entry.filename.rstrip("/"): entry.external_attr >> 16 & 0o7777 for entry in archive.infolist()}
        archive.extractall(tmp_path)
    expected = _tree(bundle.folder)
    assert {name: content for name, (_, content) in _tree(tmp_path / NAME).items()} == {
        name: content for name, (_, content) in expected.items()
    }
    assert modes == {NAME: 0o755} | {f"{NAME}/{name}": mode for name, (mode, _) in expected.items()}


def test_the_same_files_make_the_same_bytes_wherever_and_by_whomever(bundle: Bundle, tmp_path: Path) -> None:
    source = _copy(bundle.source, tmp_path / "elsewhere")
    umask = os.umask(0o077)
    try:
        again = _bundle_of(source, TZ="Asia/Tokyo", LC_ALL="C", HOME=str(tmp_path))
    finally:
        os.umask(umask)
    assert again.archive.read_bytes() == bundle.archive.read_bytes()
    assert _tree(again.folder) == _tree(bundle.folder)
    assert _times(again.folder) == _times(bundle.folder)


def _times(folder: Path) -> set[int]:
    return {int(path.stat().st_mtime) for path in [folder, *folder.rglob("*")]}


def test_every_file_bears_the_time_of_the_newest(bundle: Bundle, repository: Path) -> None:
    (before,) = _times(bundle.folder)
    # Lest old bytecode seem fresh, a changed file changes the time of all.
    os.utime(repository / "taskserver" / "worker" / "call.py", (before + 10, before + 10))
    made = _bundle_of(repository)
    assert _times(made.folder) == {before + 10}
    (made.folder / "taskserver" / "gone.py").write_text("")  # a new bundle takes the place of the old one
    made = _bundle_of(repository)
    assert not (made.folder / "taskserver" / "gone.py").exists()
    assert sorted(path.name for path in (repository / "dist").iterdir()) == [NAME, f"{NAME}.zip"]
    with zipfile.ZipFile(made.archive) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {time.gmtime(before + 10)[:6]}


def test_lines_end_as_on_unix_whatever_the_checkout_has(bundle: Bundle, repository: Path) -> None:
    for name in ("worker.py", "crontab.example", "taskserver/worker/call.py"):
        text = (repository / name).read_bytes()
        (repository / name).write_bytes(text.replace(b"\n", b"\r\n"))
    expected = {name: content for name, (_, content) in _tree(bundle.folder).items()}
    assert {name: content for name, (_, content) in _tree(_bundle_of(repository).folder).items()} == expected


# ---- what there can be no bundle with


def _assert_refused(ended: Run, *words: str) -> None:
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    for word in ("bundle.py: ", *words):
        assert word in ended.stderr


def test_what_there_can_be_no_bundle_with_is_named(repository: Path) -> None:
    made = _bundle_of(repository)
    for name in (".env", "tasks.py", "var/taskserver.db"):
        (made.folder / name).write_text("mine")
        _assert_refused(_make_bundle(repository), name, "would be lost")  # somebody tried it where it was made
        assert (made.folder / name).read_text() == "mine"
        (made.folder / name).unlink()
    for name in ("schema.sql", "client.py", "packaging/START-HERE.txt"):
        content = (repository / name).read_bytes()
        (repository / name).unlink()
        _assert_refused(_make_bundle(repository), f"{name} is missing")
        (repository / name).write_bytes(content)


# ---- where its packages are not installed


WHEELS = "wheels"
# What Windows lacks, and does otherwise. The encoding of its texts is here that of LC_ALL=C.
LIKE_WINDOWS = """
import os, pathlib, runpy, signal, sys
for name in ("fcntl", "grp", "pwd", "resource", "syslog", "termios"):
    sys.modules[name] = None
for module, names in ((os, ("fork", "getuid", "geteuid", "chown", "getpgid")), (signal, ("SIGALRM", "SIGKILL"))):
    for name in names:
        delattr(module, name)
os.chmod = pathlib.Path.chmod = lambda *arguments, **options: None
rename = pathlib.Path.rename
def rename_to_nothing(path, target):
    if os.path.lexists(target):
        raise FileExistsError(target)
    return rename(path, target)
pathlib.Path.rename = rename_to_nothing
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def bare(repository: Path, tmp_path: Path) -> Callable[..., Run]:
    """Makes the bundle by a Python that has pip and nothing else. pip finds the packages in a folder alone.

    They are made of the installed ones, so that no network is needed; the lock names the hashes of these.
    """
    python = make_venv(tmp_path / "venv")
    lock = (repository / "requirements.lock").read_text(encoding="utf-8")
    (tmp_path / WHEELS).mkdir()
    for name in PACKAGES["full_bundle"]:
        wheel = _wheel_of(name, tmp_path / WHEELS)
        entry = rf"^({canonicalize_name(name)}==\S+ (?:; .+)?\\\n)(    --hash=\S+( \\)?\n)+"
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lock, found = re.subn(entry, rf"\1    --hash=sha256:{digest}\n", lock, flags=re.MULTILINE)
        assert found
    (repository / "requirements.lock").write_text(lock, encoding="utf-8")
    (tmp_path / "windows.py").write_text(LIKE_WINDOWS)
    env = {"PATH": "/none", "PIP_FIND_LINKS": str(tmp_path / WHEELS), "PIP_TARGET": "/none", "LC_ALL": "C"}
    env |= {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}

    def make(full: bool = False, **more: str) -> Run:
        return _make_bundle(repository, str(tmp_path / "windows.py"), full=full, python=str(python), **env | more)

    return make


def _wheel_of(name: str, folder: Path) -> Path:
    """The file in which an installed package could have come."""
    package = distribution(name)
    path = folder / f"{package.name.replace('-', '_')}-{package.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in package.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                archive.write(str(file.locate()), file.as_posix())
    return path


def test_a_python_without_its_packages_makes_the_same_bytes_as_windows_would(
    full_bundle: Bundle, repository: Path, bare: Callable[..., Run]
) -> None:
    for path in [path for path in repository.rglob("*") if path.is_file() and path.suffix != ".webp"]:
        before = path.stat().st_mtime_ns
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        os.utime(path, ns=(before, before))
    for _ in range(2):  # the second takes the place of the first
        made = bare(full=True)
        assert (made.returncode, made.stderr) == (0, "")
    assert re.match("getting pymysql, python-dotenv, cronsim, .*\nwrote dist/", made.stdout)
    assert (repository / "dist" / FULL).read_bytes() == full_bundle.archive.read_bytes()


def test_packages_that_pip_cannot_get_or_that_are_others_are_named_in_a_line(
    repository: Path, tmp_path: Path, bare: Callable[..., Run]
) -> None:
    def refused(*words: str, **env: str) -> None:
        ended = bare(**env)
        first, _, rest = ended.stdout.partition("\n")
        assert first == "getting pymysql, python-dotenv, cronsim"
        _assert_refused(subprocess.CompletedProcess([], ended.returncode, rest, ended.stderr), *words)

    refused("could not get the packages (is the network there?)", "pymysql==", PIP_FIND_LINKS="/none")
    (wheel,) = (tmp_path / WHEELS).glob("PyMySQL-*")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("pymysql/more.py", "")
    refused("a file whose hash is not in requirements.lock")
    next((tmp_path / "venv").glob("lib/python*/site-packages/pip")).unlink()
    refused("has no pip")
    assert not (repository / "dist").exists()


def test_the_oldest_python_is_told_which_one_is_needed(repository: Path) -> None:
    old = "import runpy, sys; sys.version_info = (3, 9, 18); runpy.run_path(sys.argv[1], run_name='__main__')"
    ended = subprocess.run(
        [sys.executable, "-c", old, str(repository / "packaging" / "bundle.py")], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert ended.stderr == "bundle.py needs Python 3.10 or newer, and this is 3.9\n"


# ---- in a clone


@pytest.fixture
def git(repository: Path) -> Callable[..., str]:
    """Runs git in the repository, which it knows."""
    run = partial(in_git, repository)
    # What others left in the copy must be known to git too, before a test adds its own.
    for name in STRAYS:
        (repository / name).unlink()
    run("init", "-q")
    run("add", "-A")
    run("commit", "-q", "-m", "all")
    if os.getuid() == 0:  # as in a container, where the checkout is another user's
        os.chown(repository, NOBODY, NOBODY)
        os.chown(repository / ".git", NOBODY, NOBODY)
    return run


def test_a_file_that_git_does_not_know_is_named_and_neither_taken_nor_left_out(
    repository: Path, git: Callable[..., str]
) -> None:
    (repository / "taskserver" / "draft.py").write_text("")
    (repository / "docs" / "draft.md").write_text("")
    _assert_refused(_make_bundle(repository), "git does not know docs/draft.md, taskserver/draft.py: ")
    git("add", "-A")
    assert {"taskserver/draft.py", "docs/draft.md"} <= set(_tree(_bundle_of(repository).folder))


def test_a_commit_gives_its_time_and_changes_beyond_it_give_theirs(repository: Path, git: Callable[..., str]) -> None:
    assert _times(_bundle_of(repository).folder) == {INSTANT}
    changed = repository / "taskserver" / "worker" / "call.py"
    changed.write_text(changed.read_text() + "\n")
    assert min(_times(_bundle_of(repository).folder)) > INSTANT


def test_a_repository_that_git_cannot_read_is_refused(repository: Path, git: Callable[..., str]) -> None:
    (repository / ".git" / "HEAD").unlink()
    _assert_refused(_make_bundle(repository), "git ls-files failed: ")


# ---- on the host


class Host:
    """An account on a host: a user without rights elsewhere, an uploaded bundle, and a Python without any package.

    Who uploads is the user that cron runs as, unless told otherwise; files lose the right to be executed, as by FTP.
    """

    def __init__(self, place: Path, bundle: Bundle, python: Sequence[str]) -> None:
        self.home = Path(tempfile.mkdtemp(dir=place))
        self.home.chmod(0o755)
        self.folder = shutil.copytree(bundle.folder, self.home / "taskserver")
        shutil.copy2(self.folder / "tasks.example.py", self.folder / "tasks.py")
        self.python = python
        for path in self.folder.rglob("*"):
            path.chmod(path.stat().st_mode & ~0o111 if path.is_file() else 0o755)

    def make_read_only(self) -> None:
        """All but var/."""
        var = self.folder / "var"
        for path in [self.folder, *self.folder.rglob("*")]:
            if path != var and var not in path.parents:
                path.chmod(path.stat().st_mode & ~0o222)
        own(var, *var.iterdir())

    def write_env(self, **settings: str) -> None:
        path = self.folder / ".env"
        path.write_text("".join(f"{key}='{value}'\n" for key, value in settings.items()))
        path.chmod(0o400)
        own(path)

    def run(self, script: str, *args: object, env: Mapping[str, str] | None = None) -> Run:
        return self.execute([*self.python, str(self.folder / script), *map(str, args)], env=env)

    def execute(self, command: Sequence[str], cwd: str = "/", env: Mapping[str, str] | None = None) -> Run:
        """Runs it as the user: not even HOME and PATH are set."""
        command = [*as_user(), *command]
        return subprocess.run(
            command, cwd=cwd, env=env or {}, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, umask=0o022
        )

    def do_one_task(self, env: Mapping[str, str] | None = None) -> None:
        """From the tables to a task that was done."""
        said = [self.run("client.py", "init", env=env), self.run("client.py", "add", "tasks.greet", ARGS, env=env)]
        said += [self.run("worker.py", 100, env=env), self.run("client.py", "status", env=env)]
        assert [(ended.returncode, ended.stderr) for ended in said] == [(0, "")] * 4
        assert "are ready" in said[0].stdout
        assert said[1].stdout == "1\n"
        assert said[2].stdout == ""
        assert "Hello Ada\n" in (self.folder / "var" / "greetings.txt").read_text()


ARGS = '{"name": "Ada"}'


@pytest.fixture(scope="module")
def python() -> list[str]:
    return [users_python(), *BARE]


@pytest.fixture
def host(place: Path, bundle: Bundle, python: list[str]) -> Host:
    return Host(place, bundle, python)


def test_the_account_is_as_bare_as_these_tests_mean_it(host: Host) -> None:
    host.make_read_only()
    assert "No module named" in host.execute([*host.python, "-c", "import pymysql"]).stderr
    assert "No module named" in host.execute([*host.python, "-c", "import pip"]).stderr
    assert host.execute([*host.python, "-c", "import os; os.environ['HOME']"]).returncode == 1
    new = [*host.python, "-c", "import sys; open(sys.argv[1], 'w')"]
    assert "Permission denied" in host.execute([*new, str(host.folder / "new")]).stderr
    assert host.execute([*new, str(host.folder / "var" / "new")]).returncode == 0


@pytest.mark.parametrize("settings", ["file", "environment"])
@pytest.mark.parametrize("store", ["sqlite", "mysql"])
def test_a_task_is_done_where_only_var_may_be_written(
    host: Host, request: pytest.FixtureRequest, store: str, settings: str
) -> None:
    dsn = request.getfixturevalue("mysql_dsn") if store == "mysql" else "sqlite:///var/taskserver.db"
    if settings == "file":
        host.write_env(TASKSERVER_DSN=dsn)
    host.make_read_only()
    before = _tree(host.folder)
    host.do_one_task({"TASKSERVER_DSN": dsn} if settings == "environment" else None)
    assert (host.folder / "var" / "taskserver.db").exists() == (store == "sqlite")
    assert {name: found for name, found in _tree(host.folder).items() if not name.startswith("var")} == {
        name: found for name, found in before.items() if not name.startswith("var")
    }


def test_a_task_on_postgresql_is_done_by_the_bundle_that_has_its_driver(
    place: Path, full_bundle: Bundle, python: list[str], postgresql_dsn: str
) -> None:
    if not find_library("pq"):
        without(NO_LIBPQ)
    host = Host(place, full_bundle, python)
    host.write_env(TASKSERVER_DSN=postgresql_dsn)
    host.make_read_only()
    host.do_one_task()


def test_it_runs_under_a_python_that_does_not_look_beside_the_script(host: Host) -> None:
    host.python = [host.python[0], "-I", "-S"]
    own_all(host.folder)
    host.do_one_task()


def test_it_runs_with_every_python_at_hand(place: Path, bundle: Bundle) -> None:
    paths = [path for name in VERSIONS if (path := shutil.which(name)) and is_usable(path)]
    if not paths:
        pytest.skip("no python3.10, python3.11, … in PATH that an unprivileged user may run")
    for path in paths:
        host = Host(place, bundle, [path, *BARE])
        own_all(host.folder)
        host.do_one_task()


def test_what_it_says_to_type_first_does_a_task(host: Host) -> None:
    (host.folder / "tasks.py").unlink()
    own_all(host.folder)
    programs = host.home / "bin"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec {" ".join(host.python)} "$@"\n')
    (programs / "python3").chmod(0o755)
    lines = (host.folder / "START-HERE.txt").read_text().splitlines()
    commands = [re.split(r"   +", line.strip())[0] for line in lines if line.startswith("       ")]
    typed = [command for command in commands if re.match("(cp|python3) ", command)]
    assert len(typed) == 5
    env = {"PATH": f"{programs}:{os.defpath}"}
    ended = host.execute(["/bin/sh", "-ec", "\n".join(typed)], cwd=str(host.folder), env=env)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Hello Ada\n" in (host.folder / "var" / "greetings.txt").read_text()


def test_a_schedule_has_its_times_from_a_cron_expression(host: Host) -> None:
    own_all(host.folder)
    assert host.run("client.py", "init").returncode == 0
    made = host.run("client.py", "schedule", "nightly", "tasks.greet", ARGS, "--cron", "30 3 * * *")
    assert (made.returncode, made.stderr) == (0, "")
    assert "03:30" in made.stdout + host.run("client.py", "status").stdout


def test_the_bundle_with_the_metrics_prints_them(place: Path, full_bundle: Bundle, python: list[str]) -> None:
    host = Host(place, full_bundle, python)
    own_all(host.folder)
    assert host.run("client.py", "init").returncode == 0
    printed = host.run("client.py", "metrics")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert "# TYPE taskserver_" in printed.stdout


def test_a_new_version_leaves_the_owners_files_alone(host: Host, bundle: Bundle) -> None:
    own_all(host.folder)
    host.do_one_task()
    rights = [stat.S_IMODE((host.folder / name).stat().st_mode) for name in ("var", ".env")]
    assert rights == [0o700, 0o600]  # which the upload had left open to others
    mine = {name: (host.folder / name).read_bytes() for name in (".env", "tasks.py", "var/taskserver.db")}
    with zipfile.ZipFile(bundle.archive) as archive:
        assert not {f"{NAME}/{name}" for name in mine} & set(archive.namelist())
    shutil.copytree(bundle.folder, host.folder, dirs_exist_ok=True)
    assert {name: (host.folder / name).read_bytes() for name in mine} == mine
