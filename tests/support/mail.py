"""A mail server on this machine, which keeps what it takes, and refuses what a test says; and a program `sendmail`."""

from __future__ import annotations

import asyncio
import email.policy
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from typing import NamedTuple

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.servers import free_port

TAKEN = "250 taken"


def parsed(content: bytes) -> EmailMessage:
    """A letter as a mail program reads it."""
    letter = BytesParser(EmailMessage, policy=email.policy.default).parsebytes(content)
    assert not letter.defects
    return letter


class Letter(NamedTuple):
    """What the server took."""

    sender: str
    recipients: list[str]
    message: EmailMessage

    @property
    def text(self) -> str:
        """Of a letter that has one part."""
        return str(self.message.get_content())


class MailServer:
    """Its answers to a recipient and to a letter's data; each is asked with the address, or the letter."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.connections = 0
        self.to_recipient: Callable[[str], str] = lambda address: "250 ok"
        self.to_data: Callable[[Letter], str] = lambda letter: TAKEN
        self.port = free_port()

    async def handle_EHLO(  # noqa: N802 - as aiosmtpd calls it
        self, server: SMTP, session: Session, envelope: Envelope, hostname: str, responses: list[str]
    ) -> list[str]:
        self.connections += 1
        session.host_name = hostname
        return responses

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        answer = self.to_recipient(address)
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = bytes(envelope.content or b"")  # type: ignore[arg-type]
        letter = Letter(envelope.mail_from or "", list(envelope.rcpt_tos), parsed(content.replace(b"\r\n", b"\n")))
        self.letters.append(letter)
        answer = self.to_data(letter)
        if not answer:  # the server dies right after it took the letter
            assert isinstance(server.transport, asyncio.Transport)
            server.transport.abort()
        return answer or TAKEN


@contextmanager
def mail_server(tls: ssl.SSLContext | None = None, password: str = "") -> Iterator[MailServer]:
    """In the `with`, one that listens; with a password, only for who logs in as shop@example.org over its TLS."""
    handler = MailServer()

    def may_enter(server: SMTP, session: Session, envelope: Envelope, mechanism: str, given: object) -> AuthResult:
        wanted = LoginPassword(b"shop@example.org", password.encode())
        return AuthResult(success=given == wanted, handled=False)

    controller = Controller(
        handler,
        hostname=handler.host,
        port=handler.port,
        ssl_context=tls,
        authenticator=may_enter,
        auth_required=bool(password),
        auth_require_tls=False,  # its TLS is there from the begin, which it does not count
        enable_SMTPUTF8=True,
    )
    controller.start()
    try:
        yield handler
    finally:
        controller.stop()


SENDMAIL = """#!/bin/sh
folder=$(dirname "$0")
printf '%s\\n' "$*" > "$folder/arguments"
cat > "$folder/letter"
[ ! -f "$folder/code" ] || { echo "sendmail: refused" >&2; exit "$(cat "$folder/code")"; }
"""


class Sendmail:
    """A program that takes letters as the real one does; its exit code is that of a file beside it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.program = folder / "sendmail"
        self.program.write_text(SENDMAIL)
        self.program.chmod(0o755)

    def refuse(self, code: int) -> None:
        (self._folder / "code").write_text(str(code))

    @property
    def arguments(self) -> list[str]:
        return (self._folder / "arguments").read_text().split()

    @property
    def letter(self) -> EmailMessage:
        return parsed((self._folder / "letter").read_bytes())
