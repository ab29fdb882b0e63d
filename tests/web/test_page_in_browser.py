"""Three journeys over the status page in a real browser: by keys, with its scripts, the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser
from tests.support.deployment import Deployment
from tests.support.pages import PASSWORD
from tests.support.processes import wait_until
from tests.web.sites import VIEWS, PageQueue, fill_odd, fill_shop, sign_in

SIDEWAYS = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT_OFF = """
return [...document.querySelectorAll("body *")].filter(node => {
    const box = node.getBoundingClientRect();
    const isShown = box.width && !node.closest(".skip, .wide table, svg *, details:not([open]) > :not(summary)");
    const isCut = getComputedStyle(node).overflow === "hidden" && node.scrollWidth > node.clientWidth;
    return isShown && (box.right > innerWidth + 1 || box.left < -1 || isCut);
}).map(node => node.outerHTML.slice(0, 200));
"""
"""Whatever lies outside the window; a table, which has two dimensions, may be scrolled in its own frame."""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as browser:
        browser.resize(360, 800, mobile=True)
        yield browser


@pytest.fixture
def site(deployment: Deployment) -> PageQueue:
    return PageQueue(deployment)


def text_of(browser: Browser, selector: str = "main") -> str:
    return str(browser.script(f"return document.querySelector({selector!r})?.innerText ?? ''"))


def focused(browser: Browser) -> str:
    return str(browser.script("return document.activeElement.innerText || document.activeElement.name"))


def test_one_signs_in_by_keys_and_finds_no_view_with_a_fault(browser: Browser, site: PageQueue) -> None:
    fill_shop(site)
    fill_odd(site)
    with site.served() as shop:
        browser.open(f"{shop.url}/")
        assert browser.axe() == []
        assert focused(browser) == "password"
        browser.press("Tab")
        assert focused(browser) == "Sign in"
        browser.press("Shift+Tab", *PASSWORD, "Enter")
        wait_until(lambda: "tasks failed for good" in text_of(browser, "h1"))
        browser.complaints()  # of the code 403, with which the page asks for the password
        browser.press("Tab")
        assert focused(browser) == "To the content"
        browser.press("Enter", "Tab", "Enter")
        wait_until(lambda: text_of(browser, "h1") == "Failed tasks, by error")
        for number, (name, link) in enumerate(VIEWS.items()):
            browser.prefer(color_scheme=("light", "dark")[number % 2])
            browser.resize(360, 800, mobile=True)
            browser.open(f"{shop.url}/{link}")
            assert browser.script("return document.title") != "taken over", name
            assert browser.script(SIDEWAYS) == 0, name
            assert browser.axe() == [], name
            assert browser.complaints() == [], name
            browser.resize(320, 256)  # 1,280 pixels of a screen, at 400 percent
            assert (browser.script(SIDEWAYS), browser.script(CUT_OFF)) == (0, []), name


HURRY = """
window.turns = 0;
const wait = window.setTimeout;
window.setTimeout = (call, milliseconds) => wait(() => { window.turns += 1; call(); }, milliseconds / 40);
"""
"""The page's clock runs 40 times as fast; `turns` counts how often it looked."""


def test_the_page_renews_itself_and_leaves_the_visitor_alone(browser: Browser, site: PageQueue) -> None:
    fill_shop(site)
    browser.before_scripts(HURRY)
    with site.served() as website:
        sign_in(browser, website.url)
        browser.click("details summary")
        browser.script("window.mark = 'the same'; document.querySelector('.wide').scrollLeft = 70")
        for number, selector in enumerate((".tiles a", "details summary")):
            browser.script("document.querySelector(arguments[0]).focus(); window.scrollTo(0, 200)", selector)
            site.add(f"tasks.brand_new_{number}")
            wait_until(lambda: f"tasks.brand_new_{number}" in text_of(browser))  # noqa: B023 - at once
            is_focused = "return document.activeElement === document.querySelector(arguments[0])"
            assert browser.script(is_focused, selector), selector
            # More than 200 where what stands above has grown: the browser keeps what is seen where it is.
            assert browser.script("return [scrollY >= 200, document.querySelector('.wide').scrollLeft]") == [True, 70]
            assert browser.script("return document.querySelectorAll('details[open]').length") == 1
        assert (browser.script("return window.mark"), browser.complaints()) == ("the same", [])

        browser.script("window.real = window.fetch; window.fetch = () => Promise.reject(new TypeError('no network'))")
        wait_until(lambda: "nothing is known" in text_of(browser, "[role=alert]"))
        browser.script("window.fetch = window.real")
        wait_until(lambda: text_of(browser, "[role=alert], .is-old") == "")

        browser.open(f"{website.url}/?view=tasks")
        browser.click("input[type=checkbox]")
        browser.press("Tab")  # away from the box, which would hold it by itself
        site.add("tasks.added_meanwhile")
        before = browser.script("return turns")
        wait_until(lambda: browser.script("return turns") > before + 2)
        assert "tasks.added_meanwhile" not in text_of(browser)
        browser.click("input[type=checkbox]")
        browser.press("Tab")
        wait_until(lambda: "tasks.added_meanwhile" in text_of(browser))


def test_the_file_is_whole_and_says_how_old_it_is(browser: Browser, site: PageQueue, tmp_path: Path) -> None:
    fill_shop(site)
    fill_odd(site)
    file = tmp_path / "queue.html"
    ended = site.client("page", "--output", file, "--every", "5m")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    browser.open(file.as_uri())
    assert "just now" in text_of(browser)
    assert browser.script(SIDEWAYS) == 0
    assert browser.complaints() == []
    assert browser.script("return performance.getEntriesByType('resource').length") == 0

    text = file.read_text(encoding="utf-8")
    made = text.index('id="made" datetime="') + len('id="made" datetime="')
    for day, words in (("2020-01-01", "days ago"), ("2090-01-01", "at a time that is still to come")):
        file.write_text(f"{text[:made]}{day}{text[made + 10 :]}", encoding="utf-8")
        browser.open(file.as_uri())
        assert words in text_of(browser)
        assert ("This page is too old" in text_of(browser)) is (day < "2026")
