"""The web servers of the tests: each serves a page as such servers do on hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import open_folder, own_all, users_python
from tests.support.servers import NOBODY
from tests.support.websites import Answer, apache_website, gunicorn_website

HELLO_WSGI = """
import os


def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.environ['GREETING']} {environ['PATH_INFO']}".encode()]
"""


def test_gunicorn_serves_a_module_in_several_processes(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "hello.py").write_text(HELLO_WSGI)
    with gunicorn_website(folder, "hello", workers=2, env={"GREETING": "Hello"}) as website:
        assert website.visit("Ada") == Answer(200, "Hello /Ada")
        assert website.log.count("Booting worker") == 2
    with pytest.raises(OSError, match="refused"):
        website.visit()


def test_a_module_that_gunicorn_cannot_import_is_told(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    with (
        pytest.raises(AssertionError, match="No module named 'missing'"),
        gunicorn_website(tmp_path / "site", "missing"),
    ):
        pass


HELLO_CGI = """#!{python}
import os, sys
form = sys.stdin.read()
print("Status: 201 Created\\r\\nContent-Type: text/plain\\r\\n\\r")
print(os.getuid(), os.environ["REQUEST_METHOD"], os.environ.get("PATH_INFO"), form)
print("a complaint", file=sys.stderr)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


def test_apache_runs_cgi_scripts_as_a_user_without_rights(place: Path) -> None:
    script = place / "hello.cgi"
    script.write_text(HELLO_CGI.format(python=users_python()))
    script.chmod(0o755)
    (place / "a.html").write_text("<p>a page")
    own_all(place)
    user = os.getuid() or NOBODY
    with apache_website(place) as website:
        assert website.visit("hello.cgi/more") == Answer(201, f"{user} GET /more \n")
        assert website.visit("hello.cgi", {"a": "b"}) == Answer(201, f"{user} POST None a=b\n")
        assert website.visit("a.html") == Answer(200, "<p>a page")
        assert website.visit("missing.cgi").status == 404
        assert "a complaint" in website.log
        (place / ".htaccess").write_text("Require all denied\n")
        assert website.visit("a.html").status == 403


def test_apache_is_not_given_a_folder_that_its_user_cannot_enter(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(AssertionError, match="open_folder"), apache_website(tmp_path):
        pass
