"""The bundle, as its user has it: python3 and nothing else, no rights but to var/, started from elsewhere.

It is made from a copy of this repository in which a developer left all sorts of things. As root, its programs run as
nobody. The full bundle is the one with the page, the metrics and PostgreSQL.
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
import zipfile
from collections.abc import Iterator
from ctypes.util import find_library
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.utils import canonicalize_name

from taskserver import __version__
from taskserver.health import files
from taskserver.messages.finding import Level
from tests.support.deployment import ROOT, TIMEOUT_SECONDS
from tests.support.hosts import BARE, as_user, copy_of_repository, make_venv, open_folder, own, own_all, users_python
from tests.support.servers import without

NAME = f"taskserver-{__version__}"
STRAY = "left behind by a developer"
STRAYS = (
    *(".env", "tasks.py", "tests/test_draft.py", "var/taskserver.db", "taskserver/notes.txt", ".git-credentials"),
    *("taskserver/worker/life.py.orig", "taskserver/__pycache__/draft.cpython-311.pyc", "docs/draft.md"),
)
OPTIONS = ("--web", "--metrics", "--postgresql")
PACKAGES = ["PyMySQL", "python-dotenv", "cronsim"]
ALL_PACKAGES = [
    *(*PACKAGES, "Werkzeug", "Jinja2", "MarkupSafe", "itsdangerous"),
    *("prometheus_client", "psycopg", "typing_extensions"),
]
MAX_FILES = 200
ARGS = '{"name": "Ada"}'
Run = subprocess.CompletedProcess[str]


class Bundle(NamedTuple):
    """What `make bundle` wrote, and from which copy of the repository."""

    source: Path
    folder: Path
    archive: Path

    def files(self) -> dict[str, bytes]:
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in paths}


def bundle_of(source: Path, *options: str, python: str = sys.executable, **environ: str) -> Bundle:
    """Runs the script of a repository, from elsewhere, where pip gets nothing."""
    env = {"PATH": os.defpath, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, **environ}
    command = [python, str(source / "packaging" / "bundle.py"), *options]
    ended = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return Bundle(source, source / "dist" / NAME, source / "dist" / f"{NAME}{''.join(options).replace('--', '-')}.zip")


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
    return bundle_of(source)


@pytest.fixture(scope="module")
def full_bundle(place: Path) -> Bundle:
    return bundle_of(copy_of_repository(place / "full-repository"), *OPTIONS)


# ---- what is in it


def test_it_has_what_a_host_needs_in_at_most_200_files_and_nothing_of_the_developer(
    bundle: Bundle, full_bundle: Bundle
) -> None:
    files = bundle.files()
    needed = {"worker.py", "client.py", "schema.sql", ".htaccess", "var/.htaccess", ".env.example", "crontab.example"}
    needed |= {"LICENSES.txt", "START-HERE.txt", "FILES.txt", "tasks.example.py"}
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "taskserver").rglob("*.py")]
    needed |= {name for name in modules if not re.match(r"taskserver/(testing/|web/(?!__init__))", name)}
    assert needed <= set(files)
    assert len(files) <= MAX_FILES
    machine = [str(ROOT), str(bundle.source), STRAY]
    for name, content in files.items():
        assert not any(words.encode() in content for words in machine), name
        assert re.search(r"\.(py|php|md|txt|sql|example|htaccess)$|/METADATA$", name), name
    page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "taskserver" / "web").rglob("*.*")}
    page = {name for name in page if ".pyc" not in name} | {"passenger_wsgi.py", "examples/page.cgi", "docs/page.md"}
    assert page <= set(full_bundle.files())


def test_every_link_of_its_documents_leads_to_a_file_in_it(bundle: Bundle, full_bundle: Bundle) -> None:
    for folder in (bundle.folder, full_bundle.folder):
        links = [
            (page.name, target, (page.parent / target).exists())
            for page in folder.glob("docs/*.md")
            for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        ]
        assert links
        assert [link for link in links if not link[2]] == []


def test_the_licence_of_each_package_is_in_it(full_bundle: Bundle) -> None:
    text = (full_bundle.folder / "LICENSES.txt").read_text(encoding="utf-8")
    parts = re.split(r"^---- (\S+) \S+$", text, flags=re.MULTILINE)
    assert sorted(parts[1::2]) == sorted(["taskserver", *ALL_PACKAGES])
    assert all("opyright" in licence for licence in parts[2::2])


IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import taskserver
others = ("taskserver.django", "taskserver.worker.django_tasks", "taskserver.stores.postgresql")
for module in pkgutil.walk_packages(taskserver.__path__, "taskserver."):
    if not module.name.startswith(others):
        importlib.import_module(module.name)
for name in sys.argv[2:]:
    print(importlib.import_module(name.lower().removeprefix("python-")).__file__)
"""


