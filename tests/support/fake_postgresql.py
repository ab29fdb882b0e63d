"""A server that speaks PostgreSQL's protocol and lets everybody in; a test says how it answers."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence

from tests.support.listener import Listener

NUMBER, NUMERIC, INSTANT, TEXT = 20, 1700, 1184, 25
"""Types of columns, by the server's numbers."""
READY = b"Z\0\0\0\x05I"
PARAMETERS = {"server_version": "15.0", "client_encoding": "UTF8", "standard_conforming_strings": "on"}


def message(kind: bytes, content: bytes = b"") -> bytes:
    return kind + struct.pack("!I", len(content) + 4) + content


def result(columns: Sequence[bytes], rows: Sequence[Sequence[bytes | None]]) -> bytes:
    """The answer with rows of texts; `columns` are descriptions as `column` makes them."""
    described = message(b"T", struct.pack("!H", len(columns)) + b"".join(columns))
    return described + b"".join(map(row_of, rows)) + message(b"C", b"SELECT 1\0")


def column(kind: int = TEXT, name: bytes = b"v") -> bytes:
    """The description of a column of a result."""
    return name + b"\0" + struct.pack("!IHIhih", 0, 0, kind, -1, -1, 0)


def row_of(values: Sequence[bytes | None]) -> bytes:
    sent = (struct.pack("!i", -1) if value is None else struct.pack("!I", len(value)) + value for value in values)
    return message(b"D", struct.pack("!H", len(values)) + b"".join(sent))


class Peer:
    """A visitor's connection, by messages."""

    def __init__(self, visitor: socket.socket) -> None:
        self.socket = visitor

    def send(self, sent: bytes) -> None:
        self.socket.sendall(sent)

    def meet(self) -> None:
        """Hear who comes; refuse TLS."""
        while len(self._content()) == 4:  # it asks for TLS
            self.send(b"N")

    def greet(self) -> None:
        """Meet a visitor, and let it in without a password."""
        self.meet()
        told = [message(b"S", f"{name}\0{value}\0".encode()) for name, value in PARAMETERS.items()]
        self.send(message(b"R", bytes(4)) + b"".join(told) + message(b"K", bytes(8)) + READY)

    def ask(self) -> bytes:
        """The next statement, once all that belongs to it has come."""
        text = b""
        while True:
            kind = self._exactly(1)
            content = self._content()
            if kind == b"X":
                raise OSError("the client hung up")
            if kind == b"P":
                text = content.split(b"\0")[1]
            if kind == b"Q":
                return content.rstrip(b"\0")
            if kind == b"S":
                return text

    def _content(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big") - 4)

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            more = self.socket.recv(size - len(received))
            if not more:
                raise OSError("the client hung up")
            received += more
        return received


class FakePostgreSQL(Listener[Peer]):
    """A listener whose visitors speak PostgreSQL's protocol."""

    def __init__(self, talk: Callable[[Peer], None]) -> None:
        super().__init__(talk, Peer, "postgresql")


def answering(answer: Callable[[Peer, bytes], None]) -> Callable[[Peer], None]:
    """A talk that lets everybody in, takes each setting, and has `answer` answer each other statement."""

    def talk(peer: Peer) -> None:
        peer.greet()
        while True:
            statement = peer.ask()
            begun = message(b"1") + message(b"2")
            if b"set_config" in statement:
                peer.send(begun + result([column()], [[b"UTC"]]) + READY)
            else:
                peer.send(begun)
                answer(peer, statement)

    return talk
