"""Who may see the page: by address, by password, or by both if both are set.

A visitor's address is that of the connection; headers about it are trusted only from listed proxies.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from itsdangerous import BadSignature, URLSafeTimedSerializer
from werkzeug.exceptions import abort
from werkzeug.security import check_password_hash
from werkzeug.wrappers import Request, Response

from ..settings.page import SOCKET, Network, PageSettings
from .pace import seconds_to_wait
from .private_files import PrivateFiles

SESSION_SECONDS = 12 * 3600
KNOWN_SECONDS = 400 * 86_400
"""How long a browser is known after somebody signed in; browsers keep no cookie for longer."""
MAX_GUESSES, GUESSES_SECONDS = 10, 600.0
"""For one network, or for one known browser."""
SCHEME_HEADERS = ("X-Forwarded-Proto", "X-Forwarded-Protocol", "X-Forwarded-Ssl")
"""Because of these, web servers treat a request as https."""


class Visitor(NamedTuple):
    """Somebody who may see the page."""

    address: str
    session: str
    """The id of the session; empty if no password is set."""


class Access:
    """The access check of one request."""

    def __init__(self, settings: PageSettings, files: PrivateFiles, request: Request) -> None:
        """Raises OSError."""
        self._settings = settings
        self._files = files
        self._request = request
        self._address, self._is_by_unlisted_proxy = _visitor_address(request, settings.proxies)
        self._of_cookies: dict[str, Any] = {
            "path": request.root_path or "/",
            "secure": True,
            "httponly": True,
            "samesite": "Strict",
        }
        # Another password ends all sessions.
        self._key = hmac.digest(files.secret(), settings.password_hash.encode(), "sha256")

    # ---- sessions

    def admit(self) -> Visitor | None:
        """The visitor; None if the password is needed. Raises HTTPException."""
        if self._settings.allow:
            if self._is_by_unlisted_proxy:
                words = "This request came by a proxy that TASKSERVER_PAGE_PROXIES does not list"
                abort(403, f"{words}, so that the address of the visitor is not known.")
            if not _is_in(self._address, self._settings.allow):
                abort(403, "This address may not see the page.")
        if not self._settings.password_hash:
            if not self._is_reached_by_own_name():
                words = "Without a password, open it by https, by the address of this host in numbers, or by a name of"
                abort(403, f"{words} TASKSERVER_PAGE_HOSTS: another name may lead a browser here for another site.")
            return Visitor(self._address, "")
        # Another site of the same domain may have set a cookie of the same name.
        for cookie in self._request.cookies.getlist(self._cookie("session")):
            session = self._read(cookie, "session", SESSION_SECONDS)
            if session is not None and not self._files.has_ended(session):
                return Visitor(self._address, session)
        return None

    def sign_in(self, password: str, response: Response) -> float | None:
        """Start a session by cookies of the response if the password is right.

        Returns None then, 0 if the password is wrong, else the seconds until the next guess is allowed. Raises OSError.
        """
        # Count before comparing, so that simultaneous guesses all count.
        guess = self._files, self._guesser(), MAX_GUESSES, GUESSES_SECONDS
        if waits := seconds_to_wait(*guess):
            return waits
        if not check_password_hash(self._settings.password_hash, password):
            return 0.0
        seconds_to_wait(*guess, by=-1)  # do not count it
        for name, seconds in (("session", SESSION_SECONDS), ("known", KNOWN_SECONDS)):
            token = str(self._serializer(name).dumps(secrets.token_hex(16)))
            response.set_cookie(self._cookie(name), token, seconds, **self._of_cookies)
        return None

    def sign_out(self, visitor: Visitor, response: Response) -> None:
        """End a visitor's session for everyone with its cookie. Raises OSError."""
        self._files.end_session(visitor.session)
        response.delete_cookie(self._cookie("session"), **self._of_cookies)

    def _guesser(self) -> str:
        """The key for counting guesses. Known browsers count separately, so that others can't lock the owner out."""
        for cookie in self._request.cookies.getlist(self._cookie("known")):
            if browser := self._read(cookie, "known", KNOWN_SECONDS):
                return f"browser {browser}"
        try:
            return str(ip_network(f"{self._address}/{48 if ':' in self._address else 24}", strict=False))
        except ValueError:
            return "unknown"

    def _is_reached_by_own_name(self) -> bool:
        """Whether the request used a name of ours, not that of another site (DNS rebinding)."""
        if self.is_secure():
            return True
        try:
            name = urlsplit(f"//{self._request.host}").hostname or ""
            return name == "localhost" or name in self._settings.hosts or bool(ip_address(name))
        except ValueError:
            return False

    def is_secure(self) -> bool:
        """Whether the request came by https, by the connection or a listed proxy."""
        has_header = any(name in self._request.headers for name in SCHEME_HEADERS)
        if has_header and not _is_in(self._request.remote_addr or "", self._settings.proxies):
            return False
        return self._request.is_secure or self._request.headers.get("X-Forwarded-Proto") == "https"

    # ---- forms

    def form_token(self, visitor: Visitor) -> str:
        """A token for this visitor's forms that no other site can know."""
        return str(self._serializer("form").dumps(visitor.session))

    def is_own_form(self, visitor: Visitor) -> bool:
        """Whether the request, a POST, comes from a form of this visitor's page."""
        owner = self._read(self._request.form.get("token", ""), "form", SESSION_SECONDS)
        return bool(owner) and owner == visitor.session and not is_of_another_site(self._request)

    def _cookie(self, name: str) -> str:
        return f"taskserver_{name}_{self._files.mark_of_deployment}"

    def _serializer(self, salt: str) -> URLSafeTimedSerializer:
        signer = {"digest_method": hashlib.sha256}
        return URLSafeTimedSerializer(self._key, salt=f"taskserver {salt}", signer_kwargs=signer)

    def _read(self, token: str, salt: str, seconds: int) -> str | None:
        try:
            found = self._serializer(salt).loads(token, max_age=seconds)
        except BadSignature:
            return None
        return found if isinstance(found, str) else None


# ---- requests


def is_of_another_site(request: Request) -> bool:
    """Whether the browser reports that another site sent this request."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site != "same-origin"
    # An older browser, or plain http.
    origin = request.headers.get("Origin")
    return origin not in (None, "null") and str(origin).partition("://")[2] != request.host


def _visitor_address(request: Request, proxies: Sequence[Network]) -> tuple[str, bool]:
    """The address of the visitor, and whether the request came through an unlisted proxy.

    Each proxy appends the address that it saw: the last one that is not a listed proxy is the visitor's.
    """
    address = request.remote_addr or ""
    forwarded = [one.strip() for one in request.headers.get("X-Forwarded-For", "").split(",") if one.strip()]
    while forwarded and _is_in(address, proxies):
        address = forwarded.pop()
    has_more = bool(forwarded) or any(name in request.headers for name in ("Forwarded", "X-Real-IP"))
    return _plain(address), has_more and not _is_in(request.remote_addr or "", proxies)


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    """Whether an address is in one of the networks; an empty one (behind a socket) only matches SOCKET."""
    if address in ("", "unix:"):
        return SOCKET in networks
    try:
        found = ip_address(_plain(address))
    except ValueError:
        return False
    return any(found in network for network in networks)


def _plain(address: str) -> str:
    """An IPv4 address in its usual form, not as ::ffff:203.0.113.7."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:100]
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)
