"""A server that speaks MySQL's protocol and lets everybody in; a test says how it answers."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Sequence

from tests.support.listener import Listener

SALT = b"12345678abcdefghijkl"
TLS_FLAG = 0x800
CAPABILITIES = 0x00BFF7DF  # all that a client may ask for but TLS and compression
OK = b"\0\0\0\x02\0\0\0"
END_OF_ROWS = b"\xfe\0\0\x02\0"
INTEGER, DECIMAL, DATE, TEXT = 3, 246, 10, 253
"""Types of columns."""


class Peer:
    """A visitor's connection, by packets."""

    def __init__(self, visitor: socket.socket) -> None:
        self.socket = visitor
        self._number = 0

    def send(self, *packets: bytes) -> None:
        self.socket.sendall(self.framed(*packets))

    def framed(self, *packets: bytes) -> bytes:
        """The bytes of the next packets."""
        sent = b""
        for packet in packets:
            sent += struct.pack("<I", len(packet))[:3] + bytes([self._number]) + packet
            self._number = (self._number + 1) % 256
        return sent

    def receive(self) -> bytes:
        head = self._exactly(4)
        self._number = (head[3] + 1) % 256
        return self._exactly(int.from_bytes(head[:3], "little"))

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            more = self.socket.recv(size - len(received))
            if not more:
                raise OSError("the client hung up")
            received += more
        return received

    def greet(self, plugin: str, context: ssl.SSLContext | None = None) -> bytes:
        """Greet, and begin TLS where the client wants it; the client's login."""
        flags = CAPABILITIES | (TLS_FLAG if context else 0)
        greeting = b"\x0a8.0.36\0" + struct.pack("<I", 7) + SALT[:8] + b"\0" + struct.pack("<H", flags & 0xFFFF)
        greeting += b"\x2d\x02\0" + struct.pack("<H", flags >> 16) + b"\x15" + bytes(10) + SALT[8:] + b"\0"
        self.send(greeting + plugin.encode() + b"\0")
        packet = self.receive()
        if context and len(packet) == 32:
            self.socket = context.wrap_socket(self.socket, server_side=True)
            packet = self.receive()
        return packet


def result(columns: Sequence[bytes], rows: Sequence[Sequence[bytes | None]]) -> list[bytes]:
    """The packets of an answer with rows of texts; `columns` are descriptions as `column` makes them."""
    return [bytes([len(columns)]), *columns, END_OF_ROWS, *map(row_of, rows), END_OF_ROWS]


def column(kind: int = TEXT, name: bytes | None = b"v") -> bytes:
    """The description of a column of a result."""
    words = b"".join(map(text_of, (b"def", b"", b"", b"", name, name)))
    return words + b"\x0c" + struct.pack("<HIBHBxx", 45, 1024, kind, 0, 0)


def row_of(values: Sequence[bytes | None]) -> bytes:
    """The packet of one row."""
    return b"".join(map(text_of, values))


def text_of(text: bytes | None) -> bytes:
    return b"\xfb" if text is None else b"\xfc" + struct.pack("<H", len(text)) + text


class FakeServer(Listener[Peer]):
    """A listener whose visitors speak MySQL's protocol."""

    def __init__(self, talk: Callable[[Peer], None], listening: socket.socket | None = None) -> None:
        super().__init__(talk, Peer, "mysql", listening)


def answering(answer: Callable[[Peer, bytes], None], context: ssl.SSLContext | None = None) -> Callable[[Peer], None]:
    """A talk that lets everybody in, has `answer` answer each query (SELECT, SHOW), and says OK to all else."""

    def talk(peer: Peer) -> None:
        peer.greet("mysql_native_password", context)
        peer.send(OK)
        while (packet := peer.receive())[:1] != b"\x01":
            if packet[1:].lstrip().upper().startswith((b"SELECT", b"SHOW")):
                answer(peer, packet[1:])
            else:
                peer.send(OK)

    return talk
