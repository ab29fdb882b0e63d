"""Guesses at the page's password: slowed down by where they come from, without a way to lock the owner out.

A guess counts for the visitor's address, and for two wider networks around it; each lets some through, and has further
ones wait, the narrowest for the longest. So one host can guess little, a network of many no more, and an attack from
elsewhere costs the owner nothing. A browser from which somebody signed in before has guesses of its own. A guess counts
before it is compared, so that many at once are many, and not where it has to wait.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address, ip_network
from typing import NamedTuple

from .private_files import Counter, PrivateFiles


class Level(NamedTuple):
    """How wide a network is, and what it may do."""

    ipv4_bits: int
    ipv6_bits: int
    free: int
    """Guesses without a wait."""
    most_seconds: float
    """The longest wait, which grows from 1 s by doubling; and after so long one guess is forgotten."""


LEVELS = (Level(32, 64, 5, 900.0), Level(24, 48, 20, 60.0), Level(16, 32, 100, 5.0))
SHARED = Level(0, 0, 100, 5.0)
"""For an address that may be everybody's: a proxy's in the same house, or none, as behind a socket."""
BROWSER = Level(0, 0, 5, 900.0)
MAX_COUNTERS = 5000
CROWDED = "crowded"
"""The counter of all that find no other: who fills them all must not hold up the rest of the world."""
FILE = "guesses"


class Guesses:
    """The guesses at one page's password."""

    def __init__(self, files: PrivateFiles) -> None:
        self._files = files

    def seconds_to_wait(self, address: str, browser: str | None) -> float:
        """Count a guess: 0 where it may be compared now, else how long it has to wait, and was not counted.

        `browser` is the mark of a browser from which somebody signed in before. Raises OSError.
        """
        with self._files.counters(FILE) as counters:
            now = time.time()  # not before: others may have counted meanwhile
            levels = dict(_levels_of(address, browser))
            used = {_key_in(counters, key): level for key, level in levels.items()}
            used = {key: SHARED if key == CROWDED else level for key, level in used.items()}
            found = {key: _now(counters.get(key), level, now) for key, level in used.items()}
            waits = max(_waits(found[key], level, now) for key, level in used.items())
            for key, level in used.items():
                if not waits:
                    counters[key] = Counter(found[key].times + 1, now, level.most_seconds)
                elif key in counters and counters[key].last > now:
                    counters[key] = found[key]  # else the wait would begin anew with each guess, until that instant
            _clean_up(counters, now)
        return waits

    def forget(self, address: str, browser: str | None) -> None:
        """Forget the guesses of somebody who knew the password. Raises OSError."""
        key, level = next(_levels_of(address, browser))
        if level is not SHARED:  # others have guessed there, too
            with self._files.counters(FILE) as counters:
                counters.pop(key, None)


def _levels_of(address: str, browser: str | None) -> Iterator[tuple[str, Level]]:
    """The names of a visitor's counters, the narrowest first."""
    if browser is not None:
        yield _short(f"browser {browser}"), BROWSER
        return
    try:
        found = ip_address(address)
    except ValueError:
        yield "unknown", SHARED
        return
    if not found.is_global:
        yield _short(str(found)), SHARED
        return
    for level in LEVELS:
        bits = level.ipv4_bits if isinstance(found, IPv4Address) else level.ipv6_bits
        yield _short(str(ip_network(f"{found}/{bits}", strict=False))), level


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _key_in(counters: dict[str, Counter], key: str) -> str:
    return key if key in counters or len(counters) < MAX_COUNTERS else CROWDED


def _now(counter: Counter | None, level: Level, now: float) -> Counter:
    """A counter without what is forgotten by now."""
    if counter is None:
        return Counter(0.0, now, level.most_seconds)
    # Another host with the same folder may have a clock that is ahead, or the clock was set back.
    passed = max(now - counter.last, 0.0)
    return counter._replace(times=max(counter.times - passed / level.most_seconds, 0.0), last=min(counter.last, now))


def _waits(counter: Counter, level: Level, now: float) -> float:
    if counter.times < level.free - 0.5:  # of the last one a little is forgotten by now
        return 0.0
    longest: float = min(2.0 ** min(counter.times - level.free, 30.0), level.most_seconds)
    return max(longest - (now - counter.last), 0.0)


def _clean_up(counters: dict[str, Counter], now: float) -> None:
    """Leave out what is forgotten."""
    for key, counter in list(counters.items()):
        if now - counter.last >= counter.times * counter.forgets_seconds:
            del counters[key]
