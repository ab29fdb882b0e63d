"""The status page in a real browser: what a person sees, by eye, by keys, without scripts, on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskserver.stores.tables import SCHEMA_VERSION
from tests.support.browser import Browser
from tests.support.deployment import Deployment
from tests.support.pages import PASSWORD
from tests.support.processes import wait_until
from tests.support.servers import free_port
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


# ---- for everybody


def test_one_signs_in_and_reads_by_keys_alone(browser: Browser, shop: Website) -> None:
    browser.open(f"{shop.url}/")
    assert browser.axe() == []
    assert focused(browser) == "password"
    browser.press("Tab")
    assert focused(browser) == "Sign in"
    browser.press("Shift+Tab", *PASSWORD, "Enter")
    wait_until(lambda: "which no worker takes" in text_of(browser, "h1"))
    browser.press("Tab")
    assert focused(browser) == "To the content"
    assert browser.script("return document.activeElement.getBoundingClientRect().left >= 0")
    browser.press("Enter", "Tab", "Enter")
    wait_until(lambda: text_of(browser, "h1") == "Failed tasks, by error")


LOOKS = [
    (360, "light"),
    *(
        pytest.param(*look, marks=pytest.mark.long)
        for look in [(1440, "dark"), (360, "dark"), (1440, "light"), (768, "light"), (768, "dark")]
    ),
]


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_no_view_has_a_fault_that_can_be_found(browser: Browser, shop: Website, width: int, scheme: str) -> None:
    browser.resize(width, 800, mobile=width < 600)
    browser.prefer(color_scheme=scheme)
    sign_in(browser, shop.url)
    for name, link in VIEWS.items():
        browser.open(f"{shop.url}/{link}")
        assert browser.script("return document.title") != "taken over", name
        assert browser.script(SIDEWAYS) == 0, name
        assert browser.script(UNHIDDEN) == [], name
        assert browser.axe() == [], name
        assert browser.complaints() == [], name


@pytest.mark.long
def test_at_400_percent_nothing_is_lost_or_scrolled_sideways(browser: Browser, shop: Website) -> None:
    browser.resize(320, 256)  # 1,280 pixels of a screen
    sign_in(browser, shop.url)
    for name, link in VIEWS.items():
        browser.open(f"{shop.url}/{link}")
        assert browser.script(SIDEWAYS) == 0, name
        assert browser.script(CUT_OFF) == [], name


# ---- without scripts


@pytest.mark.long
def test_without_scripts_all_is_shown_and_done(browser: Browser, site: PageQueue) -> None:
    fill_shop(site)
    browser.switch_scripts_off()
    with site.served() as website:
        sign_in(browser, website.url)
        for link in VIEWS.values():
            browser.open(f"{website.url}/{link}")
            assert text_of(browser, "main section")
        browser.open(f"{website.url}/?view=errors")
        browser.click("a[href*='verb=retry']")
        wait_until(lambda: text_of(browser, "h1") == "27 tasks would be retried")
        browser.click("main form button")
        wait_until(
            lambda: text_of(browser, "[role=status]") == "27 tasks retried. Workers take them with their next run."
        )
        assert site.sql("SELECT COUNT(*) FROM jobs_queue WHERE status IN (3, 4)") == [(14,)]

        browser.open(f"{website.url}/?view=tasks&status=new&group=6")
        browser.click("input[type=checkbox]")
        browser.click("li:last-child input[type=checkbox]")
        browser.click("button[value=cancel]")
        wait_until(lambda: text_of(browser, "h1") == "2 tasks would be cancelled")
        browser.click("main form button")
        wait_until(lambda: text_of(browser, "[role=status]") == "2 tasks cancelled.")
        assert site.sql("SELECT COUNT(*) FROM jobs_queue WHERE status = 7 AND group_id = 6") == [(2,)]

        for verb, groups in (("pause", [(3,)]), ("resume", [])):
            browser.open(f"{website.url}/")
            browser.click(f"a[href*='verb={verb}']")
            wait_until(lambda: text_of(browser, "h1") == f"Group 3 would be {verb}d")  # noqa: B023 - at once
            browser.click("main form button")
            wait_until(lambda: text_of(browser, "[role=status]") == f"1 group {verb}d.")  # noqa: B023
            assert site.sql("SELECT group_id FROM jobs_queue_paused") == groups
        assert browser.complaints() == []


# ---- with scripts

HURRY = """
window.turns = 0;
const wait = window.setTimeout;
window.setTimeout = (call, milliseconds) => wait(() => { window.turns += 1; call(); }, milliseconds / 40);
"""
"""The page's clock runs 40 times as fast; `turns` counts how often it looked."""


def turns_pass(browser: Browser, count: int = 3) -> None:
    before = browser.script("return turns")
    wait_until(lambda: browser.script("return turns") >= before + count)


