"""Who may see the page: by address, by password, or by both where both are set.

A visitor's address is that of the connection; what a header says of it is believed of listed proxies alone.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple

from itsdangerous import BadSignature, URLSafeTimedSerializer
from werkzeug.security import check_password_hash
from werkzeug.wrappers import Request, Response

from ..settings.page import SOCKET, Network, PageSettings
from .guesses import Guesses
from .private_files import PrivateFiles

SESSION_SECONDS = 12 * 3600
KNOWN_SECONDS = 400 * 86_400
"""So long a browser is known as one from which somebody signed in; no browser keeps a cookie for longer."""
FORM_SECONDS = SESSION_SECONDS
SESSION_COOKIE = "taskserver_session"
KNOWN_COOKIE = "taskserver_known"
ENDED, USED = "ended-", "used-"
MAX_PASSWORD_BYTES = 1000
MAX_COOKIES = 5
"""Of one name."""


class Visitor(NamedTuple):
    """Somebody who may see the page."""

    address: str
    session: str
    """The id of the session; empty where no password is asked for."""


class Refusal(NamedTuple):
    """Why somebody may not see the page."""

    words: str
    asks_password: bool


class Access:
    """The doorkeeper of one page."""

    def __init__(self, settings: PageSettings, files: PrivateFiles) -> None:
        """Raises OSError."""
        self._settings = settings
        self._files = files
        self._guesses = Guesses(files)
        # Another password ends all sessions.
        self._key = hmac.digest(files.secret(), settings.password_hash.encode(), "sha256")

    # ---- who comes

    def admit(self, request: Request) -> Visitor | Refusal:
        """The visitor who sends a request, or why nobody may see the page by it."""
        address, by_unlisted_proxy = visitor_address(request, self._settings.proxies)
        if self._settings.allow:
            if by_unlisted_proxy:
                words = "This request came by a proxy that TASKSERVER_PAGE_PROXIES does not list"
                return Refusal(f"{words}, so that the address of the visitor is not known.", False)
            if not is_in(address, self._settings.allow):
                return Refusal("This address may not see the page.", False)
        if not self._settings.password_hash:
            return Visitor(address, "")
        # Another site of the same domain may have set a cookie of this name beside ours.
        for cookie in request.cookies.getlist(SESSION_COOKIE)[:MAX_COOKIES]:
            session = self._read(cookie, "session", SESSION_SECONDS)
            if session is not None and not self._files.is_marked(f"{ENDED}{session}"):
                return Visitor(address, session)
        return Refusal("", True)

    def sign_in(self, request: Request, password: str, response: Response) -> float | None:
        """Give a visitor who knows the password a session, by cookies of the response.

        None where all is well; 0 where the password is wrong; else how many seconds a further guess has to wait.
        Raises OSError.
        """
        address, _ = visitor_address(request, self._settings.proxies)
        cookies = request.cookies.getlist(KNOWN_COOKIE)[:MAX_COOKIES]
        known = (self._read(cookie, "known", KNOWN_SECONDS) for cookie in cookies)
        browser = next((mark for mark in known if mark is not None), None)
        if waits := self._guesses.seconds_to_wait(address, browser):
            return waits
        is_short = len(password.encode("utf-8", "replace")) <= MAX_PASSWORD_BYTES
        if not (is_short and check_password_hash(self._settings.password_hash, password)):
            return 0.0
        self._guesses.forget(address, browser)
        self._files.clean_up(ENDED)
        root = request.root_path or "/"
        for cookie, salt, seconds in (
            (SESSION_COOKIE, "session", SESSION_SECONDS),
            (KNOWN_COOKIE, "known", KNOWN_SECONDS),
        ):
            token = self._serializer(salt).dumps(secrets.token_hex(16))
            response.set_cookie(
                cookie, token, max_age=seconds, path=root, secure=True, httponly=True, samesite="Strict"
            )
        return None

    def sign_out(self, request: Request, visitor: Visitor, response: Response) -> None:
        """End a visitor's session, for whoever has its cookie. Raises OSError."""
        if visitor.session:
            self._files.mark(f"{ENDED}{visitor.session}")
        response.delete_cookie(
            SESSION_COOKIE, path=request.root_path or "/", secure=True, httponly=True, samesite="Strict"
        )

    # ---- forms

    def form_token(self, visitor: Visitor) -> str:
        """What a form of this visitor's page bears, and no other site can know."""
        return str(self._serializer("form").dumps(visitor.session or visitor.address))

    def is_own_form(self, request: Request, visitor: Visitor) -> bool:
        """Whether a POST comes from a form of this visitor's page."""
        if is_of_another_site(request):
            return False
        owner = self._read(request.form.get("token", ""), "form", FORM_SECONDS)
        return owner is not None and hmac.compare_digest(owner, visitor.session or visitor.address)

    def sealed(self, visitor: Visitor, purpose: str, value: object) -> str:
        """A value that comes back by a form or link of this visitor, and can be made by nobody else."""
        return str(self._serializer(f"{purpose} {visitor.session or visitor.address}").dumps(value))

    def use(self, token: str) -> bool:
        """Use a sealed value up; False where it was used before. Raises OSError."""
        self._files.clean_up(USED)
        return self._files.mark(f"{USED}{hashlib.sha256(token.encode('utf-8', 'replace')).hexdigest()[:32]}")

    def unsealed(self, visitor: Visitor, purpose: str, token: str, seconds: int) -> Any:
        """The value that was sealed so many seconds ago at most; None for anything else."""
        try:
            serializer = self._serializer(f"{purpose} {visitor.session or visitor.address}")
            return serializer.loads(token, max_age=seconds)
        except BadSignature:
            return None

    def _serializer(self, salt: str) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(
            self._key, salt=f"taskserver {salt}", signer_kwargs={"digest_method": hashlib.sha256}
        )

    def _read(self, token: str, salt: str, seconds: int) -> str | None:
        try:
            found = self._serializer(salt).loads(token, max_age=seconds)
        except BadSignature:
            return None
        return found if isinstance(found, str) else None


def is_of_another_site(request: Request) -> bool:
    """Whether the browser says that another site sends this request."""
    said = request.headers.get("Sec-Fetch-Site")
    if said is not None:
        return said != "same-origin"
    # Of an older browser, or by plain http.
    origin = request.headers.get("Origin")
    return origin not in (None, "null") and str(origin).partition("://")[2] != request.host


def visitor_address(request: Request, proxies: Sequence[Network]) -> tuple[str, bool]:
    """The address of the visitor, and whether a proxy that is not listed stands between.

    Each proxy appends the address that it saw: the last one that is no listed proxy's is the visitor's.
    """
    address = request.remote_addr or ""
    forwarded = [one.strip() for one in request.headers.get("X-Forwarded-For", "").split(",") if one.strip()]
    while forwarded and is_in(address, proxies):
        address = forwarded.pop()
    has_more = bool(forwarded) or any(name in request.headers for name in ("Forwarded", "X-Real-IP"))
    return _plain(address), has_more and not is_in(request.remote_addr or "", proxies)


def is_in(address: str, networks: Sequence[Network]) -> bool:
    """Whether an address lies in one of the networks; one that is none, as behind a socket, lies in SOCKET alone."""
    if address in ("", "unix:"):
        return SOCKET in networks
    try:
        found = ip_address(_plain(address))
    except ValueError:
        return False
    return any(found in network for network in networks)


def _plain(address: str) -> str:
    """An IPv4 address as such, which a socket for both kinds has as ::ffff:203.0.113.7."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and (host.count(".") == 3 or host.endswith("]")):  # some proxies append it
        address = host.strip("[]")
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)
