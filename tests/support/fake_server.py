"""A server that listens, and has a test's function deal with each visitor; it knows the begin of MySQL's protocol."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

SALT = b"12345678abcdefghijkl"
TLS_FLAG = 0x800
CAPABILITIES = 0x00BFF7DF  # all that a client may ask for but TLS and compression

F = TypeVar("F", bound="FakeServer")


class Peer:
    """A visitor's connection, by MySQL's packets."""

    def __init__(self, visitor: socket.socket) -> None:
        self.socket = visitor
        self._number = 0

    def send(self, packet: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(packet))[:3] + bytes([self._number]) + packet)
        self._number = (self._number + 1) % 256

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


class FakeServer:
    """Listens, and has `talk` deal with each visitor, one after the other."""

    def __init__(self, talk: Callable[[Peer], None], listening: socket.socket | None = None) -> None:
        self._talk = talk
        self._listening = listening or socket.create_server(("127.0.0.1", 0))
        self._visitor: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def dsn(self) -> str:
        return f"mysql://u:secret@127.0.0.1:{self._listening.getsockname()[1]}/shop"

    def __enter__(self: F) -> F:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for one in filter(None, (self._listening, self._visitor)):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                self._visitor = self._listening.accept()[0]
                self._visitor.settimeout(10)
                peer = Peer(self._visitor)
                with suppress(OSError, struct.error):
                    self._talk(peer)
                peer.socket.close()  # a talk over TLS has wrapped the visitor's own
