"""A real browser: headless Chromium, driven by its WebDriver and, for what that lacks, by the DevTools protocol.

with Browser(folder) as browser:
    browser.open(url)
    assert browser.axe() == browser.complaints() == []
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from tests.support.deployment import ROOT
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.servers import find_program, free_port, without

OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --hide-scrollbars --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Shift": "\ue008", "Escape": "\ue00c", "Space": " "}
"""As WebDriver writes them; a character is itself."""
AXE = ROOT / ".servers" / "axe" / "axe_playwright_python" / "axe.min.js"
RUN_AXE = """
return axe.run({resultTypes: ["violations"]}).then(result => result.violations.map(
    found => `${found.id}: ${found.help}: ${found.nodes.map(node => node.target.join(" ")).join(", ")}`
));
"""


class Browser:
    """One window, with a new profile in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The driver leaves its scratch behind. A socket's path in there must be short.
        self._scratch = tempfile.TemporaryDirectory(prefix="taskserver-web-", dir="/tmp", ignore_cleanup_errors=True)
        self._session = ""
        self._opener = build_opener(ProxyHandler({}))

    def __enter__(self) -> Browser:
        driver, chromium = find_program("chromedriver"), find_program("chromium")
        if driver is None or chromium is None:
            without("chromium and chromium-driver are not installed")
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        environ = {"PATH": os.defpath, "HOME": str(self._folder), "TMPDIR": self._scratch.name}
        silent = subprocess.DEVNULL
        self._driver = subprocess.Popen([driver, f"--port={port}"], env=environ, stdout=silent, stderr=silent)
        wait_until(self._is_ready)
        options = {"binary": chromium, "args": [*OPTIONS.split(), f"--user-data-dir={self._folder}/profile"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "WARNING"}}
        session = self._post("/session", capabilities={"alwaysMatch": wanted})
        self._session = f"/session/{session['sessionId']}"
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self._session:
                self._ask("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(WAIT_SECONDS)
            self._scratch.cleanup()

    def open(self, url: str) -> None:
        self._post(f"{self._session}/url", url=url)

    def script(self, text: str, *arguments: Any) -> Any:
        """Runs it in the page, where it has its `arguments`; what it returns."""
        return self._post(f"{self._session}/execute/sync", script=text, args=arguments)

    def click(self, selector: str) -> None:
        """As the mouse does. The page that it leads to may come a moment later, as after `press`: await it."""
        while True:
            try:
                self._post(f"{self._element(selector)}/click")
                return
            except AssertionError as error:
                if "stale element" not in str(error):  # the page renewed itself since the element was found
                    raise

    def write(self, selector: str, text: str) -> None:
        self._post(f"{self._element(selector)}/value", text=text)

    def press(self, *keys: str) -> None:
        """One after the other: "Tab", "Enter", "a"; or together: "Shift+Tab"."""
        steps = []
        for key in keys:
            values = [KEYS.get(name, name) for name in key.split("+")]
            steps += [{"type": "keyDown", "value": value} for value in values]
            steps += [{"type": "keyUp", "value": value} for value in reversed(values)]
        self._post(f"{self._session}/actions", actions=[{"type": "key", "id": "keys", "actions": steps}])

    def resize(self, width: int, height: int, scale: float = 1, mobile: bool = False) -> None:
        """The page's part of the window, in pixels of CSS; and how many of the screen's each has."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)

    def prefer(self, **preferences: str) -> None:
        """What the visitor asks of all pages, such as color_scheme="dark", reduced_motion="reduce"; nothing else."""
        names = {f"prefers-{name.replace('_', '-')}": value for name, value in preferences.items()}
        features = [{"name": name, "value": value} for name, value in names.items()]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def before_scripts(self, text: str) -> None:
        """Runs it in all pages that are opened from now on, before their own scripts."""
        self.devtools("Page.addScriptToEvaluateOnNewDocument", source=text)

    def screenshot(self, path: Path, rows: int = 1_000_000) -> None:
        """A picture of the whole page, or of its first rows of pixels."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "height": min(size["height"], rows), "scale": 1}
        shape = {"format": path.suffix[1:], "quality": 40, "captureBeyondViewport": True, "clip": clip}
        taken = self.devtools("Page.captureScreenshot", **shape)
        path.write_bytes(base64.b64decode(taken["data"]))

    def complaints(self) -> list[str]:
        """Warnings and errors of the console since the last look, such as of the content security policy."""
        return [entry["message"] for entry in self._post(f"{self._session}/se/log", type="browser")]

    def axe(self) -> list[str]:
        """What axe-core finds wrong with the page for those who read or use it otherwise."""
        if not AXE.exists():
            without("axe-core is not in .servers/axe")
        found: list[str] = self.script(f"{AXE.read_text(encoding='utf-8')}\n{RUN_AXE}")
        return found

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._post(f"{self._session}/goog/cdp/execute", cmd=command, params=parameters)

    def _element(self, selector: str) -> str:
        found = self._post(f"{self._session}/element", using="css selector", value=selector)
        return f"{self._session}/element/{next(iter(found.values()))}"

    def _is_ready(self) -> bool:
        try:
            return bool(self._ask("GET", "/status")["ready"])
        except URLError:
            return False

    def _post(self, path: str, **what: Any) -> Any:
        return self._ask("POST", path, what)

    def _ask(self, method: str, path: str, what: dict[str, Any] | None = None) -> Any:
        data = None if what is None else json.dumps(what).encode()
        request = Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with self._opener.open(request, timeout=WAIT_SECONDS * 2) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            with error:
                raise AssertionError(json.load(error)["value"]["message"].partition("\n")[0]) from None
