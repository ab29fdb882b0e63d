"""client.py page: the page as one file, and hashes of passwords and tokens."""

from __future__ import annotations

import hashlib
import io
import re
import sys
from base64 import b64encode

import pytest
from werkzeug.security import check_password_hash

from taskserver.cli.commands import page as command
from taskserver.settings.page import load_page_settings
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line
from tests.support.queues import Queue

TASKS = "def fail():\n    raise ValueError('<script>alert(1)</script>')\n"
SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "1"}


def test_the_page_is_one_file_that_loads_nothing_else(queue: Queue) -> None:
    queue.add("tasks.fail", group_id=3)
    queue.run_here()
    file = queue.deployment.folder / "page.html"
    ended = queue.here("page", "--output", str(file))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    text = file.read_text()
    assert "1 task failed for good" in text
    assert "ValueError: &lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "What the doctor finds" in text
    assert not re.search(r"(src|href)=\"(?!#)", text)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy.replace("'", "&#39;")
    assert file.stat().st_mode & 0o777 == 0o644


def test_the_page_can_be_printed_and_without_the_doctor(queue: Queue) -> None:
    ended = queue.here("page", "--no-doctor", "--every", "1h")
    assert ended.stdout.startswith("<!doctype html>")
    assert "What the doctor finds" not in ended.stdout
    assert 'data-late="10800"' in ended.stdout


def test_the_page_of_an_outage_shows_no_secret(deployment: Deployment) -> None:
    away = {"TASKSERVER_DSN": "mysql://somebody:secret@127.0.0.1:1/shop"}
    ended = deployment.here("page", "--output", deployment.folder / "page.html", env=away)
    assert ended.returncode == 1
    text = (deployment.folder / "page.html").read_text()
    assert "The database is away" in text
    assert not re.search("somebody|secret", text)


def test_a_missing_package_of_the_page_is_named(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("jinja2", "taskserver.web"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert_one_line(queue.here("page"), 2, "jinja2 is missing, which makes the page: ", "pip install")


# ---- secrets

PASSWORD = "correct horse battery"
PIPED: list[tuple[str, int, str, str]] = [  # what is read, the code, the password, and words on standard error
    (f"\ufeff{PASSWORD}\r\n", 0, PASSWORD, ""),  # as Windows has it
    ("secret\n", 0, "secret", "12 or more"),
    ("c\0o\0r\0r\0", 2, "", "the password has control characters"),  # in another encoding
    ("\n", 2, "", "empty"),
]


def test_a_piped_password_gives_a_hash_that_the_page_takes(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.ITERATIONS >= 600_000
    monkeypatch.setattr(command, "ITERATIONS", 1000)
    for stdin, code, password, words in PIPED:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        ended = deployment.here("page", "--password")
        assert (ended.returncode, bool(ended.stdout), bool(ended.stderr)) == (code, bool(password), bool(words))
        assert words in ended.stderr
        if password:
            (deployment.folder / ".env").write_text(f"TASKSERVER_PAGE_PASSWORD='{ended.stdout.strip()}'\n")
            found = load_page_settings(deployment.folder).password_hash
            assert check_password_hash(found, password)
            assert not check_password_hash(found, f"{password}Y")


def test_a_token_is_printed_once_with_the_line_for_the_settings(deployment: Deployment) -> None:
    told = deployment.here("page", "--token", "shop").stdout
    token, entry = re.findall(r": +(\S+)$", told, re.MULTILINE)
    (deployment.folder / ".env").write_text(f"TASKSERVER_ADD_TOKENS='{entry}'\n")
    (found,) = load_page_settings(deployment.folder).add_tokens
    assert (found.name, found.sha256) == ("shop", hashlib.sha256(token.encode()).hexdigest())
