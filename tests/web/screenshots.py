"""Pictures of the status page: `.venv/bin/python -m tests.web.screenshots [FOLDER]`.

The folder gets VIEW-WIDTH-SCHEME.png of all views, docs/pictures/ as WebP those that docs/page.md shows.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import product
from pathlib import Path

from tests.support.browser import Browser
from tests.support.deployment import ROOT, Deployment
from tests.web.sites import VIEWS, PageQueue, fill_shop, sign_in

FOLDER = ROOT / "build" / "screenshots"
PICTURES = ROOT / "docs" / "pictures"
DOCUMENT = ROOT / "docs" / "page.md"
SIZES = {360: 780, 1440: 900}
"""Heights by widths."""
SHOWN_ROWS = {360: 1116, 1440: 1280}
"""So high are the documents' pictures at most, by widths: what follows on the page is left out."""
SCHEMES = ("light", "dark")


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, Browser(Path(place)) as browser:
        site = PageQueue(Deployment(Path(place)), "sqlite:///var/taskserver.db")
        fill_shop(site)
        with site.served() as website:
            _take_all(browser, folder, {"sign-in": f"{website.url}/"})
            sign_in(browser, website.url)
            _take_all(browser, folder, {name: f"{website.url}/{link}" for name, link in VIEWS.items()})
        file = Path(place) / "queue.html"
        assert site.client("page", "--output", file).returncode == 0
        _take_all(browser, folder, {"file": file.as_uri()})
    print(f"all views are in {folder}")


def _take_all(browser: Browser, folder: Path, urls: dict[str, str]) -> None:
    shown = DOCUMENT.read_text(encoding="utf-8")
    for (width, height), scheme, (view, url) in product(SIZES.items(), SCHEMES, urls.items()):
        browser.resize(width, height, mobile=width < 600)
        browser.prefer(color_scheme=scheme)
        browser.open(url)
        name = f"{view}-{width}-{scheme}"
        browser.screenshot(folder / f"{name}.png")
        if f"({PICTURES.name}/{name}.webp)" in shown:
            browser.screenshot(PICTURES / f"{name}.webp", SHOWN_ROWS[width])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
