"""The status page as hosts serve it: Apache with CGI, Passenger, inside another site, below a path.

On each a visitor signs in, looks, acts and signs out, by plain HTTP and cookies that bear a path.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest

from taskserver import TaskServer
from tests.support.deployment import ROOT, Deployment
from tests.support.documents import read
from tests.support.hosts import copy_of_repository, open_folder, own_all, users_python
from tests.support.pages import PASSWORD, PASSWORD_HASH
from tests.support.processes import WAIT_SECONDS
from tests.support.rows import Rows
from tests.support.websites import MINIMAL, Answer, Visitor, apache_website, example, wsgi_website

ERROR = "ValueError: <script>alert(1)</script> is no address"
ENV = f"TASKSERVER_DSN=sqlite:///var/q.db\nTASKSERVER_PAGE_PASSWORD='{PASSWORD_HASH}'\nTASKSERVER_PAGE_ACTIONS=yes\n"
(WEB,) = re.findall(r"^web = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
INSTALL = f"pip install {WEB.replace(', ', ' ').replace(chr(34), chr(39))}"


def furnish(folder: Path) -> None:
    """The settings of a page, tables, and a task that is fatal."""
    (folder / ".env").write_text(ENV)
    (folder / ".env").chmod(0o600)
    with TaskServer.from_env(folder) as server:
        server.create_tables()
    with closing(Rows(f"sqlite:///{folder}/var/q.db")) as rows:
        rows.execute(f"INSERT INTO jobs_queue (task, status, error_text) VALUES ('tasks.a', 4, '{ERROR}')")


def assert_serves(url: str, path: str) -> None:
    """The page is at this address, and a visitor signs in and acts there."""
    visitor = Visitor(url)
    assert "Password" in visitor.open().text
    shown = visitor.open("?view=sign-in", {"password": PASSWORD})
    assert (shown.status, "1 task failed for good" in shown.text) == (200, True)
    assert {cookie.path for cookie in visitor.cookies} == {path}
    style = re.search(r'href="(\?asset=page\.css[^"]*)"', shown.text)
    assert style
    assert "color-scheme" in visitor.open(style[1].replace("&amp;", "&")).text
    asked = visitor.open("?view=confirm&verb=retry&id=1").text
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]+)"', asked))
    assert "1 task retried" in visitor.open("?view=act", form).text


@pytest.fixture
def folder(deployment: Deployment) -> Path:
    furnish(deployment.folder)
    return deployment.folder


# ---- as its own site


PASSENGER = """
from importlib.machinery import SourceFileLoader
application = SourceFileLoader("passenger_wsgi", {path!r}).load_module().application
"""


def test_passenger_loads_the_page_from_wherever_it_was_started_and_the_host_may_leave_the_whole_path(
    folder: Path, tmp_path: Path
) -> None:
    """As some proxies do: SCRIPT_NAME is empty, and PATH_INFO has the path under which the page is known."""
    shutil.copy(ROOT / "passenger_wsgi.py", folder)
    loader = tmp_path / "elsewhere"
    loader.mkdir()
    (loader / "loader.py").write_text(PASSENGER.format(path=str(folder / "passenger_wsgi.py")))
    with wsgi_website(sys.executable, loader, "loader") as website:
        assert "Password" in Visitor(f"{website.url}/").open().text
        assert_serves(f"{website.url}/staff/queue/", "/")


# ---- below a path

IN_FLASK = """
import sys
sys.path.insert(0, {folder!r})
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from taskserver.web import application_of

