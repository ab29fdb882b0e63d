"""A TCP proxy in the test's process, between a worker and its database, whose network a test breaks.

    with Proxy("127.0.0.1", server.port) as proxy:
        dsn = proxy.dsn(server.dsn(name))
        proxy.drop()        # bytes vanish, both ways, and no end notices
        proxy.refuse()      # nobody listens; open connections continue
        proxy.delay(0.1)    # all takes so many seconds longer, each way
        proxy.pass_on()     # all works again, on the same port
        proxy.reset()       # RST to both ends of every connection
    proxy.move(other.port)      # the same, and new connections lead to another server of 127.0.0.1
        cut = proxy.cut_after(contains(b"DELETE"))      # done by the server, and its answer lost

A call returns once it holds: no byte passes after `drop()` returned. One thread does all the work, in
an event loop of its own, so that no byte ever meets a proxy that is half changed. Times are of time.monotonic().
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.support.servers import free_port

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 20
CALL_SECONDS = 30.0
NO_LINGER = struct.pack("ii", 1, 0)
"""For SO_LINGER: a close sends RST, and drops what was not sent yet."""
ENCRYPTION = (80877103, 80877104)
"""A client of PostgreSQL asks for TLS or GSS; after these its first message is still to come."""

T = TypeVar("T")
P = ParamSpec("P")
Matches = Callable[[bytes], bool]
"""Whether this is the request that is meant: asked of the bytes as they arrive, which for short ones is whole."""
Reader = Callable[[bytes], bytes]
"""The requests in what a client sent, for one connection."""


def as_sent() -> Reader:
    """Of MySQL's clients, whose requests are their statements."""
    return bytes


def contains(*words: bytes) -> Matches:
    """Matches a request that has one of the words in it."""
    return lambda request: any(word in request for word in words)


class Requests:
    """What one client of PostgreSQL asks for: each statement once the Sync behind it comes, with its bound values.

    The text of a statement that was prepared travels once, and later only its name.
    """

    def __init__(self) -> None:
        self._unread = b""
        self._kind_bytes = 0
        self._prepared: dict[bytes, bytes] = {}
        self._asked: list[bytes] = []

    def __call__(self, chunk: bytes) -> bytes:
        self._unread += chunk
        complete: list[bytes] = []
        while len(self._unread) >= (at := self._kind_bytes) + 4:
            end = at + int.from_bytes(self._unread[at : at + 4], "big")
            if len(self._unread) < end:
                break
            kind, content, self._unread = self._unread[:at], self._unread[at + 4 : end], self._unread[end:]
            if kind == b"":
                self._kind_bytes = int(int.from_bytes(content[:4], "big") not in ENCRYPTION)
            elif kind == b"Q":
                self._asked.append(content.rstrip(b"\0"))
            elif kind == b"P":
                name, text, *_ = content.split(b"\0", 2)
                self._prepared[name] = text
            elif kind == b"B":
                _, name, values = content.split(b"\0", 2)
                self._asked.append(self._prepared.get(name, b"") + b" -- " + values)
            if kind in (b"Q", b"S"):
                complete, self._asked = complete + self._asked, []
        return b"; ".join(complete)


@dataclass
class Link:
    """One connection that a client made, for as long as either end knows of it."""

    ends: list[asyncio.StreamWriter]
    read: Reader
    opened_at: float = field(default_factory=time.monotonic)
    lost_at: float | None = None
    """From then on nothing gets through: bytes were swallowed, and the ends do not know."""
    closed_at: float | None = None
    is_cut: bool = False
    """What the server still says is thrown away."""

    def close(self, by_reset: bool = False) -> None:
        """Close both ends, after what is still to be sent; or at once by RST."""
        self.closed_at = self.closed_at or time.monotonic()
        for end in self.ends:
            with suppress(OSError):
                if by_reset:
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                    end.transport.abort()
                else:
                    end.close()


