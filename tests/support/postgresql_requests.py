"""What a client of PostgreSQL asks for, read from the bytes that a proxy passes on.

The text of a statement that was prepared travels once, and later only its name. So each connection needs a reader of
its own. A statement counts once the Sync behind it comes: before that the server does not commit what it was asked.
"""

from __future__ import annotations

from typing import NamedTuple

SHORT_HEAD, HEAD = 4, 5
"""Bytes before a message's content: its length, and its kind but for the first one of a connection."""
TLS_WANTED, GSS_WANTED = 80877103, 80877104
"""After these the first message is still to come."""


class Message(NamedTuple):
    kind: bytes
    content: bytes


class Requests:
    """The statements of one connection, in order."""

    def __init__(self) -> None:
        self._unread = b""
        self._has_begun = False
        self._prepared: dict[bytes, bytes] = {}
        self._asked: list[bytes] = []

    def __call__(self, chunk: bytes) -> bytes:
        """The statements whose last byte came with this chunk, each with its bound values as they were sent."""
        self._unread += chunk
        complete: list[bytes] = []
        while (message := self._next()) is not None:
            self._meet(message)
            if message.kind in (b"Q", b"S"):
                complete += self._asked
                self._asked = []
        return b"; ".join(complete)

    def _next(self) -> Message | None:
        size = HEAD if self._has_begun else SHORT_HEAD
        if len(self._unread) < size:
            return None
        end = size - SHORT_HEAD + int.from_bytes(self._unread[size - SHORT_HEAD : size], "big")
        if len(self._unread) < end:
            return None
        kind, content = self._unread[: size - SHORT_HEAD], self._unread[size:end]
        self._unread = self._unread[end:]
        return Message(kind, content)

    def _meet(self, message: Message) -> None:
        if message.kind == b"":
            self._has_begun = int.from_bytes(message.content[:4], "big") not in (TLS_WANTED, GSS_WANTED)
        elif message.kind == b"Q":
            self._asked.append(message.content.rstrip(b"\0"))
        elif message.kind == b"P":
            name, text, *_ = message.content.split(b"\0", 2)
            self._prepared[name] = text
        elif message.kind == b"B":
            _, name, values = message.content.split(b"\0", 2)
            self._asked.append(self._prepared.get(name, b"") + b" -- " + values)
