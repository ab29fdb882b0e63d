"""The browser of the tests: what it is asked to be, pages find it to be."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser
from tests.support.processes import wait_until
from tests.support.websites import Website, gunicorn_website

pytestmark = pytest.mark.long

SITE = '''
PAGE = """<!DOCTYPE html><html lang="en"><title>A page</title>
<style>
  body { background: white; height: 3000px }
  @media (prefers-color-scheme: dark) { body { background: black; color: white } }
  @media (prefers-reduced-motion: reduce) { main { order: 1 } }
</style>
<main><h1>A page</h1><form action="/asked"><label>Name <input name="name"></label> <button>Ask</button></form></main>
<script src="/script"></script>
"""
PAGES = {
    "/": ("text/html", PAGE),
    "/script": ("text/javascript", "document.title += ', with its script'"),
    "/strict": ("text/html", PAGE + "<script>document.title = 'of an inline script'</script>"),
    "/poor": ("text/html", "<title>A poor page</title><img src='/script'><p style='color: #eee'>pale"),
}

def application(environ, start_response):
    kind, text = PAGES.get(environ["PATH_INFO"], ("text/html", f"<title>{environ['QUERY_STRING']}</title>"))
    policy = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src 'self'; form-action 'self'"
    start_response("200 OK", [("Content-Type", kind), ("Content-Security-Policy", policy)])
    return [text.encode()]
'''


@pytest.fixture(scope="module")
def website(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Website]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "pages.py").write_text(SITE)
    with gunicorn_website(folder, "pages", workers=1) as website:
        yield website


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as browser:
        yield browser


def title(browser: Browser) -> str:
    return str(browser.script("return document.title"))


def color(browser: Browser) -> str:
    return str(browser.script("return getComputedStyle(document.body).backgroundColor"))


def test_a_page_finds_the_size_and_the_preferences_that_were_asked_for(browser: Browser, website: Website) -> None:
    browser.resize(360, 640, scale=2)
    browser.prefer(color_scheme="dark", reduced_motion="reduce")
    browser.open(website.url)
    assert browser.script("return [innerWidth, innerHeight, devicePixelRatio]") == [360, 640, 2]
    assert color(browser) == "rgb(0, 0, 0)"
    assert browser.script("return getComputedStyle(document.querySelector('main')).order") == "1"
    browser.prefer(color_scheme="light")
    assert color(browser) == "rgb(255, 255, 255)"
    assert browser.script("return getComputedStyle(document.querySelector('main')).order") == "0"


def test_a_screenshot_shows_the_whole_page(browser: Browser, website: Website, tmp_path: Path) -> None:
    browser.resize(400, 300)
    browser.open(website.url)
    browser.screenshot(tmp_path / "page.png")
    picture = (tmp_path / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert width == 400
    assert height > 3000


def test_keys_and_clicks_do_what_a_persons_do(browser: Browser, website: Website) -> None:
    browser.open(website.url)
    browser.press("Tab", "A", "d", "a", "Tab", "Shift+Tab")
    assert browser.script("return document.activeElement.name") == "name"
    browser.press("Enter")
    wait_until(lambda: title(browser) == "name=Ada")
    browser.open(website.url)
    browser.write("input", "Bob")
    browser.click("button")
    wait_until(lambda: title(browser) == "name=Bob")


def test_what_the_browser_cannot_do_is_told(browser: Browser, website: Website) -> None:
    browser.open(website.url)
    with pytest.raises(AssertionError, match=r"no such element.*missing"):
        browser.click("#missing")


def test_a_page_runs_no_scripts_once_they_are_off(browser: Browser, website: Website) -> None:
    browser.open(website.url)
    assert title(browser) == "A page, with its script"
    browser.switch_scripts_off()
    browser.open(website.url)
    assert title(browser) == "A page"
    browser.write("input", "Ada")
    browser.click("button")
    wait_until(lambda: title(browser) == "name=Ada")


def test_what_a_page_may_not_do_is_among_the_complaints(browser: Browser, website: Website) -> None:
    browser.open(website.url)
    assert [text for text in browser.complaints() if "favicon" not in text] == []
    browser.open(f"{website.url}/strict")
    (complaint,) = browser.complaints()
    assert "Content Security Policy" in complaint
    assert browser.complaints() == []
    assert title(browser) == "A page, with its script"


def test_axe_finds_faults_though_the_page_allows_no_foreign_script(browser: Browser, website: Website) -> None:
    browser.open(website.url)
    assert browser.axe() == []
    browser.open(f"{website.url}/poor")
    found = {line.partition(":")[0] for line in browser.axe()}
    assert {"image-alt", "html-has-lang", "landmark-one-main"} <= found
