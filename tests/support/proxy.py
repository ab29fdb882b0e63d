"""A TCP proxy in the test's process, between a worker and its database, whose network a test breaks.

    with Proxy("127.0.0.1", server.port) as proxy:
        dsn = proxy.dsn(server.dsn(name))
        proxy.drop()        # bytes vanish, both ways, and nobody is told
        proxy.stall()       # bytes wait, and so does whoever would send more
        proxy.refuse()      # nobody listens; connections that stand go on
        proxy.pass_on()     # all is well again, on the same port
        proxy.reset()       # RST to both ends of every connection
        cut = proxy.cut_after(contains(b"DELETE"))      # done by the server, and its answer lost

For PostgreSQL, Proxy(host, port, Requests) of postgresql_requests.py finds the statements in what passes.

A call returns once it holds: no byte passes after `drop()` or `stall()` returned. One thread does all the work, in
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
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.support.servers import free_port

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 20
CALL_SECONDS = 30.0
NO_LINGER = struct.pack("ii", 1, 0)
"""For SO_LINGER: a close sends RST, and drops what was not sent yet."""

T = TypeVar("T")
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


class Link:
    """One connection that a client made, for as long as either end knows of it."""

    def __init__(self, client: asyncio.StreamWriter, read: Reader) -> None:
        self.read = read
        self.opened_at = time.monotonic()
        self.lost_at: float | None = None
        """From then on nothing gets through: bytes were swallowed, and the ends do not know."""
        self.closed_at: float | None = None
        self.is_cut = False
        """Struck by a cut: what the server still says is thrown away."""
        self._client = client
        self._server: asyncio.StreamWriter | None = None

    def reach(self, server: asyncio.StreamWriter) -> None:
        """The server's end stands too."""
        self._server = server

    def lose(self) -> None:
        """Nothing gets through any more."""
        self.lost_at = self.lost_at or time.monotonic()

    def close(self) -> None:
        """Tell both ends, after what is still to be sent."""
        self.closed_at = self.closed_at or time.monotonic()
        for end in self._ends():
            with suppress(OSError):
                end.close()

    def reset(self) -> None:
        """RST to both ends, at once."""
        self.closed_at = self.closed_at or time.monotonic()
        for end in self._ends():
            with suppress(OSError):
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            end.transport.abort()

    def _ends(self) -> list[asyncio.StreamWriter]:
        return [end for end in (self._client, self._server) if end is not None]


