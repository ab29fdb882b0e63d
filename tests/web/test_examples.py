"""The examples that add tasks over HTTP, each run as it stands, against the page under gunicorn; and curl's line."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.deployment import ROOT
from tests.support.documents import blocks
from tests.support.pages import PageSite
from tests.support.processes import WAIT_SECONDS
from tests.support.servers import find_program, without
from tests.support.websites import example, gunicorn_website

TOKEN = "a-token-of-256-bits"
SERVED = "from taskserver.web import application_of\n\napplication = application_of({!r})\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageSite]:
    folder, digest = tmp_path_factory.mktemp("site"), hashlib.sha256(TOKEN.encode()).hexdigest()
    found = PageSite(folder, f"sqlite:///{folder}/taskserver.db")
    found.set(TASKSERVER_ADD_TOKENS=f"shop;sha256={digest};tasks=tasks.send_letter;groups=3")
    yield found
    found.close()


@pytest.fixture(scope="module")
def url(site: PageSite) -> Iterator[str]:
    (site.folder / "served.py").write_text(SERVED.format(str(site.folder)))
    with gunicorn_website(site.folder, "served", env={"PYTHONPATH": str(ROOT)}) as website:
        yield f"{website.url}/queue/tasks"


def edited(name: str, folder: Path, url: str) -> Path:
    path = example(f"http/{name}", folder, {"https://your-site.example/queue/tasks": url, "the-token": TOKEN})
    path.chmod(0o755)
    return path


def run(command: Sequence[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], **(env or {})}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WAIT_SECONDS)


def assert_adds_once_and_says_what_is_refused(site: PageSite, good: Sequence[str], bad: Sequence[str]) -> None:
    site.sql("DELETE FROM jobs_queue")
    said = [run(good) for _ in range(2)]
    assert [(one.returncode, one.stderr) for one in said] == [(0, "")] * 2, said
    assert len({one.stdout for one in said}) == 1
    rows = site.sql("SELECT task, args, group_id FROM jobs_queue")
    assert [(task, json.loads(args), group) for task, args, group in rows] == [
        ("tasks.send_letter", {"to": "ä@example.org"}, 3)
    ]
    refused = run(bad)
    assert refused.returncode != 0
    assert "may not add" in refused.stdout + refused.stderr


def test_a_php_page_adds_by_curl(site: PageSite, url: str, php: str, tmp_path: Path) -> None:
    if run([php, "-r", 'exit(extension_loaded("curl") ? 0 : 1);']).returncode:
        without("PHP's curl is not installed")
    code = f"require '{edited('add_task.php', tmp_path, url)}'; echo implode(',', add_task_over_http"
    call = f"{code}('tasks.send_letter', ['to' => 'ä@example.org'], 3, 'php'));"
    good = [php, "-d", "display_errors=stderr", "-r", call]
    assert_adds_once_and_says_what_is_refused(site, good, [php, "-r", f"{code}('tasks.other', [], 3));"])


def test_a_server_in_javascript_adds(site: PageSite, url: str, tmp_path: Path) -> None:
    node = find_program("node") or without("node is not installed")
    module = edited("add_task.mjs", tmp_path, url)
    code = f'import {{ addTask }} from "{module}"; console.log(String(await addTask'
    start = [node, "--input-type=module", "-e"]
    good = [*start, f'{code}("tasks.send_letter", {{ to: "ä@example.org" }}, {{ groupId: 3, key: "js" }})));']
    bad = [*start, f'{code}("tasks.other", {{}}, {{ groupId: 3 }})));']
    assert_adds_once_and_says_what_is_refused(site, good, bad)


def test_a_shell_script_adds(site: PageSite, url: str, tmp_path: Path) -> None:
    if find_program("curl") is None:
        without("curl is not installed")
    script = str(edited("add_task.sh", tmp_path, url))
    good = [script, "tasks.send_letter", '{"to": "ä@example.org"}', "3", "sh"]
    assert_adds_once_and_says_what_is_refused(site, good, [script, "tasks.other", "{}", "3"])


def test_the_line_of_the_document_adds(url: str) -> None:
    (line,) = [block.text for block in blocks("docs/page.md") if block.text.startswith("curl")]
    done = run(["sh", "-c", re.sub(r"https://\S+", url, line)], {"TOKEN": TOKEN})
    assert (done.returncode, [*json.loads(done.stdout)]) == (0, ["ids"]), done.stderr
