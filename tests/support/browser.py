"""A real browser: headless Chromium, driven by its WebDriver.

with Browser(folder) as browser:
    browser.open(url)
    browser.script("return document.title")
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from tests.conftest import without
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.servers import find_program, free_port

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    """One window, with a new profile in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session = ""
        self._opener = build_opener(ProxyHandler({}))

    def __enter__(self) -> Browser:
        driver, chromium = find_program("chromedriver"), find_program("chromium")
        if driver is None or chromium is None:
            without("chromium and chromium-driver are not installed")
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            [driver, f"--port={port}"],
            env={"PATH": "/usr/bin:/bin", "HOME": str(self._folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._is_ready)
        args = [*OPTIONS, f"--user-data-dir={self._folder}/profile"]
        wanted = {"goog:chromeOptions": {"binary": chromium, "args": args}}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{session['sessionId']}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._session:
                self._ask("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(WAIT_SECONDS)

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url})

    def script(self, text: str) -> Any:
        """Runs it in the page; what it returns."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": text, "args": []})

    def _is_ready(self) -> bool:
        try:
            return bool(self._ask("GET", "/status")["ready"])
        except URLError:
            return False

    def _ask(self, method: str, path: str, what: dict[str, Any] | None = None) -> Any:
        data = None if what is None else json.dumps(what).encode()
        request = Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        with self._opener.open(request, timeout=WAIT_SECONDS * 2) as answer:
            return json.load(answer)["value"]
