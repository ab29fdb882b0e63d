"""The status page in this process: a deployment's folder, and visitors who keep their cookies."""

from __future__ import annotations

import hashlib
import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from werkzeug.test import Client, TestResponse

from taskserver import TaskServer
from taskserver.web import application_of
from tests.support.rows import Rows

PASSWORD = "correct horse battery"
PASSWORD_HASH = f"pbkdf2:sha256:1000$salt${hashlib.pbkdf2_hmac('sha256', PASSWORD.encode(), b'salt', 1000).hex()}"
URL = "https://site.example"
ADDRESS = "203.0.113.7"


class PageSite:
    """A deployment whose page is served here."""

    def __init__(self, folder: Path, dsn: str, **settings: str) -> None:
        self.folder, self.dsn = folder, dsn
        self.set(TASKSERVER_PAGE_PASSWORD=PASSWORD_HASH, **settings)
        self.server = TaskServer(dsn, folder=folder)
        self.server.create_tables()
        self.rows = Rows(dsn)
        self.kind = self.rows.kind

    def set(self, **settings: str) -> None:
        """Write `.env` with these settings; an empty one is left out."""
        lines = {"TASKSERVER_DSN": self.dsn, **settings}
        text = "".join(f"{key}='{value}'\n" for key, value in lines.items() if value)
        (self.folder / ".env").write_text(text)

    def visitor(self, address: str = ADDRESS) -> Visitor:
        """Somebody who has not signed in, at a server that was just started."""
        return Visitor(Client(application_of(self.folder)), address)

    def owner(self, address: str = ADDRESS) -> Visitor:
        """Somebody who has signed in."""
        visitor = self.visitor(address)
        assert visitor.sign_in().status_code == 303
        return visitor

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.rows.execute(statement, values)]

    def let_act(self, **settings: str) -> None:
        """Set a page from which those who sign in may act."""
        self.set(TASKSERVER_PAGE_PASSWORD=PASSWORD_HASH, TASKSERVER_PAGE_ACTIONS="yes", **settings)

    def close(self) -> None:
        self.server.close()
        self.rows.close()


class Visitor:
    """A browser, as far as requests, cookies and forms go."""

    def __init__(self, client: Client, address: str) -> None:
        self.client, self.address = client, address

    def get(self, query: str = "", **more: Any) -> TestResponse:
        return self._ask("GET", query, **more)

    def post(self, query: str = "", **more: Any) -> TestResponse:
        return self._ask("POST", query, **more)

    def _ask(self, method: str, query: str, path: str = "/", **more: Any) -> TestResponse:
        environ = {"REMOTE_ADDR": self.address, **more.pop("environ", {})}
        return self.client.open(f"{path}?{query}", method=method, base_url=URL, environ_overrides=environ, **more)

    def sign_in(self, password: str = PASSWORD, **more: Any) -> TestResponse:
        return self.post("view=sign-in", data={"password": password}, **more)

    def token(self) -> str:
        """The token in the forms of this visitor's pages."""
        found = re.search(r'name="token" value="([^"]+)"', self.get("view=workers").text)
        assert found
        return html.unescape(found[1])

    def form(self, **choice: Any) -> dict[str, list[str]]:
        """The hidden fields of the page that says what an act would touch."""
        said = self.get(urlencode({"view": "confirm", **choice}, doseq=True)).text
        fields: dict[str, list[str]] = {}
        for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', said.partition("<main")[2]):
            fields.setdefault(name, []).append(html.unescape(value))
        return fields

    def act(self, **choice: Any) -> TestResponse:
        """Ask what an act would touch, and send the form of that."""
        return self.post("view=act", data=self.form(**choice))
