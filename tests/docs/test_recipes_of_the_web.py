"""The web service of docs/work/recipes.md, against a real server; docs/php.md and docs/wordpress.md, with real PHP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from taskserver import Status
from tests.docs.conftest import outcome
from tests.support.documents import PHP, RECIPES, WORDPRESS, blocks, home, paste
from tests.support.mail import Sendmail
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.websites import WordPress

# ---- a web service: when it is asked again, and that it charges once


class Answer(NamedTuple):
    """What the service sends; with code 0 it breaks the connection instead."""

    code: int
    text: str = ""
    head: Mapping[str, str] = {}


class Service(ThreadingHTTPServer):
    """One that takes payments, each key once, and answers as a test says."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.payments: dict[str, int] = {}
        self.answers: list[Answer] = []
        """The next ones; without one a payment is answered well."""


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        service, key = self.server, self.headers["Idempotency-Key"]
        values = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        service.asked.append({"values": values, "key": key, "token": self.headers["Authorization"]})
        answer = service.answers.pop(0) if service.answers else Answer(200)
        if answer.code in (0, 200):
            service.payments.setdefault(key, len(service.payments) + 1)
        if not answer.code:
            return
        self.send_response(answer.code)
        for name, value in answer.head.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write((answer.text or json.dumps({"payment": service.payments.get(key)})).encode())

    def log_message(self, *words: object) -> None:
        """It has nothing to say."""


@pytest.fixture
def service(sqlite_queue: Queue) -> Iterator[Service]:
    with Service() as service:
        threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True).start()
        env = {"TASKSERVER_DSN": sqlite_queue.dsn, "TASKSERVER_MODE": "mark", "PAY_TOKEN": "secret $token"}
        sqlite_queue.deployment.write_env(**env)
        edits = {
            "https://pay.example.org": f"http://127.0.0.1:{service.server_port}",
            "/home/you/taskserver": str(sqlite_queue.folder),
        }
        paste(sqlite_queue, f"{RECIPES}#A web service", edits)
        yield service
        service.shutdown()


def charge(queue: Queue, order: int = 17) -> None:
    queue.server.add_task("tasks.charge", {"order": order, "cents": 1250})
    queue.server.run()


def test_the_answer_of_a_service_is_the_result(sqlite_queue: Queue, service: Service) -> None:
    charge(sqlite_queue)
    assert sqlite_queue.rows("status, result") == [(Status.DONE, '{"payment":1}')]
    values = {"order": 17, "cents": 1250}
    assert service.asked == [{"values": values, "key": "order 17", "token": "Bearer secret $token"}]


def test_a_payment_whose_answer_was_lost_is_not_made_twice(sqlite_queue: Queue, service: Service) -> None:
    service.answers = [Answer(0)]
    charge(sqlite_queue)
    assert sqlite_queue.statuses() == [Status.ERROR]
    sqlite_queue.end_backoffs()
    sqlite_queue.server.run()
    charge(sqlite_queue)
    charge(sqlite_queue, order=18)
    assert [asked["key"] for asked in service.asked] == ["order 17", "order 17", "order 17", "order 18"]
    assert service.payments == {"order 17": 1, "order 18": 2}
    assert sqlite_queue.statuses() == [Status.DONE] * 3


def in_ninety_seconds() -> str:
    return format_datetime(datetime.now(timezone.utc) + timedelta(seconds=90), usegmt=True)


@pytest.mark.parametrize(
    ("code", "retry_after", "seconds"),
    [
        (429, "7", (5, 7)),
        (503, in_ninety_seconds, (80, 90)),
        (429, "-5", (55, 66)),
        (503, "9999999", (3500, 3600)),
        (500, "soon", (55, 66)),
    ],
)
def test_a_busy_service_is_asked_again_when_it_says_so_or_after_the_backoff(
    sqlite_queue: Queue, service: Service, code: int, retry_after: Any, seconds: tuple[float, float]
) -> None:
    head = {"Retry-After": retry_after() if callable(retry_after) else retry_after}
    service.answers = [Answer(code, "busy", head)]
    charge(sqlite_queue)
    assert sqlite_queue.statuses() == [Status.ERROR]
    assert sqlite_queue.first_lines()[0].startswith(f"Retry: {code} ")
    (ahead,) = sqlite_queue.seconds_ahead()
    assert seconds[0] <= ahead <= seconds[1]


def test_a_request_that_is_refused_is_fatal_with_the_services_words(sqlite_queue: Queue, service: Service) -> None:
    service.answers = [Answer(402, json.dumps({"error": "the card has expired"}) + "x" * 1000)]
    charge(sqlite_queue)
    assert sqlite_queue.statuses() == [Status.FATAL]
    assert "the card has expired" in sqlite_queue.first_lines()[0]
    assert "token" not in sqlite_queue.errors()[0]


