"""The tokens of programs, in a header, and how often each may come."""

from __future__ import annotations

import hashlib
import hmac
import time

from werkzeug.wrappers import Request

from .private_files import Counter, PrivateFiles

WRONG_A_MINUTE = 30
"""Requests without a right token, from all addresses together: nobody guesses a token of 256 bits."""


def is_within_pace(files: PrivateFiles, name: str, most: int) -> bool:
    """Count a request of this minute, unless there were `most` already. Raises OSError."""
    minute = float(time.time() // 60)
    with files.counters(f"pace-{name}") as counters:
        found = counters.get(name, Counter(0.0, minute, 60.0))
        times = found.times if found.last == minute else 0.0
        if times < most:
            counters[name] = Counter(times + 1, minute, 60.0)
    return times < most


def bearer_of(request: Request) -> str:
    """The token of a request; Apache drops the usual header unless it is told otherwise, so there is one of our own."""
    usual = request.headers.get("Authorization", "")
    scheme, _, token = usual.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("X-Taskserver-Token", "").strip()


def knows(sha256: str, request: Request) -> bool:
    """Whether a request bears the token that has this hash."""
    given = hashlib.sha256(bearer_of(request).encode("utf-8", "replace")).hexdigest()
    return hmac.compare_digest(given, sha256)
