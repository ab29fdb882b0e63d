"""Guesses at the page's password: slowed down by where they come from, without a way to lock the owner out.

After FREE guesses in a row from one network each further one has to wait, twice as long as the one before. A browser
from which somebody signed in before has guesses of its own, so that nobody else's delay it. All others together have
more, which delay each of them by some seconds. A guess counts before it is compared, so that many at once are many.
"""

from __future__ import annotations

import hashlib
import time
from ipaddress import IPv6Address, ip_address, ip_network

from .private_files import PrivateFiles

FREE = 5
MAX_DELAY_SECONDS = 900.0
FREE_IN_ALL = 200
"""Guesses an hour from all unknown browsers together."""
DELAY_IN_ALL_SECONDS = 5.0
FORGET_SECONDS = 3600.0
"""After so long without a guess the count begins anew."""
MAX_FILES = 5000
PREFIX = "guesses-"


class Guesses:
    """The guesses at one page's password."""

    def __init__(self, files: PrivateFiles) -> None:
        self._files = files

    def seconds_to_wait(self, address: str, browser: str | None) -> float:
        """Count a guess: 0 where it may be compared now, else how long it has to wait, and was not counted.

        `browser` is the mark of a browser from which somebody signed in before. Raises OSError.
        """
        key = self._key(address, browser)
        waits = self._count(key, FREE, MAX_DELAY_SECONDS)
        if browser is None and not waits:
            waits = self._count("all", FREE_IN_ALL, DELAY_IN_ALL_SECONDS)
            if waits:
                self._take_back(key)
        return waits

    def forget(self, address: str, browser: str | None) -> None:
        """Forget the guesses of somebody who knew the password. Raises OSError."""
        with self._files.numbers(f"{PREFIX}{self._key(address, browser)}") as numbers:
            numbers.clear()

    def _take_back(self, key: str) -> None:
        with self._files.numbers(f"{PREFIX}{key}") as numbers:
            if numbers:
                numbers[0] = max(numbers[0] - 1, 0.0)

    def _count(self, key: str, free: int, most: float) -> float:
        now = time.time()
        with self._files.numbers(f"{PREFIX}{key}") as numbers:
            count, last = numbers if len(numbers) == 2 else (0.0, now)
            if not 0 <= now - last < FORGET_SECONDS:
                count = 0.0
            delay = min(2.0 ** min(count - free, 30), most) if count >= free else 0.0
            if now - last < delay:
                return delay - (now - last)
            numbers[:] = [count + 1, now]
        return 0.0

    def _key(self, address: str, browser: str | None) -> str:
        """The name of a browser's or network's file; one for all that are left where there are too many."""
        key = _short(_network_of(address) if browser is None else f"browser {browser}")
        if not self._files.is_marked(f"{PREFIX}{key}") and self._files.count(PREFIX) >= MAX_FILES:
            self._files.clean_up(PREFIX)
            return "rest"
        return key


def _network_of(address: str) -> str:
    """The network that one visitor has by himself: of IPv6 a /64."""
    try:
        found = ip_address(address)
    except ValueError:
        return "unknown"
    return str(ip_network(f"{found}/64", strict=False)) if isinstance(found, IPv6Address) else str(found)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