# ---- PHP, the real wp_mail, and what WP-CLI and Artisan get for arguments


@pytest.fixture
def queue(sqlite_queue: Queue, php: str) -> Queue:
    """Of a site whose /home/you has the page's scripts."""
    for block in blocks(PHP) + blocks(WORDPRESS):
        if "STDIN" in block.text:
            write(sqlite_queue, block.text.splitlines()[1].removeprefix("// /home/you/"), block.text)
    paste(sqlite_queue, PHP, {"/usr/bin/php": php})
    sqlite_queue.deployment.write_env(TASKSERVER_DSN=sqlite_queue.dsn, TASKSERVER_MODE="mark")
    return sqlite_queue


def write(queue: Queue, name: str, text: str) -> None:
    path = home(queue) / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text.replace("/home/you", str(home(queue))), encoding="utf-8")


# ---- a script


def test_a_script_gives_its_answer_as_json_or_its_error_is_the_task_s(queue: Queue) -> None:
    assert outcome(queue, "make_invoice", 17) == {"file": "invoice-17.pdf"}
    error = str(outcome(queue, "make_invoice", 0))
    assert error.startswith("RuntimeError: ")
    assert "ended with code 255: Fatal error: Uncaught InvalidArgumentException: there is no order 0" in error
    write(queue, "scripts/invoice.php", "<?php echo $nothing; echo json_encode(['file' => 'a']);")
    assert outcome(queue, "make_invoice", 17) == {"file": "a"}  # a warning spoils no answer
    write(queue, "scripts/invoice.php", "<?php fwrite(STDERR, 'no such order'); exit(3);")
    assert "ended with code 3: no such order" in str(outcome(queue, "make_invoice", 17))


# ---- WordPress


def test_wp_mail_sends_a_letter_or_says_why_not(
    queue: Queue, php: str, tmp_path: Path, mysql_server: MySQLServer, mysql_dsn: str
) -> None:
    site, sendmail = home(queue) / "public_html", Sendmail(tmp_path / "sbin")
    site.mkdir()
    place = {name: getattr(mysql_server, name) for name in ("host", "port", "user", "password")}
    WordPress(site, php, place | {"database": mysql_dsn.rpartition("/")[2]})
    edits = {"/usr/bin/php": php, '"log_errors=0"': f'"log_errors=0", "-d", "sendmail_path={sendmail.program} -t -i"'}
    paste(queue, WORDPRESS, edits)
    assert outcome(queue, "wp_mail", "ada@example.org", "Grüße 🎉", "Liebe Ada,\nalles Gute.") is None
    assert sendmail.letter["To"] == "ada@example.org"
    assert sendmail.letter["Subject"] == "Grüße 🎉"
    assert sendmail.letter.get_content().split("\r\n")[:2] == ["Liebe Ada,", "alles Gute."]
    sendmail.refuse(75)
    error = outcome(queue, "wp_mail", "ada@example.org", "Hello", "Again.")
    assert "ended with code 1: " in str(error)
    assert "Could not instantiate mail function." in str(error)
    assert queue.statuses() == [Status.DONE, Status.ERROR]


# ---- WP-CLI and Artisan

SCRIPT = """<?php
if (in_array('404', $argv)) {
    fwrite(STDERR, "Error: Invalid post ID.\\n");
    exit(1);
}
file_put_contents(__DIR__ . '/called', json_encode(array_slice($argv, 1)));
"""
"""Stands for WP-CLI and for Artisan."""


def test_wp_cli_gets_numbers_alone_and_its_error_is_the_tasks(queue: Queue, php: str) -> None:
    write(queue, "bin/wp", SCRIPT)
    paste(queue, WORDPRESS, {"/usr/bin/php": php})
    assert outcome(queue, "publish_post", 17) is None
    path = f"--path={home(queue)}/public_html"
    called = home(queue) / "bin" / "called"
    assert json.loads(called.read_text()) == [path, "--no-color", "post", "update", "17", "--post_status=publish"]
    assert str(outcome(queue, "publish_post", 404)).endswith("ended with code 1: Error: Invalid post ID.")
    called.unlink()
    assert str(outcome(queue, "publish_post", "--exec=phpinfo();")).startswith("ValueError")
    assert not called.exists()


def test_artisan_takes_whatever_a_row_says_as_an_argument(queue: Queue) -> None:
    write(queue, "shop/artisan", SCRIPT)
    assert outcome(queue, "send_report", "--month=7", 5) == ""
    called = json.loads((home(queue) / "shop" / "called").read_text())
    assert called == ["--no-interaction", "--no-ansi", "report:send", "--month=5", "--", "--month=7"]
