"""docs/work/letters.md: real letters, to a real mail server and a program sendmail."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from taskserver import Status
from tests.support.documents import LETTERS, home, paste
from tests.support.mail import MailServer, Sendmail, mail_server
from tests.support.queues import Queue
from tests.support.servers import made_certificates

ADA = {
    "to": "ada@example.org",
    "subject": "Grüße 🎉",
    "text": "Liebe Ada,\nalles Gute.\n",
    "name": "Ada Müller, née B.",
}
OF_ALL_LETTERS = slice(3)
"""The page's blocks, but for the account and sendmail."""


@pytest.fixture
def office(sqlite_queue: Queue, mail: MailServer) -> Queue:
    paste(sqlite_queue, LETTERS, to_port(mail.port), OF_ALL_LETTERS)
    return sqlite_queue


def to_port(port: int) -> dict[str, str]:
    return {'SMTP("localhost"': f'SMTP("127.0.0.1", {port}'}


def send(queue: Queue, task: str = "tasks.send_letter", **args: str | None) -> None:
    queue.add(task, json.dumps(args))
    queue.server.run()


# ---- one letter


def test_a_letter_arrives_as_it_was_written(office: Queue, mail: MailServer) -> None:
    send(office, **ADA)
    (letter,) = mail.letters
    assert (letter.sender, letter.recipients) == ("shop@example.org", ["ada@example.org"])
    assert letter.text == ADA["text"]
    assert letter.message["Subject"] == ADA["subject"]
    assert letter.message["To"].addresses[0].display_name == ADA["name"]
    assert letter.message["From"] == "Ada's shop <shop@example.org>"
    assert letter.message["Date"].datetime.tzinfo is not None
    assert office.rows() == []


@pytest.mark.parametrize(
    ("recipient", "data", "status", "error"),
    [
        ("550 no such user", "", Status.FATAL, "Fatal: 550 no such user"),
        ("250 ok", "554 spam", Status.FATAL, "Fatal: 554 spam"),
        ("250 ok", "452 no room", Status.ERROR, "Retry: 452 no room"),
    ],
)
def test_a_refusal_for_good_is_fatal_at_once_and_another_is_tried_again(
    office: Queue, mail: MailServer, recipient: str, data: str, status: Status, error: str
) -> None:
    mail.to_recipient = lambda address: recipient
    mail.to_data = lambda letter: data
    send(office, **ADA)
    assert office.rows("status, attempts") == [(status, 1)]
    assert office.first_lines() == [error]


@pytest.mark.parametrize(
    "wrong",
    [
        {"subject": "Hello\nBcc: b@example.org"},
        {"name": "Ada\r\nBcc: b@example.org"},
        {"to": "ada@example.org, b@example.org"},
        {"to": ""},
        {"text": None},
    ],
)
def test_a_row_of_which_no_letter_can_be_made_is_fatal_and_adds_no_line_and_no_address(
    office: Queue, mail: MailServer, wrong: dict[str, str | None]
) -> None:
    send(office, "tasks.send_letter", **(ADA | wrong))
    assert office.statuses() == [Status.FATAL]
    is_to = any(isinstance(wrong.get(key), str) for key in ("to", "name"))
    what = "invalid `to` or `name`" if is_to else "invalid letter"
    assert office.first_lines()[0].startswith(f"Fatal: {what}: ")
    assert mail.connections == 0


def test_a_letter_that_goes_out_twice_has_one_id_and_no_other_letter_has_it(office: Queue, mail: MailServer) -> None:
    mail.to_data = lambda letter: "" if len(mail.letters) == 1 else "250 taken"
    for to in ("ada@example.org", "ada@example.org", "b@example.org"):
        send(office, **(ADA | {"to": to}))
    office.end_backoffs()
    office.server.run()
    assert office.rows() == []
    first, other, stranger, again = [str(letter.message["Message-ID"]) for letter in mail.letters]
    assert first == again
    assert len({first, other, stranger}) == 3
    assert re.fullmatch(r"<[0-9a-f]{32}@example\.org>", first)


# ---- HTML, and a file


def test_a_letter_has_its_text_its_html_and_its_file(office: Queue, mail: MailServer) -> None:
    (home(office) / "invoices").mkdir()
    pdf = b"%PDF-1.4\r\n\x00\xff\n.\nFrom here\n" * 100
    (home(office) / "invoices" / "Größe 7.pdf").write_bytes(pdf)
    send(office, "tasks.send_invoice", to="ada@example.org", name="<Ä> & Co", file="Größe 7.pdf")
    (letter,) = mail.letters
    text, html, file = [part for part in letter.message.walk() if not part.is_multipart()]
    assert text.get_content() == "Dear <Ä> & Co,\n\nyour invoice is attached.\n"
    assert html.get_content() == "<p>Dear &lt;Ä&gt; &amp; Co,</p>\n<p>your invoice is attached.</p>\n"
    assert (file.get_content(), file.get_filename()) == (pdf, "Größe 7.pdf")
    assert [part.get_content_type() for part in (text, html, file)] == ["text/plain", "text/html", "application/pdf"]
    assert letter.message.get_body(("html",)) is html


