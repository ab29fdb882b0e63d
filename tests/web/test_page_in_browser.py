"""Five journeys over the status page in a real browser: by keys, without scripts, with them, the file, a crowd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser
from tests.support.deployment import Deployment
from tests.support.pages import PASSWORD
from tests.support.processes import wait_until
from tests.support.websites import Website
from tests.web.sites import VIEWS, PageQueue, fill_odd, fill_shop, fill_up, sign_in

SIDEWAYS = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNHIDDEN = """
return [...document.querySelectorAll(".skip")].filter(node => node.offsetWidth > 1 || node.offsetHeight > 1)
    .map(node => node.outerHTML.slice(0, 200));
"""
"""Whatever is for those alone who listen to the page, and covers what others see."""
CUT_OFF = """
return [...document.querySelectorAll("body *")].filter(node => {
    const box = node.getBoundingClientRect();
    const isShown = box.width && !node.closest(".skip, .wide table, svg *, details:not([open]) > :not(summary)");
    const isCut = getComputedStyle(node).overflow === "hidden" && node.scrollWidth > node.clientWidth;
    return isShown && (box.right > innerWidth + 1 || box.left < -1 || isCut);
}).map(node => node.outerHTML.slice(0, 200));
"""
"""Whatever lies outside the window; a table, which has two dimensions, may be scrolled in its own frame."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Website]:
    """A page over rows of every kind, which no test changes."""
    deployment = Deployment(tmp_path_factory.mktemp("shop"))
    site = PageQueue(deployment, "sqlite:///var/taskserver.db")
    fill_shop(site)
    fill_odd(site)
    with site.served() as website:
        yield website
    deployment.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as browser:
        yield browser


@pytest.fixture
def site(deployment: Deployment) -> PageQueue:
    return PageQueue(deployment, "sqlite:///var/taskserver.db")


def text_of(browser: Browser, selector: str = "main") -> str:
    return str(browser.script(f"return document.querySelector({selector!r})?.innerText ?? ''"))


def focused(browser: Browser) -> str:
    return str(browser.script("return document.activeElement.innerText || document.activeElement.name"))


LOOKS = [(360, "light"), pytest.param(1440, "dark", marks=pytest.mark.long)]


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_one_signs_in_by_keys_and_finds_no_view_with_a_fault(
    browser: Browser, shop: Website, width: int, scheme: str
) -> None:
    browser.resize(width, 800, mobile=width < 600)
    browser.prefer(color_scheme=scheme)
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
    for name, link in VIEWS.items():
        browser.open(f"{shop.url}/{link}")
        assert browser.script("return document.title") != "taken over", name
        assert browser.script(SIDEWAYS) == 0, name
        assert browser.script(UNHIDDEN) == [], name
        assert browser.axe() == [], name
        assert browser.complaints() == [], name
    browser.resize(320, 256)  # 1,280 pixels of a screen, at 400 percent
    for name, link in VIEWS.items():
        browser.open(f"{shop.url}/{link}")
        assert (browser.script(SIDEWAYS), browser.script(CUT_OFF)) == (0, []), name


@pytest.mark.long
def test_without_scripts_all_is_shown_and_done(browser: Browser, site: PageQueue) -> None:
    fill_shop(site)
    browser.switch_scripts_off()

    def act(question: str, done: str) -> None:
        wait_until(lambda: text_of(browser, "h1") == question)
        browser.click("main form button")
        wait_until(lambda: text_of(browser, "[role=status]") == done)

    with site.served() as website:
        sign_in(browser, website.url)
        for link in VIEWS.values():
            browser.open(f"{website.url}/{link}")
            assert text_of(browser, "main section")
        browser.open(f"{website.url}/?view=errors")
        browser.click("a[href*='verb=retry']")
        act("27 tasks would be retried", "27 tasks retried. Workers take them with their next run.")
        assert site.sql("SELECT COUNT(*) FROM jobs_queue WHERE status IN (3, 4)") == [(14,)]
        for status, verb, done in (("new", "cancel", "cancelled"), ("fatal", "delete", "deleted")):
            browser.open(f"{website.url}/?view=tasks&status={status}")
            browser.click("input[type=checkbox]")
            browser.click("li:last-child input[type=checkbox]")
            browser.click(f"button[value={verb}]")
            act(f"2 tasks would be {done}", f"2 tasks {done}.")
        assert site.sql("SELECT COUNT(*) FROM jobs_queue WHERE status IN (4, 7)") == [(14,)]
        for verb, groups in (("pause", [(3,)]), ("resume", [])):
            browser.open(f"{website.url}/")
            browser.click(f"a[href*='verb={verb}']")
            act(f"Group 3 would be {verb}d", f"1 group {verb}d.")
            assert site.sql("SELECT group_id FROM jobs_queue_paused") == groups
        assert browser.complaints() == []


HURRY = """
window.turns = 0;
const wait = window.setTimeout;
window.setTimeout = (call, milliseconds) => wait(() => { window.turns += 1; call(); }, milliseconds / 40);
"""
"""The page's clock runs 40 times as fast; `turns` counts how often it looked."""
FOCUSED = {
    "a figure that changes": ".tiles a",
    "a link": "[aria-labelledby=day] a",
    "what is folded": "details summary",
    "a table": ".wide[aria-label='Table of groups']",
}


def turns_pass(browser: Browser, count: int = 3) -> None:
    before = browser.script("return turns")
    wait_until(lambda: browser.script("return turns") >= before + count)