site = Flask(__name__)
site.add_url_rule("/", view_func=lambda: "the shop")
application = DispatcherMiddleware(site, {{"/staff/queue": application_of({folder!r})}})
"""


def test_a_site_serves_the_page_below_a_path(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "shop.py").write_text(IN_FLASK.format(folder=str(folder)))
    with wsgi_website(sys.executable, tmp_path / "site", "shop") as website:
        assert_serves(f"{website.url}/staff/queue", "/staff/queue")  # a link without the last stroke
        assert website.visit() == Answer(200, "the shop")


# ---- as a CGI script


@pytest.fixture
def bundle() -> Iterator[Path]:
    """What a user uploads: the unpacked zip of `make bundle ARGS=--web`, in a home that nobody may enter."""
    with open_folder() as home:
        source = copy_of_repository(home / "repository")
        subprocess.run([sys.executable, source / "packaging" / "bundle.py", "--web"], check=True, capture_output=True)
        (archive,) = (source / "dist").glob("*.zip")
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(home)
        (unpacked,) = home.glob("taskserver-*")
        yield unpacked.rename(home / "taskserver")


def cgi_script(folder: Path, public: Path, python: str) -> Path:
    """examples/page.cgi as its user edits it."""
    script = example("page.cgi", public, {"/usr/bin/python3": python, "/home/you/taskserver": str(folder)})
    script.chmod(0o755)
    return script


def test_apache_runs_the_cgi_script_of_an_uploaded_bundle(bundle: Path) -> None:
    furnish(bundle)
    public = bundle.parent / "public_html"
    cgi_script(bundle, public / "cgi-bin", f"{users_python()} -SE")  # it has only the packages of the bundle
    own_all(bundle)
    own_all(public)
    with apache_website(public) as website:
        assert_serves(f"{website.url}/cgi-bin/page.cgi", "/cgi-bin/page.cgi")
        assert "Traceback" not in website.log


LITESPEED = {
    "SERVER_NAME": "shop.example.org",
    "SERVER_PORT": "443",
    "HTTPS": "on",
    "REMOTE_ADDR": "203.0.113.7",
    "REQUEST_METHOD": "POST",
    "SCRIPT_NAME": "/cgi-bin/page.cgi",
    "QUERY_STRING": "view=sign-in",
    "CONTENT_TYPE": "application/x-www-form-urlencoded",
    "LC_ALL": "C",
}


def test_a_cgi_script_gets_by_with_what_litespeed_tells_it(folder: Path, tmp_path: Path) -> None:
    """No PATH_INFO, no PATH, an old locale."""
    script, body = cgi_script(folder, tmp_path, sys.executable), urlencode({"password": PASSWORD}).encode()
    env = {**LITESPEED, "CONTENT_LENGTH": str(len(body))}
    ended = subprocess.run([script], cwd="/", env=env, input=body, capture_output=True, timeout=WAIT_SECONDS)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.startswith(b"Status: 303 SEE OTHER\r\n")
    assert b"\r\nLocation: ?view=overview\r\n" in ended.stdout


# ---- where something is missing

OPEN = """
import runpy, sys
{first}
application = runpy.run_path({path!r})["application"]
answer = []
body = application({{"wsgi.errors": sys.stdout}}, lambda status, headers: answer.append(status))
print(answer[0], b"".join(body).decode())
"""


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (
            "sys.version_info = (3, 6, 15, 'final', 0)",
            "503 Service Unavailable The page needs Python 3.10 or newer, and this is 3.6: choose a newer one in the "
            "host's panel.\n",
        ),
        (
            "sys.modules['jinja2'] = None",
            "503 Service Unavailable The package jinja2 is missing, which the page needs: upload the bundle "
            f"that was made with --web, or {INSTALL} for the Python of this page.\n",
        ),
        (
            "sys.modules['taskserver.web.access'] = None",
            "taskserver: ModuleNotFoundError: import of taskserver.web.access halted; None in sys.modules\n"
            "503 Service Unavailable The program is incomplete: upload the folder again. The web server's error log "
            "and client.py doctor say more.\n",
        ),
    ],
)
def test_what_is_missing_is_named_on_the_page(first: str, said: str) -> None:
    code = OPEN.format(first=first, path=str(ROOT / "passenger_wsgi.py"))
    ended = subprocess.run([sys.executable, "-c", code], cwd="/", env=MINIMAL, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith(f"{said}\n")


def test_an_old_python_can_read_the_script_and_the_document_has_the_line_that_installs() -> None:
    ast.parse((ROOT / "passenger_wsgi.py").read_bytes().decode("ascii"), feature_version=(3, 4))
    assert INSTALL in read("docs/page.md")
