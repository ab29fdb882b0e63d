"""Fixtures of the documents: a mail server, and a reader who does what they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.support.mail import MailServer, mail_server
from tests.support.queues import Queue
from tests.support.reader import Reader
from tests.support.servers import MySQLServer


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def reader(
    tmp_path: Path, mysql_server: MySQLServer, php: str, mail: MailServer, request: pytest.FixtureRequest
) -> Iterator[Reader]:
    postgresql = partial(request.getfixturevalue, "postgresql_server")
    with closing(Reader(tmp_path, mysql_server, php, postgresql)) as reader:
        reader.mail_port = mail.port
        yield reader


def outcome(queue: Queue, task: str, *args: object) -> object:
    """The result of a task, or the first line of its error."""
    task_id = queue.server.add_task(f"tasks.{task}", args)
    queue.server.run()
    state = queue.server.get(task_id)
    assert state is not None
    return state.error.partition("\n")[0] if state.error else state.result
