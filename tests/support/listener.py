"""Listens as the fake servers of tests do, whatever protocol their visitors speak."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

Socket = socket.socket


class Talker(Protocol):
    """A visitor's connection, in the words of a protocol."""

    socket: Socket


P = TypeVar("P", bound=Talker)
L = TypeVar("L", bound="Listener")  # type: ignore[type-arg]


class Listener(Generic[P]):
    """Listens, and has `talk` deal with each visitor, one after the other; `peer` makes what it talks to."""

    def __init__(
        self,
        talk: Callable[[P], None],
        peer: Callable[[socket.socket], P],
        scheme: str,
        listening: socket.socket | None = None,
    ) -> None:
        """`scheme` is that of its DSN."""
        self._talk = talk
        self._peer = peer
        self._scheme = scheme
        self._listening = listening or socket.create_server(("127.0.0.1", 0))
        self._visitor: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def dsn(self) -> str:
        return f"{self._scheme}://u:secret@127.0.0.1:{self._listening.getsockname()[1]}/shop"

    def __enter__(self: L) -> L:
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
                peer = self._peer(self._visitor)
                with suppress(OSError, struct.error):
                    self._talk(peer)
                peer.socket.close()  # a talk over TLS has wrapped the visitor's own