def test_all_that_its_modules_import_is_in_it(bundle: Bundle) -> None:
    command = [sys.executable, *BARE, "-B", "-c", IMPORT_ALL, str(bundle.folder), *PACKAGES]
    ended = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(str(bundle.folder)) == len(PACKAGES)


def test_the_doctor_names_the_files_that_an_upload_did_not_bring_whole(bundle: Bundle, tmp_path: Path) -> None:
    folder = shutil.copytree(bundle.folder, tmp_path / "taskserver")
    (folder / "worker.py").write_bytes((folder / "worker.py").read_bytes().replace(b"\n", b"\r\n"))
    for name in ("crontab.example", "docs/security.md"):
        (folder / name).write_text("of the owner")
    assert files.whole(folder).level is Level.OK
    (folder / "pymysql" / "connections.py").write_bytes(b"")
    (folder / "taskserver" / "server.py").unlink()
    finding = files.whole(folder)
    assert finding.level is Level.CRITICAL
    assert finding.words.endswith(f"in {folder}: pymysql/connections.py, taskserver/server.py")


def test_the_zip_is_the_folder_and_only_programs_may_be_executed(full_bundle: Bundle) -> None:
    with zipfile.ZipFile(full_bundle.archive) as archive:
        packed = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
        modes = {entry.filename.partition("/")[2]: entry.external_attr >> 16 for entry in archive.infolist()}
    assert packed == full_bundle.files()
    for name, content in packed.items():
        mode = 0o755 if content.startswith(b"#!") else 0o644
        assert (modes[name] & 0o7777, stat.S_IMODE((full_bundle.folder / name).stat().st_mode)) == (mode, mode), name


def test_a_queue_where_the_bundle_was_made_is_not_deleted(bundle: Bundle, tmp_path: Path) -> None:
    source = shutil.copytree(bundle.source, tmp_path / "repository")
    (source / "dist" / NAME / "var" / "taskserver.db").write_text("mine")
    with pytest.raises(AssertionError, match=r"taskserver\.db is somebody's, and would be lost"):
        bundle_of(source)
    assert (source / "dist" / NAME / "var" / "taskserver.db").read_text() == "mine"


# ---- where its packages are not installed, as on a PC that has Windows


def wheel_of(name: str, folder: Path) -> Path:
    """The file in which an installed package could have come."""
    package = distribution(name)
    path = folder / f"{package.name.replace('-', '_')}-{package.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in package.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                archive.write(str(file.locate()), file.as_posix())
    return path


def test_a_python_without_the_packages_makes_the_same_bytes_and_takes_none_of_another_hash(
    full_bundle: Bundle, tmp_path: Path
) -> None:
    source = shutil.copytree(full_bundle.source, tmp_path / "repository", ignore=shutil.ignore_patterns("dist"))
    lock = (source / "requirements.lock").read_text(encoding="utf-8")
    for name in ALL_PACKAGES:
        wheel = wheel_of(name, tmp_path)
        entry = rf"^({canonicalize_name(name)}==\S+ (?:; .+)?\\\n)(    --hash=\S+( \\)?\n)+"
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lock = re.sub(entry, rf"\1    --hash=sha256:{digest}\n", lock, flags=re.MULTILINE)
    (source / "requirements.lock").write_text(lock, encoding="utf-8")
    bare = {"python": str(make_venv(tmp_path / "venv")), "PIP_FIND_LINKS": str(tmp_path), "LC_ALL": "C"}
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    (site / "sitecustomize.py").write_text(
        "import sys\nfor name in ('fcntl', 'grp', 'pwd'): sys.modules[name] = None\n"
    )
    made = bundle_of(source, *OPTIONS, **bare)
    assert made.files() == full_bundle.files()
    assert made.archive.read_bytes() == full_bundle.archive.read_bytes()
    next(tmp_path.glob("PyMySQL-*")).write_bytes(b"evil")
    with pytest.raises(AssertionError, match="DO NOT MATCH THE HASHES"):
        bundle_of(source, **bare)