@dataclass
class Cut:
    """A cut that waits for its request."""

    matches: Matches
    left: int
    is_after: bool
    is_silent: bool
    struck: threading.Event = field(default_factory=threading.Event)

    @property
    def has_struck(self) -> bool:
        return self.struck.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until it struck; whether it did. For a cut after: the server has done what was asked."""
        return self.struck.wait(seconds)


def in_loop(work: Callable[Concatenate[Proxy, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Proxy, P], T]:
    """Does it in the proxy's own thread, and returns once it is done."""

    @wraps(work)
    def do(proxy: Proxy, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run_coroutine_threadsafe(work(proxy, *args, **kwargs), proxy.loop).result(CALL_SECONDS)

    return do


class Proxy:
    """Listens on a port of 127.0.0.1 and passes connections on to a server there or elsewhere."""

    def __init__(self, host: str, port: int, reader: Callable[[], Reader] = as_sent) -> None:
        """For PostgreSQL, `Requests` finds the statements in what passes."""
        self.links: list[Link] = []
        """Every connection ever, the oldest first."""
        self.lost_bytes = 0
        """Swallowed by `drop`, and by connections that it left dead."""
        self.port = free_port()
        self._target = (host, port)
        self._reader = reader
        self._cuts: list[Cut] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Server | None = None
        self._reaches = asyncio.Event()
        self._delay_seconds = 0.0
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.pass_on()

    # ---- what a test asks for

    def dsn(self, dsn: str) -> str:
        """The same database, through this proxy."""
        parts = urlsplit(dsn)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}{HOST}:{self.port}"))

    @property
    def open_links(self) -> list[Link]:
        """Connections that were not closed yet."""
        return [link for link in self.links if link.closed_at is None]

    @in_loop
    async def pass_on(self) -> None:
        """Listen and let everything through; cuts that did not strike are forgotten.

        A connection that lost bytes stays dead, as behind a firewall that has forgotten it; a close during a `drop`
        is passed on now.
        """
        self._cuts.clear()
        self._delay_seconds = 0.0
        if self._listening is None:
            self._listening = await asyncio.start_server(self._serve, HOST, self.port, limit=CHUNK_BYTES)
        self._reaches.set()

    @in_loop
    async def drop(self) -> None:
        """Swallow all bytes, both ways, of open connections and of new ones, and closes too."""
        self._reaches.clear()

    @in_loop
    async def delay(self, seconds: float) -> None:
        """Pass all bytes on so much later."""
        self._delay_seconds = seconds

    @in_loop
    async def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones continue."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    @in_loop
    async def reset(self) -> int:
        """RST to both ends of every open connection. How many there were."""
        open_links = self.open_links
        for link in open_links:
            link.close(by_reset=True)
        return len(open_links)

    def move(self, port: int) -> int:
        """New connections lead to the server at this port, and the others are reset. How many those were."""
        self._target = (HOST, port)
        return self.reset()

    def cut_before(self, matches: Matches, times: int = 1, silent: bool = False) -> Cut:
        """Cut the connection in place of passing this request on: the server never sees it.

        silent: the client does not notice, and waits for an answer that never comes.
        """
        return self._cut(Cut(matches, times, False, silent))

    def cut_after(self, matches: Matches, times: int = 1, silent: bool = False) -> Cut:
        """Pass this request on, let the server do it, and cut the connection in place of passing the answer back.

        For servers that close when a client has nothing more to say, as database servers do.
        """
        return self._cut(Cut(matches, times, True, silent))

    def close(self) -> None:
        """Reset everything and stop."""
        if self._thread.is_alive():
            self.refuse()
            self.reset()
            self._cancel()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- in the event loop

    @in_loop
    async def _cut(self, cut: Cut) -> Cut:
        self._cuts.append(cut)
        return cut

    @in_loop
    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = Link([writer], self._reader())
        self.links.append(link)
        try:
            await self._connect(link, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, an end was reset, or the test is over
        finally:
            self._tasks.discard(task)
            link.close()

    async def _connect(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._reaches.is_set():
            await self._swallow(link, reader)
            return
        server_reader, server_writer = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
        link.ends.append(server_writer)
        answers = asyncio.ensure_future(self._pump(link, server_reader, writer, None))
        requests = asyncio.ensure_future(self._pump(link, reader, server_writer, answers))
        try:
            await asyncio.wait({answers, requests}, return_when=asyncio.FIRST_COMPLETED)
            if link.is_cut:
                await requests
        finally:
            for pump in (answers, requests):
                pump.cancel()
            await asyncio.gather(answers, requests, return_exceptions=True)

    async def _pump(
        self,
        link: Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.Future[None] | None,
    ) -> None:
        """Pass bytes one way until their sender closes; of requests, which have `answers`, until a cut strikes."""
        while chunk := await reader.read(CHUNK_BYTES):
            if link.is_cut:
                continue
            if not self._reaches.is_set() or link.lost_at is not None:
                self._lose(link, chunk)
                continue
            if answers and (cut := self._met(link.read(chunk))):
                link.is_cut = True
                if cut.is_after:
                    writer.write(chunk)
                # When nothing more comes, a server does what it was asked and closes: so it is known to be done.
                writer.write_eof()
                await asyncio.wait({answers})
                if not cut.is_silent:
                    link.close(by_reset=True)
                cut.struck.set()
                if cut.is_silent:
                    await self._swallow(link, reader)
                return
            if self._delay_seconds:
                await asyncio.sleep(self._delay_seconds)
            writer.write(chunk)
            await writer.drain()
        if not link.is_cut:
            await self._reaches.wait()

    def _met(self, request: bytes) -> Cut | None:
        cut = next((cut for cut in self._cuts if cut.left and cut.matches(request)), None)
        if cut is not None:
            cut.left -= 1
        return cut

    async def _swallow(self, link: Link, reader: asyncio.StreamReader) -> None:
        """Take what comes and answer nothing, until the client gives up."""
        self._lose(link, b"")
        while chunk := await reader.read(CHUNK_BYTES):
            self._lose(link, chunk)

    def _lose(self, link: Link, chunk: bytes) -> None:
        link.lost_at = link.lost_at or time.monotonic()
        self.lost_bytes += len(chunk)