@pytest.mark.parametrize("file", ["../secret.pdf", "link.pdf"])
def test_a_row_names_no_file_outside_of_the_folder(office: Queue, mail: MailServer, file: str) -> None:
    invoices = home(office) / "invoices"
    invoices.mkdir()
    (home(office) / "secret.pdf").touch()
    (invoices / "link.pdf").symlink_to(home(office) / "secret.pdf")
    send(office, "tasks.send_invoice", to="ada@example.org", name="Ada", file=file)
    assert office.statuses() == [Status.FATAL]
    assert "is not a file in" in office.first_lines()[0]
    assert mail.letters == []


# ---- many letters


def add_letters(queue: Queue, count: int, **others: str) -> None:
    tasks = [{"task": "tasks.send_letters", "args": {**ADA, "to": f"{n}@example.org", **others}} for n in range(count)]
    queue.server.add_tasks(tasks)
    queue.server.run()


def test_twenty_letters_go_over_one_connection_and_a_refused_one_stops_no_other(
    office: Queue, mail: MailServer
) -> None:
    mail.to_recipient = lambda address: "550 no such user" if address == "7@example.org" else "250 ok"
    add_letters(office, 20)
    assert mail.connections == 1
    assert [letter.recipients for letter in mail.letters] == [[f"{n}@example.org"] for n in range(20) if n != 7]
    assert len({letter.message["Message-ID"] for letter in mail.letters}) == 19
    assert office.first_lines() == ["Fatal: 550 no such user"]


def test_a_connection_that_breaks_sends_no_letter_of_its_batch_again(office: Queue, mail: MailServer) -> None:
    mail.to_data = lambda letter: "" if len(mail.letters) == 3 else "250 taken"
    add_letters(office, 5)
    assert [letter.recipients for letter in mail.letters] == [["0@example.org"], ["1@example.org"], ["2@example.org"]]
    assert office.rows("status, attempts") == [(Status.ERROR, 1)] * 3


# ---- an account, or sendmail


@pytest.mark.filterwarnings("ignore:Requiring AUTH")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
@pytest.mark.parametrize("is_trusted", [True, False])
def test_an_account_sends_over_verified_tls(
    sqlite_queue: Queue, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    sqlite_queue.deployment.write_env("SMTP_PASSWORD='pass ${x}\\''\n", TASKSERVER_DSN=sqlite_queue.dsn)
    with made_certificates() as made, mail_server(made.server_context(), "pass ${x}'") as mail:
        monkeypatch.setenv("SSL_CERT_FILE", str(made.authority if is_trusted else made.stranger))
        edits = {
            'SMTP_SSL("mail.example.org", 465': f'SMTP_SSL("127.0.0.1", {mail.port}',
            "/home/you/taskserver": str(sqlite_queue.folder),
        }
        paste(sqlite_queue, LETTERS, edits, slice(4))
        send(sqlite_queue, **ADA)
    assert [letter.recipients for letter in mail.letters] == [["ada@example.org"]] * is_trusted
    assert sqlite_queue.statuses() == [Status.ERROR] * (not is_trusted)
    assert is_trusted or "CERTIFICATE_VERIFY_FAILED" in sqlite_queue.first_lines()[0]


@pytest.fixture
def sendmail(sqlite_queue: Queue, tmp_path: Path) -> Sendmail:
    program = Sendmail(tmp_path / "sbin")
    paste(sqlite_queue, LETTERS, {"/usr/sbin/sendmail": str(program.program)})
    return program


def test_sendmail_gets_the_letter_and_says_by_its_code_whether_to_try_again(
    sqlite_queue: Queue, sendmail: Sendmail
) -> None:
    send(sqlite_queue, **ADA)
    assert sqlite_queue.rows() == []
    assert sendmail.arguments == ["-i", "-f", "shop@example.org", "--", "ada@example.org"]
    assert sendmail.letter["Subject"] == ADA["subject"]
    assert sendmail.letter.get_content() == ADA["text"]
    for code, status in ((67, Status.FATAL), (75, Status.ERROR)):
        sendmail.refuse(code)
        send(sqlite_queue, **ADA)
        assert sqlite_queue.statuses()[-1] == status
        assert f"sendmail ended with code {code}: sendmail: refused" in sqlite_queue.first_lines()[-1]
