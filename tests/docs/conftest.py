"""Fixtures of real work: a mail server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.mail import MailServer, mail_server


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server
