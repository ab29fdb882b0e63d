"""The documents: every block is run, every link leads somewhere, and every name in backticks is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import pytest

import taskserver
from taskserver.cli.terminal.program import Exit
from taskserver.messages.finding import Level
from taskserver.model.task import Status
from taskserver.settings.table import ALL_KEYS
from tests.support.deployment import ROOT
from tests.support.documents import (
    DOCUMENTS,
    REFERENCE,
    Block,
    anchors,
    blocks,
    links,
    prose,
    read,
    sections,
    table,
    words_in_backticks,
)
from tests.support.printed import arguments_of, parsers, parsers_of_client
from tests.support.processes import assert_one_line
from tests.support.queues import Queue
from tests.support.reader import Reader

TUTORIAL = "docs/shared-hosting.md"
UPGRADING = "docs/upgrading.md"
SECURITY = "docs/security.md"
FOLLOWED_ELSEWHERE = (
    *("docs/work/", "docs/php.md", "docs/wordpress.md"),  # test_recipes.py
    "docs/cluster.md",  # tests/faults/test_galera_page.py
    *("docs/django.md", "docs/flask.md", "docs/testing.md"),  # test_frameworks.py, and tests/producers/test_django_*.py
)
NOT_RUN = {
    (TUTORIAL, "/home/you/"): "a picture of folders",
    (TUTORIAL, "py packaging"): "for Windows: as in tests/docs/test_bundle.py",
    (TUTORIAL, "getting PyMySQL"): "what that prints",
    ("docs/installing.md", ".venv/bin/pip install"): "as in tests/docs/test_release.py",
    ("docs/installing.md", "taskserver init"): "as in tests/process/test_installed.py",
    ("docs/installing.md", "*/5 * * * *"): "the same",
    ("docs/logging.md", "import sentry_sdk"): "as in tests/process/test_sentry.py, which runs it",
    ("docs/kinds/exactly_once.md", "import taskserver\nfrom django"): "as in tests/producers/test_django_project.py",
    ("docs/metrics.md", "scrape_configs:"): "settings of Prometheus",
    ("docs/metrics.md", "groups:"): "rules of Prometheus, whose metrics tests/unit/test_metrics.py knows",
    ("docs/page.md", "cd /home/you/taskserver\npython3 client.py page --p"): "as in tests/cli/test_page.py",
    ("docs/page.md", "* * * * * /usr/bin/python3 /home/you/taskserver/client.py page --p"): "the same",
    ("docs/page.md", "TASKSERVER_PAGE_PASSWORD="): "a hash that is cut short",
    ("docs/page.md", "TASKSERVER_PAGE_ACTIONS="): "wants that password: as in tests/web/test_acting.py",
    ("docs/page.md", "TASKSERVER_ADD_TOKENS="): "a hash that is cut short",
    ("docs/page.md", "gunicorn"): "as in tests/web/test_servers.py",
    ("docs/page.md", "WSGIScriptAlias"): "a line of Apache's settings",
    ("docs/page.md", "import sys"): "as in tests/web/test_servers.py",
    ("docs/page.md", "curl"): "as in tests/web/test_examples.py",
}
"""Blocks that are no commands, or cost too much: by document, and how they begin."""


def is_run(block: Block) -> bool:
    return not any(block.document == document and block.text.startswith(begin) for document, begin in NOT_RUN)


# ---- blocks


def test_what_is_not_run_is_still_there() -> None:
    for document, begin in NOT_RUN:
        assert [block.text.startswith(begin) for block in blocks(document)].count(True) == 1, (document, begin)


def follow(reader: Reader, found: Sequence[Block]) -> None:
    for block in filter(is_run, found):
        reader.follow(block)
    reader.assert_that_every_task_ran()


def test_the_tutorial_leads_from_the_upload_to_tasks_that_ran(reader: Reader) -> None:
    reader.make_users()
    reader.extract()
    follow(reader, blocks(TUTORIAL))
    assert (reader.folder / "var" / "greetings.txt").read_text() == "Hello Ada\nHello Grace\n"


FOLLOWED = {
    f"{document} {section}".strip().replace(" ", "-"): found
    for document in DOCUMENTS
    if document != TUTORIAL and not document.startswith(FOLLOWED_ELSEWHERE)
    for section, found in (sections(document) if document in (UPGRADING, SECURITY) else [("", blocks(document))])
    if any(map(is_run, found))
}
"""Whole documents, but for those whose sections make users or move the queue elsewhere."""


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_a_document_says_can_be_done_from_top_to_bottom(reader: Reader, name: str) -> None:
    found = FOLLOWED[name]
    if "CREATE USER" not in "".join(block.text for block in found):
        reader.make_users()
    reader.install()
    if found[0].document == UPGRADING and any("unzip" in block.text for block in found):
        reader.upload()
    for _, section in groupby(found, key=attrgetter("section")):
        reader.empty_queue()
        follow(reader, list(section))


def test_a_rename_of_the_tables_leaves_out_none() -> None:
    (rename,) = [block.text for block in blocks(UPGRADING) if block.text.startswith("RENAME TABLE")]
    made = re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", (ROOT / "schema.sql").read_text(encoding="utf-8"))
    renamed = re.findall(r"(\w+) TO (\w+)", rename)
    assert sorted(old for old, _ in renamed) == sorted(made)
    assert all(new == old.replace("jobs_queue", "letters") for old, new in renamed)


# ---- the first screen


def test_the_first_screen_of_the_readme_is_one_screen() -> None:
    first_screen = read("README.md").partition("\n---\n")[0].splitlines()
    assert len(first_screen) <= 52
    assert max(map(len, first_screen)) <= 120


# ---- links and names


OPTIONS = {
    option for parser in parsers().values() for action in arguments_of(parser) for option in action.option_strings
}
OF_THE_READER = re.compile(
    r"(tasks|tasks\.example|alerts|programs|passenger_wsgi)\.py|(queue|wp-config)\.php|taskserver\.old|"
    r"(START-HERE|var/greetings|\.env|output)\.txt"
)
OF_OTHER_PROGRAMS = re.compile(
    r"--(collector|exec|help|metrics|no-tablespaces|only|postgresql|single-transaction|target|threads|web)"
)
TARGETS = set(re.findall(r"^([a-z.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FILE = re.compile(r"[\w./-]+\.(py|md|sql|php|example|toml|txt)")


def faults_of(word: str) -> Iterator[str]:
    """What a word in backticks names that is not there."""
    for key in re.findall(r"\bTASKSERVER_[A-Z_]+\b", word):
        if key not in ALL_KEYS and key != "TASKSERVER_":
            yield f"{key} is no setting"
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", word):
        if option not in OPTIONS and not OF_OTHER_PROGRAMS.fullmatch(option):
            yield f"{option} is no option"
    if FILE.fullmatch(word) and not word.startswith("/home/you/") and not _is_file(word):
        yield f"{word} is no file"
    command = re.match(r"(?:\S+ )?(?:\S*/)?client\.py ([a-z]+)", word)
    if command and command[1] not in parsers_of_client():
        yield f"client.py has no {command[1]}"
    target = re.match(r"make ([a-z.-]+)", word)
    if target and target[1] not in TARGETS:
        yield f"make has no {target[1]}"
    name = re.fullmatch(r"@?taskserver\.(\w+)(\(.*)?", word)
    if name and not hasattr(taskserver, name[1]) and not _is_file(word) and not _is_file(f"taskserver/{name[1]}"):
        yield f"taskserver has no {name[1]}"


def _is_file(word: str) -> bool:
    folders = ("taskserver", "examples", "tests")
    is_ours = (ROOT / word).exists() or any(any(ROOT.glob(f"{folder}/**/{word}")) for folder in folders)
    return is_ours or bool(OF_THE_READER.fullmatch(word))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_and_each_name_in_backticks_leads_to_what_is_there(document: str) -> None:
    for link in links(document):
        assert "://" not in link, link
        target, _, anchor = link.partition("#")
        path = (ROOT / document).parent / target if target else ROOT / document
        assert path.exists(), f"{document} links to {link}"
        assert not anchor or anchor in anchors(path), f"{document} links to {link}"
    assert [fault for word in words_in_backticks(document) for fault in faults_of(word)] == []
    assert all(int(number) in list(Status) for number in re.findall(r"\bstatus (\d)\b", prose(document)))


# ---- what the programs print


def test_the_reference_has_what_status_and_doctor_print_as_json(sqlite_queue: Queue) -> None:
    status = json.loads(sqlite_queue.client("status", "--json").stdout)
    health = json.loads(sqlite_queue.client("doctor", "--json").stdout)
    said = {name: re.findall("`([a-z_]+)`", cell) for name, (cell,) in table(REFERENCE, "JSON of", "has").items()}
    found = (said["status"], said["doctor"], said["each of `findings`"])
    assert found == (list(status), list(health), list(health["findings"][0]))
    assert all(f"`{level}`" in prose(REFERENCE) for level in Level)


@pytest.mark.parametrize(("program", "change"), [("newer", -1), ("older", 1)])
def test_a_worker_says_of_tables_of_another_version_what_the_document_says(
    sqlite_queue: Queue, program: str, change: int
) -> None:
    sqlite_queue.sql("UPDATE jobs_queue_schema SET version = version + ?", change)
    ended = sqlite_queue.worker()
    _, said = table(UPGRADING, "program", "tables")[program]
    assert_one_line(ended, Exit.DATABASE)
    heard = ended.stderr.partition(": ")[2].strip().removesuffix(" (said once an hour)")
    assert re.sub(r"\d+", "…", said) == re.sub(r"\d+", "…", heard)