FOCUSED = {
    "a figure that changes": ".tiles a",
    "a link": "[aria-labelledby=day] a",
    "what is folded": "details summary",
    "a table": ".wide[aria-label='Table of groups']",
}


def test_the_overview_renews_itself_and_leaves_the_visitor_alone(browser: Browser, deployment: Deployment) -> None:
    site = PageQueue(deployment, "sqlite:///var/taskserver.db", acts=False)
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


@pytest.mark.long
def test_a_page_that_cannot_be_renewed_says_so_until_it_can(browser: Browser, site: PageQueue) -> None:
    site.add("tasks.note")
    browser.before_scripts(HURRY)
    with site.served() as website:
        sign_in(browser, website.url)
        for _ in range(2):
            browser.script(
                "window.real = window.fetch; window.fetch = () => Promise.reject(new TypeError('no network'))"
            )
            wait_until(lambda: "nothing is known" in text_of(browser, "[role=alert]"))
            turns_pass(browser, 2)
            assert browser.script("return document.querySelectorAll('[role=alert]').length") == 1
            assert "All is well" not in text_of(browser, "[role=alert]")
            assert "tasks.note" in text_of(browser)
            assert browser.axe() == []
            browser.script("window.fetch = window.real")
            wait_until(lambda: text_of(browser, "[role=alert], .is-old") == "")
        assert browser.script("return document.title") == "Act · taskserver"
        site.sql("DELETE FROM jobs_queue")
        wait_until(lambda: browser.script("return document.title") == "Look · taskserver")
        site.add("tasks.note")
        site.sql("UPDATE jobs_queue_schema SET version = 5")
        wait_until(lambda: "client.py init" in text_of(browser))
        site.sql(f"UPDATE jobs_queue_schema SET version = {SCHEMA_VERSION}")
        wait_until(lambda: "tasks.note" in text_of(browser))
    wait_until(lambda: "nothing is known" in text_of(browser, "[role=alert]"))  # nobody answers any more


@pytest.mark.long
def test_the_page_of_a_task_that_goes_says_that_it_is_gone(browser: Browser, site: PageQueue) -> None:
    site.add("tasks.note")
    browser.before_scripts(HURRY)
    with site.served() as website:
        sign_in(browser, website.url)
        browser.open(f"{website.url}/?view=task&id=1")
        assert "tasks.note" in text_of(browser)
        site.sql("DELETE FROM jobs_queue")
        wait_until(lambda: "There is no task 1" in text_of(browser))
        site.sql("INSERT INTO jobs_queue (id, task, status, error_text) VALUES (9, 'tasks.note', 4, 'E: no')")
        browser.open(f"{website.url}/?view=tasks&like=9")
        assert "tasks.note" in text_of(browser)
        site.sql("UPDATE jobs_queue SET error_text = NULL")
        wait_until(lambda: "Task 9 is gone, or has no error any more" in text_of(browser))


@pytest.mark.long
def test_what_is_marked_stays_marked_while_the_queue_changes(browser: Browser, site: PageQueue) -> None:
    site.add("tasks.note")
    browser.before_scripts(HURRY)
    with site.served() as website:
        sign_in(browser, website.url)
        browser.open(f"{website.url}/?view=tasks")
        browser.click("input[type=checkbox]")
        browser.press("Tab")  # away from the box, which alone would hold it
        site.add("tasks.brand_new")
        turns_pass(browser)
        assert "tasks.brand_new" not in text_of(browser)
        assert browser.script("return document.querySelectorAll(':checked').length") > 0
        browser.click("input[type=checkbox]")
        browser.press("Tab")
        wait_until(lambda: "tasks.brand_new" in text_of(browser))


@pytest.mark.long
def test_signing_out_ends_what_another_window_shows(browser: Browser, site: PageQueue) -> None:
    with site.served() as website:
        sign_in(browser, website.url)
        browser.open_tab()
        browser.before_scripts(HURRY)
        browser.open(f"{website.url}/?view=workers")
        assert "Workers" in text_of(browser)
        browser.look_at(0)
        browser.click(".out button")
        wait_until(lambda: text_of(browser, "form") != "" and "Password" in text_of(browser))
        browser.look_at(1)
        wait_until(lambda: "Password" in text_of(browser))
        browser.open(f"{website.url}/?view=tasks")
        assert "Password" in text_of(browser)


# ---- a queue that is empty, large, away or old


@pytest.mark.long
def test_an_empty_queue_is_shown_in_words(browser: Browser, site: PageQueue) -> None:
    browser.resize(360, 800, mobile=True)
    with site.served() as website:
        sign_in(browser, website.url)
        assert "There are no tasks." in text_of(browser)
        for name, link in VIEWS.items():
            browser.open(f"{website.url}/{link}")
            assert browser.axe() == [], name
        assert [line for line in browser.complaints() if "404" not in line] == []  # of the task that is not there


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