class Cut:
    """A cut that waits for its request."""

    def __init__(self, matches: Matches, times: int, is_after: bool, is_silent: bool) -> None:
        self.matches = matches
        self.left = times
        self.is_after = is_after
        self.is_silent = is_silent
        self.requests: list[bytes] = []
        """Those that it met."""
        self._struck = threading.Event()

    @property
    def has_struck(self) -> bool:
        return self._struck.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until it struck; whether it did. For a cut after: the server has done what was asked."""
        return self._struck.wait(seconds)

    def strike(self) -> None:
        self._struck.set()


class Proxy:
    """Listens on a port of 127.0.0.1 and passes connections on to a server there or elsewhere."""

    def __init__(self, host: str, port: int, reader: Callable[[], Reader] = as_sent) -> None:
        self.links: list[Link] = []
        """Every connection ever, the oldest first."""
        self.lost_bytes = 0
        """Swallowed by `drop`, and by connections that it left dead."""
        self.held_chunks = 0
        """How often `stall` made bytes or a new connection wait."""
        self.port = free_port()
        self._target = (host, port)
        self._reader = reader
        self._cuts: list[Cut] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._do(self._open())

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

    def pass_on(self) -> None:
        """Listen and let everything through; cuts that did not strike are forgotten.

        What was stalled goes on. A connection that lost bytes stays dead, as behind a firewall that has forgotten
        it; a close that was not told during a `drop` is told now.
        """
        self._do(self._pass_on())

    def drop(self) -> None:
        """Swallow all bytes, both ways, of connections that stand and of new ones; closes are not told either."""
        self._do(self._drop())

    def stall(self) -> None:
        """Hold all bytes, and new connections, until `pass_on`."""
        self._do(self._stall())

    def refuse(self) -> None:
        """Stop listening: who connects is refused. Connections that stand go on."""
        self._do(self._refuse())

    def reset(self) -> int:
        """RST to both ends of every connection that stands. How many there were."""
        return self._do(self._reset())

    def cut_before(self, matches: Matches, times: int = 1, silent: bool = False) -> Cut:
        """Cut the connection in place of passing this request on: the server never sees it.

        silent: the client is not told, it waits for an answer that never comes.
        """
        return self._do(self._cut(Cut(matches, times, False, silent)))

    def cut_after(self, matches: Matches, times: int = 1, silent: bool = False) -> Cut:
        """Pass this request on, let the server do it, and cut the connection in place of passing the answer back.

        For servers that close when a client has nothing more to say, as database servers do.
        """
        return self._do(self._cut(Cut(matches, times, True, silent)))

    def close(self) -> None:
        """Reset everything and stop."""
        if self._thread.is_alive():
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- in the event loop

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    async def _open(self) -> None:
        self._flows = asyncio.Event()
        self._reaches = asyncio.Event()
        await self._pass_on()

    async def _pass_on(self) -> None:
        self._cuts.clear()
        if self._listening is None:
            self._listening = await asyncio.start_server(self._serve, HOST, self.port, limit=CHUNK_BYTES)
        self._flows.set()
        self._reaches.set()

    async def _drop(self) -> None:
        self._reaches.clear()
        self._flows.set()

    async def _stall(self) -> None:
        self._flows.clear()

    async def _refuse(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _reset(self) -> int:
        struck = self.open_links
        for link in struck:
            link.reset()
        return len(struck)

    async def _cut(self, cut: Cut) -> Cut:
        self._cuts.append(cut)
        return cut

    async def _end(self) -> None:
        await self._refuse()
        await self._reset()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = Link(writer, self._reader())
        self.links.append(link)
        try:
            await self._connect(link, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, an end was reset, or the test is over
        finally:
            self._tasks.discard(task)
            link.close()

    async def _connect(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._wait_to_flow()
        if not self._reaches.is_set():
            await self._swallow(link, reader)
            return
        server_reader, server_writer = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
        link.reach(server_writer)
        answers = asyncio.ensure_future(self._pump(link, server_reader, writer))
        requests = asyncio.ensure_future(self._pump_requests(link, reader, server_writer, answers))
        try:
            await asyncio.wait({answers, requests}, return_when=asyncio.FIRST_COMPLETED)
            if link.is_cut:
                await requests
        finally:
            for pump in (answers, requests):
                pump.cancel()
            await asyncio.gather(answers, requests, return_exceptions=True)

    async def _pump(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes one way until their sender closes."""
        while chunk := await reader.read(CHUNK_BYTES):
            if await self._gets_through(link, chunk):
                writer.write(chunk)
                await writer.drain()
        await self._let_close_through(link)

    async def _pump_requests(
        self, link: Link, reader: asyncio.StreamReader, server: asyncio.StreamWriter, answers: asyncio.Future[None]
    ) -> None:
        """Pass bytes to the server until the client closes, or until one of them is where a cut is to strike."""
        while chunk := await reader.read(CHUNK_BYTES):
            if not await self._gets_through(link, chunk):
                continue
            if cut := self._met(link.read(chunk)):
                await self._strike(cut, link, chunk, server, answers)
                if cut.is_silent:
                    await self._swallow(link, reader)
                return
            server.write(chunk)
            await server.drain()
        await self._let_close_through(link)

    async def _gets_through(self, link: Link, chunk: bytes) -> bool:
        await self._wait_to_flow()
        if link.is_cut:
            return False
        if self._reaches.is_set() and link.lost_at is None:
            return True
        link.lose()
        self.lost_bytes += len(chunk)
        return False

    async def _let_close_through(self, link: Link) -> None:
        if not link.is_cut:
            await self._wait_to_flow()
            await self._reaches.wait()

    async def _wait_to_flow(self) -> None:
        if not self._flows.is_set():
            self.held_chunks += 1
            await self._flows.wait()

    def _met(self, request: bytes) -> Cut | None:
        cut = next((cut for cut in self._cuts if cut.left and cut.matches(request)), None)
        if cut is not None:
            cut.left -= 1
            cut.requests.append(request)
        return cut

    async def _strike(
        self, cut: Cut, link: Link, request: bytes, server: asyncio.StreamWriter, answers: asyncio.Future[None]
    ) -> None:
        link.is_cut = True
        if cut.is_after:
            server.write(request)
        # Told that nothing more will come, a server does what it was asked and closes: so it is known to be done.
        server.write_eof()
        await asyncio.wait({answers})
        if not cut.is_silent:
            link.reset()
        cut.strike()

    async def _swallow(self, link: Link, reader: asyncio.StreamReader) -> None:
        """Take what comes and answer nothing, until the client gives up."""
        link.lose()
        while chunk := await reader.read(CHUNK_BYTES):
            self.lost_bytes += len(chunk)
