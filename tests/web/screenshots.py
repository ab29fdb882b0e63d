"""The pictures of the status page in docs/page.md: `.venv/bin/python -m tests.web.screenshots`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.browser import Browser
from tests.support.deployment import ROOT, Deployment
from tests.web.sites import VIEWS, PageQueue, fill_shop, sign_in

FOLDER = ROOT / "docs" / "pictures"
SHOWN = (("overview", 1440, "light"), ("overview", 360, "dark"), ("tasks", 1440, "dark"))
SIZES = {360: (780, 1116), 1440: (900, 1280)}
"""By widths: the height of the window, and of the picture at most; what follows on the page is left out."""


def main() -> None:
    with tempfile.TemporaryDirectory() as place, Browser(Path(place)) as browser:
        site = PageQueue(Deployment(Path(place)))
        fill_shop(site)
        with site.served() as website:
            sign_in(browser, website.url)
            for view, width, scheme in SHOWN:
                height, rows = SIZES[width]
                browser.resize(width, height, mobile=width < 600)
                browser.prefer(color_scheme=scheme)
                browser.open(f"{website.url}/{VIEWS[view]}")
                browser.screenshot(FOLDER / f"{view}-{width}-{scheme}.webp", rows)


if __name__ == "__main__":
    main()