# ---- on the host


class Host:
    """An account on a host: a user without rights elsewhere, an uploaded bundle, and a Python without any package."""

    def __init__(self, place: Path, bundle: Bundle) -> None:
        self.home = Path(tempfile.mkdtemp(dir=place))
        self.home.chmod(0o755)
        self.folder = shutil.copytree(bundle.folder, self.home / "taskserver")
        (self.home / "cache").mkdir()
        own(self.home / "cache")
        self.python = [users_python(), *BARE, "-X", f"pycache_prefix={self.home}/cache"]
        for path in self.folder.rglob("*"):
            path.chmod(0o644 if path.is_file() else 0o755)  # as FTP leaves them
        own_all(self.folder)

    def run(self, script: str, *arguments: str) -> Run:
        """Runs a script as the user: not even HOME and PATH are set."""
        return self.execute([*self.python, str(self.folder / script), *arguments])

    def execute(self, command: list[str], cwd: str = "/", **env: str) -> Run:
        command = [*as_user(), *command]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


def test_a_task_is_done_on_postgresql_where_only_var_may_be_written(
    place: Path, full_bundle: Bundle, postgresql_dsn: str
) -> None:
    if not find_library("pq"):
        without("libpq is not installed")
    host = Host(place, full_bundle)
    shutil.copy2(host.folder / "tasks.example.py", host.folder / "tasks.py")
    (host.folder / ".env").write_text(f"TASKSERVER_DSN={postgresql_dsn}\n")
    (host.folder / ".env").chmod(0o400)
    own(host.folder / ".env")
    var = host.folder / "var"
    for path in [host.folder, *host.folder.rglob("*")]:
        if path != var and var not in path.parents:
            path.chmod(path.stat().st_mode & ~0o222)
    new = [*host.python, "-c", "import sys; open(sys.argv[1], 'w')", str(host.folder / "new")]
    assert "Permission denied" in host.execute(new).stderr
    for command in (["client.py", "init"], ["client.py", "add", "tasks.greet", ARGS], ["worker.py", "100"]):
        ended = host.run(*command)
        assert (ended.returncode, ended.stderr) == (0, ""), command
    assert "Hello Ada\n" in (var / "greetings.txt").read_text()


def test_what_it_says_to_type_first_does_a_task_and_makes_files_that_are_the_owner_s(
    place: Path, bundle: Bundle
) -> None:
    host = Host(place, bundle)
    programs = host.home / "bin"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec {" ".join(host.python)} "$@"\n')
    (programs / "python3").chmod(0o755)
    lines = (host.folder / "START-HERE.txt").read_text().splitlines()
    commands = [re.split(r"   +", line.strip())[0] for line in lines if line.startswith("       ")]
    typed = [command for command in commands if re.match("(cp|python3) ", command)]
    assert len(typed) == 5
    ended = host.execute(["/bin/sh", "-ec", "\n".join(typed)], str(host.folder), PATH=f"{programs}:{os.defpath}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Hello Ada\n" in (host.folder / "var" / "greetings.txt").read_text()
    rights = [stat.S_IMODE((host.folder / name).stat().st_mode) for name in ("var", ".env")]
    assert rights == [0o700, 0o600]  # which the upload had left open to others
    # A new version is uploaded over it.
    assert not {".env", "tasks.py", "var/taskserver.db"} & set(bundle.files())


def test_a_cron_expression_and_the_metrics_work_and_the_page_says_which_bundle_has_it(
    place: Path, bundle: Bundle, full_bundle: Bundle
) -> None:
    plain, full = Host(place, bundle), Host(place, full_bundle)
    for host in (plain, full):
        assert host.run("client.py", "init").returncode == 0
    made = plain.run("client.py", "schedule", "nightly", "tasks.greet", ARGS, "--cron", "30 3 * * *")
    assert (made.returncode, made.stderr) == (0, "")
    assert "# TYPE taskserver_" in full.run("client.py", "metrics").stdout
    assert "</html>" in full.run("client.py", "page").stdout
    refused = plain.run("client.py", "page")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "this bundle does not include the page: upload the one made with --web" in refused.stderr