def test_the_page_renews_itself_and_leaves_the_visitor_alone(browser: Browser, site: PageQueue) -> None:
    fill_shop(site)
    browser.resize(360, 600)
    browser.before_scripts(HURRY)
    with site.served() as website:
        sign_in(browser, website.url)
        browser.click("details summary")
        browser.script("window.mark = 'the same'; document.querySelector('.wide').scrollLeft = 70")
        for number, (what, selector) in enumerate(FOCUSED.items()):
            browser.script("document.querySelector(arguments[0]).focus(); window.scrollTo(0, 200)", selector)
            site.add(f"tasks.brand_new_{number}")
            wait_until(lambda: f"tasks.brand_new_{number}" in text_of(browser))  # noqa: B023 - at once
            is_focused = "return document.activeElement === document.querySelector(arguments[0])"
            assert browser.script(is_focused, selector), what
            # More than 200 where what stands above has grown: the browser keeps what is seen where it is.
            assert browser.script("return [scrollY >= 200, document.querySelector('.wide').scrollLeft]") == [True, 70]
            assert browser.script("return document.querySelectorAll('details[open]').length") == 1
        assert browser.script("return window.mark") == "the same"
        assert browser.complaints() == []

        browser.script("window.real = window.fetch; window.fetch = () => Promise.reject(new TypeError('no network'))")
        wait_until(lambda: "nothing is known" in text_of(browser, "[role=alert]"))
        turns_pass(browser, 2)
        assert browser.script("return document.querySelectorAll('[role=alert]').length") == 1
        browser.script("window.fetch = window.real")
        wait_until(lambda: text_of(browser, "[role=alert], .is-old") == "")

        browser.open(f"{website.url}/?view=tasks")
        browser.click("input[type=checkbox]")
        browser.press("Tab")  # away from the box, which alone would hold it
        site.add("tasks.added_meanwhile")
        turns_pass(browser)
        assert "tasks.added_meanwhile" not in text_of(browser)
        browser.click("input[type=checkbox]")
        browser.press("Tab")
        wait_until(lambda: "tasks.added_meanwhile" in text_of(browser))

        browser.open(f"{website.url}/?view=task&id=1")
        site.sql("DELETE FROM jobs_queue WHERE id = 1")
        wait_until(lambda: "There is no task 1" in text_of(browser))
        browser.open_tab()
        browser.before_scripts(HURRY)
        browser.open(f"{website.url}/?view=workers")
        browser.look_at(0)
        browser.click(".out button")
        wait_until(lambda: "Password" in text_of(browser))
        browser.look_at(1)
        wait_until(lambda: "Password" in text_of(browser))


LATER = """
window.ahead = 0;
const now = Date.now, every = window.setInterval;
Date.now = () => now() + window.ahead;
window.setInterval = (call, milliseconds) => every(call, milliseconds / 40);
"""
"""The page's clock can be put forward, and it looks more often."""


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_file_is_whole_and_says_how_old_it_is(
    browser: Browser, site: PageQueue, tmp_path: Path, width: int, scheme: str
) -> None:
    fill_shop(site)
    fill_odd(site)
    file = tmp_path / "queue.html"
    ended = site.client("page", "--output", file, "--every", "5m")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    browser.resize(width, 800, mobile=width < 600)
    browser.prefer(color_scheme=scheme)
    browser.before_scripts(LATER)
    browser.open(file.as_uri())
    assert "just now" in text_of(browser)
    assert "older than it should be" not in text_of(browser)
    assert browser.script(SIDEWAYS) == 0
    assert browser.axe() == browser.complaints() == []
    assert browser.script("return performance.getEntriesByType('resource').length") == 0

    # A window that was left open loads the file again before it warns.
    browser.script("window.mark = 'the old copy'; window.ahead = 1000 * 1000")
    wait_until(lambda: browser.script("return document.readyState === 'complete' && window.mark !== 'the old copy'"))
    assert "just now" in text_of(browser)

    text = file.read_text(encoding="utf-8")
    made = text.index('id="made" datetime="') + len('id="made" datetime="')
    for day, words in (("2020-01-01", "days ago"), ("2090-01-01", "at a time that is still to come")):
        file.write_text(f"{text[:made]}{day}{text[made + 10 :]}", encoding="utf-8")
        browser.open(file.as_uri())
        assert words in text_of(browser)
        assert ("This page is older than it should be" in text_of(browser)) is (day < "2026")
    browser.switch_scripts_off()
    browser.resize(320, 800)
    browser.open(file.as_uri())
    assert "If that is more than 15 min ago, cron has stopped" in text_of(browser)
    assert (browser.script(SIDEWAYS), browser.script(CUT_OFF)) == (0, [])


@pytest.mark.long
def test_a_queue_of_100_000_tasks_is_shown_at_once(browser: Browser, deployment: Deployment, dsn: str) -> None:
    site = PageQueue(deployment, dsn)
    fill_shop(site)
    fill_odd(site)
    fill_up(site, 100_000)
    with site.served() as website:
        sign_in(browser, website.url)
        for name, link in VIEWS.items():
            browser.open(f"{website.url}/{link}")
            took = browser.script("return performance.getEntriesByType('navigation')[0].responseEnd")
            assert took < 5000, name
            assert browser.script("return document.querySelectorAll('*').length") < 3000, name
        browser.open(f"{website.url}/?view=tasks&status=fatal")
        first = text_of(browser, "ol")
        browser.click("nav[aria-label=Pages] a")
        wait_until(lambda: text_of(browser, "ol") not in ("", first))
