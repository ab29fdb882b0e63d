"""The WSGI application: settings, then access, then the view, and the headers of every answer.

Hosts pass the path of a request whole or shortened. So a link to a view is only a query, `?view=…`, which is valid
wherever the page is mounted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException, abort
from werkzeug.wrappers import Request, Response

from ..errors import Conflict, DatabaseError, InvalidTask, SettingError, Unavailable
from ..messages.programs import client_in
from ..messages.text import printable
from ..model.task import MAX_SIGNED
from ..server import TaskServer
from ..settings.load import load_settings
from ..settings.page import PageSettings, load_page_settings
from ..settings.table import ALL_KEYS
from . import acting, api, views
from .access import Access, Visitor, is_of_another_site
from .private_files import PLACE, PrivateFiles
from .rendering import ASSETS, asset, link, render

VIEWS: Mapping[str, Callable[[TaskServer, MultiDict[str, str]], views.Page]] = {
    "": views.overview,
    "tasks": views.tasks,
    "task": views.task,
    "errors": views.errors,
    "hours": views.hours,
    "schedules": views.schedules,
    "workers": views.workers,
    "confirm": acting.preview,
}
MAX_FORM_BYTES = 100_000
ANSWER_SECONDS = 15.0
"""Timeout of one statement."""
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Robots-Tag": "noindex",
    "Cache-Control": "no-store",
}


class PageRequest(Request):
    """A request whose form is no larger than the page's own."""

    max_content_length = MAX_FORM_BYTES
    max_form_memory_size = MAX_FORM_BYTES
    max_form_parts = 600


class Application:
    """The page of the deployment in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request (WSGI)."""
        request = PageRequest(environ)
        try:
            response = self._answer(request)
        except HTTPException as error:
            response = _refused(request, error.code or 500, error.description or "")
        except Exception as error:
            # The text is only for the owner, in the web server's log: it may name hosts, users and folders.
            print(printable(f"taskserver page: {type(error).__name__}: {error}"), file=environ["wsgi.errors"])
            response = _refused(request, *_meaning_of(error))
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response(environ, start_response)

    def _answer(self, request: PageRequest) -> Response:
        if (name := request.args.get("asset")) and request.method in ("GET", "HEAD"):
            return _asset(name)
        # Read for each request, as .env may have changed; it takes less than half a millisecond. And close it after
        # each, as an account's few connections are more important for the site than the time to connect.
        settings = load_page_settings(self._folder)
        with TaskServer.from_settings(load_settings(self._folder)) as server:
            try:
                files = PrivateFiles(self._folder)
            except OSError as error:
                raise SettingError(f"{PLACE} cannot be made: {error}") from None
            return self._answer_of(settings, server, files, request)

    def _answer_of(
        self, settings: PageSettings, server: TaskServer, files: PrivateFiles, request: PageRequest
    ) -> Response:
        asked, database = api.asked_for(request), server.store.database
        if asked == api.TASKS:
            with database.with_timeout(ANSWER_SECONDS):
                return api.add(settings, server, files, request)
        if asked == api.METRICS and settings.metrics_sha256:
            with database.without_retries(ANSWER_SECONDS):
                return api.metrics(settings, server, files, request)
        if not settings.is_enabled:
            words = "Nobody may see this page yet: set TASKSERVER_PAGE_PASSWORD or TASKSERVER_PAGE_ALLOW"
            abort(503, f"{words} in .env, as docs/page.md says.")
        access = Access(settings, files, request)
        visitor = access.admit()
        if visitor is None:
            return _sign_in(access, request)
        return _Visit(self._folder, settings, server, files, access, visitor, request).answer()