@pytest.mark.long
def test_a_database_that_is_away_is_told(browser: Browser, deployment: Deployment) -> None:
    site = PageQueue(deployment, f"mysql://somebody:secret@127.0.0.1:{free_port()}/shop", tables=False)
    with site.served() as website:
        browser.open(f"{website.url}/")
        browser.write("input[type=password]", PASSWORD)
        browser.click("button")
        wait_until(lambda: "The database is away" in text_of(browser))
        assert browser.script("return performance.getEntriesByType('navigation')[0].responseStatus") == 503
        assert "secret" not in browser.script("return document.documentElement.outerHTML")
        assert browser.axe() == []


@pytest.mark.long
def test_tables_of_an_older_version_are_told_with_the_way_out(browser: Browser, site: PageQueue) -> None:
    site.sql("UPDATE jobs_queue_schema SET version = 5")
    with site.served() as website:
        browser.open(f"{website.url}/")
        browser.write("input[type=password]", PASSWORD)
        browser.click("button")
        wait_until(lambda: "client.py init" in text_of(browser))
        assert browser.script("return performance.getEntriesByType('navigation')[0].responseStatus") == 503
        assert browser.axe() == []


# ---- the page as one file


@pytest.fixture(scope="module")
def made_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    deployment = Deployment(tmp_path_factory.mktemp("file"))
    site = PageQueue(deployment, "sqlite:///var/taskserver.db")
    fill_shop(site)
    fill_odd(site)
    file = deployment.folder / "queue.html"
    ended = site.client("page", "--output", file, "--every", "5m")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    yield file
    deployment.close()


@pytest.fixture
def file(made_file: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made_file, tmp_path))


def make_old(file: Path, day: str = "2020-01-01") -> None:
    """As if it had been made in 2020, and cron had stopped then."""
    text = file.read_text(encoding="utf-8")
    made = text.index('id="made" datetime="') + len('id="made" datetime="')
    file.write_text(f"{text[:made]}{day}{text[made + 10 :]}", encoding="utf-8")


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), pytest.param(1440, "dark", marks=pytest.mark.long)])
def test_the_file_is_whole_and_without_fault(browser: Browser, file: Path, width: int, scheme: str) -> None:
    browser.resize(width, 800, mobile=width < 600)
    browser.prefer(color_scheme=scheme)
    browser.open(file.as_uri())
    assert "just now" in text_of(browser)
    assert "older than it should be" not in text_of(browser)
    assert browser.script("return document.title") == "Act · taskserver"
    assert browser.script(SIDEWAYS) == 0
    assert browser.axe() == browser.complaints() == []
    assert browser.script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.long
def test_a_file_that_cron_no_longer_makes_warns_of_it(browser: Browser, file: Path) -> None:
    make_old(file)
    browser.open(file.as_uri())
    assert "days ago" in text_of(browser)
    assert "This page is older than it should be" in text_of(browser)
    assert text_of(browser, "h1").startswith("Nothing is known since ")
    assert browser.axe() == browser.complaints() == []


LATER = """
window.ahead = 0;
const now = Date.now, every = window.setInterval;
Date.now = () => now() + window.ahead;
window.setInterval = (call, milliseconds) => every(call, milliseconds / 40);
"""
"""The page's clock can be put forward, and it looks more often."""


@pytest.mark.long
def test_a_window_that_was_left_open_loads_the_file_again_before_it_warns(browser: Browser, file: Path) -> None:
    browser.before_scripts(LATER)
    browser.open(file.as_uri())
    browser.script("window.mark = 'the old copy'; window.ahead = 1000 * 1000")
    wait_until(lambda: browser.script("return document.readyState === 'complete' && window.mark !== 'the old copy'"))
    assert "just now" in text_of(browser)
    assert "older than it should be" not in text_of(browser)


@pytest.mark.long
def test_a_file_of_a_clock_that_is_ahead_says_so(browser: Browser, file: Path) -> None:
    make_old(file, "2090-01-01")
    browser.open(file.as_uri())
    assert "at a time that is still to come" in text_of(browser)


@pytest.mark.long
def test_the_file_says_its_age_without_scripts_too(browser: Browser, file: Path) -> None:
    make_old(file)
    browser.switch_scripts_off()
    browser.open(file.as_uri())
    assert "If that is more than 15 min ago, cron has stopped" in text_of(browser)
    assert "which no worker takes" in text_of(browser, "h1")
    browser.resize(320, 800)
    assert browser.script(SIDEWAYS) == 0
    assert browser.script(CUT_OFF) == []