class _Visit(NamedTuple):
    """One request of a visitor who may see the page."""

    folder: Path
    settings: PageSettings
    server: TaskServer
    files: PrivateFiles
    access: Access
    visitor: Visitor
    request: PageRequest

    @property
    def view(self) -> str:
        """The view; the overview if the result of a form is loaded again."""
        view = self.request.args.get("view", "")
        return "" if view in ("overview", "sign-in", "act") and self.request.method != "POST" else view

    def answer(self) -> Response:
        """The answer, even if the database is away."""
        is_post = self.request.method == "POST"
        database = self.server.store.database
        try:
            with database.with_timeout(ANSWER_SECONDS) if is_post else database.without_retries(ANSWER_SECONDS):
                return self._post() if is_post else self._get()
        except views.BadQuery as error:
            return self._refuse(error.code, str(error))
        except InvalidTask as error:
            return self._refuse(400, str(error))
        except DatabaseError as error:
            return self._away(error)

    def _get(self) -> Response:
        if self.request.method not in ("GET", "HEAD"):
            return self._refuse(405, "This page knows only GET and POST.")
        if self.view == "doctor":
            return self._show(views.findings_of(self.folder, self.settings.may_act, ANSWER_SECONDS))
        if self.view not in VIEWS:
            return self._refuse(404, "There is no such page.")
        self.server.store.tables.check()
        return self._show(VIEWS[self.view](self.server, self.request.args))

    # ---- forms

    def _post(self) -> Response:
        if self.view == "sign-in":  # this visitor signed in meanwhile, in another window
            return _moved(link("overview"))
        if not self.access.is_own_form(self.visitor):
            return self._refuse(403, "This form is too old, or belongs to another page: go back, and send it again.")
        forms = {"sign-out": self._sign_out, "act": self._act}
        return forms[self.view]() if self.view in forms else self._refuse(404, "There is no such page.")

    def _sign_out(self) -> Response:
        response = _moved(link("overview"))
        self.access.sign_out(self.visitor, response)
        return response

    def _act(self) -> Response:
        if not self.settings.may_act:
            return self._refuse(403, "The page may only show: TASKSERVER_PAGE_ACTIONS is not yes.")
        self.server.store.tables.check()
        act = acting.read_act(self.server, self.request.form)
        try:
            rows = acting.do(self.server, act, self.files, self.visitor.address)
        except DatabaseError as error:
            return self._refuse(503, f"It was not done, or not to its end: {error}. Look at the tasks again.")
        return _moved(acting.next_link(self.request.form, act, rows))

    # ---- answers

    def _show(self, page: views.Page) -> Response:
        return _page(200, page.template, {**page.values, **self._frame()})

    def _refuse(self, code: int, words: str) -> Response:
        values = {"words": words, "back": acting.back_link(self.request.values), "is_missing": code == 404}
        return _page(code, "refused.html", {**values, **self._frame()})

    def _away(self, error: DatabaseError) -> Response:
        """The page if the database is away; it also reloads itself."""
        words = views.trouble_in_words(error)
        return _page(503, "away.html", {"words": words, "error": str(error), **self._frame()})

    def _frame(self) -> dict[str, Any]:
        """The values of every page."""
        settings = self.server.settings
        return {
            "view": self.view,
            "here": link(**{name: one for name, one in self.request.args.items() if name not in ("done", "rows")}),
            "may_act": self.settings.may_act,
            "token": self.access.form_token(self.visitor),
            "has_session": bool(self.visitor.session),
            "queue": f"{settings.table} in {settings.dsn.place}",
            "is_live": True,
            "now": datetime.now(timezone.utc),
            "client": client_in(self.folder),
            "done": self._done(),
        }

    def _done(self) -> tuple[str, int] | None:
        """The result of the act that led here."""
        with suppress(views.BadQuery):
            done = views.choice_in(self.request.args, "done", acting.DONE)
            rows = views.number_in(self.request.args, "rows", MAX_SIGNED)
            return None if done is None or rows is None else (done, rows)
        return None


def _sign_in(access: Access, request: PageRequest) -> Response:
    words, code, headers = "", 403, {}
    if request.method == "POST" and request.args.get("view") == "sign-in" and not is_of_another_site(request):
        response = _moved(link("overview"))
        waits = access.sign_in(request.form.get("password", ""), response)
        if waits is None:
            return response
        words = "This is not the password."
        if waits:
            seconds = max(round(waits), 1)
            words, code, headers = f"Too many guesses: please wait for {seconds} s.", 429, {"Retry-After": str(seconds)}
    shown = {"words": words, "is_secure": access.is_secure(), "is_live": True, "site": request.host}
    response = _page(code, "sign_in.html", shown)
    response.headers.update(headers)
    return response


def _meaning_of(error: Exception) -> tuple[int, str]:
    """The code of an unexpected error, and the public part of its text."""
    if isinstance(error, SettingError):
        key = str(error).partition(" ")[0]  # the name of a setting is not secret
        what = f"{key} is wrong or missing" if key in ALL_KEYS else "it is not set up"
        return 503, f"The page is closed: {what}. The web server's error log says more."
    if isinstance(error, (Unavailable, Conflict)):
        return 503, "The database is away: send the request again later."
    if isinstance(error, OSError):
        return 500, f"The host refused something: {error.strerror or type(error).__name__}."
    return 500, "Something went wrong: the owner finds the reason in the web server's error log."


def _refused(request: Request, code: int, words: str) -> Response:
    """A refusal for an unknown visitor, in the format of the request."""
    asked = api.asked_for(request)
    if asked == api.TASKS:
        response = api.in_json({"error": words}, code)
    elif asked == api.METRICS:
        response = Response(f"{words}\n", code)
    else:
        response = _page(code, "closed.html", {"words": words, "is_live": True, "site": "taskserver"})
    response.headers.update({401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "60"}}.get(code, {}))
    return response


def _page(code: int, template: str, values: Mapping[str, Any]) -> Response:
    # Invalid text of a row, which SQLite may hold, comes as lone surrogates.
    text = render(template, values).encode("utf-8", "backslashreplace")
    return Response(text, code, content_type="text/html; charset=utf-8")


def _moved(location: str) -> Response:
    # Relative, as the page does not know where it is mounted.
    response = Response(status=303, headers={"Location": location})
    response.autocorrect_location_header = False
    return response


def _asset(name: str) -> Response:
    if name not in ASSETS:
        abort(404, "There is no such page.")
    response = Response(asset(name), content_type=f"{ASSETS[name]}; charset=utf-8")
    response.headers["Cache-Control"] = "private, max-age=604800"
    return response
