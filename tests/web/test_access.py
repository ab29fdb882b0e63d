"""Who may see the page, and what everybody else gets."""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from taskserver.web import access, application_of, guesses, private_files
from taskserver.web.private_files import PrivateFiles
from tests.support.pages import PASSWORD, URL, PageSite, Visitor

OFFICE = "198.51.100.0/24, 2001:db8::/48"
VIEWS = ("", "tasks", "task&id=1", "errors", "hours", "schedules", "workers", "doctor", "confirm&verb=retry&id=1")


def may_see(visitor: Visitor, **more: Any) -> bool:
    return "Groups" in visitor.get(**more).text


# ---- with neither a password nor addresses


def test_a_page_without_password_and_addresses_is_shown_to_nobody(site: PageSite) -> None:
    site.set()
    answer = site.visitor().get()
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert "TASKSERVER_PAGE_PASSWORD or TASKSERVER_PAGE_ALLOW is to be set" in answer.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"TASKSERVER_PAGE_PASSWORD": "secret"},
        {"TASKSERVER_PAGE_ALLOW": "203.0.113.300"},
        {"TASKSERVER_PAGE_PROXIES": "the proxy"},
        {"TASKSERVER_PAGE_ALLOW": "::1", "TASKSERVER_PAGE_ACTIONS": "maybe"},
        {"TASKSERVER_METRICS_TOKEN": "abc"},
        {"TASKSERVER_ADD_TOKENS": "shop;sha256=12;tasks=*;groups=*"},
    ],
)
def test_a_wrong_setting_closes_the_page_and_tells_strangers_its_name_alone(
    site: PageSite, wrong: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    site.set(**wrong)
    answer = site.visitor().get()
    *_, key = wrong
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert f"{key} is wrong or missing" in answer.text
    assert str(site.folder) not in answer.text
    assert wrong[key] not in answer.text


# ---- by password


@pytest.mark.parametrize("view", VIEWS)
def test_without_the_password_each_view_asks_for_it_and_shows_nothing(site: PageSite, view: str) -> None:
    site.server.add_task("tasks.secret_name")
    answer = site.visitor().get(f"view={view}")
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert 'type="password"' in answer.text
    assert "secret_name" not in answer.text
    assert "jobs_queue" not in answer.text


def test_the_password_lets_in_by_a_cookie_that_no_script_and_no_other_site_gets(site: PageSite) -> None:
    visitor = site.visitor()
    assert visitor.sign_in("wrong").status_code == HTTPStatus.FORBIDDEN
    assert not may_see(visitor)
    answer = visitor.sign_in()
    assert (answer.status_code, answer.headers["Location"]) == (HTTPStatus.SEE_OTHER, "?view=overview")
    for cookie in answer.headers.getlist("Set-Cookie"):
        assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert may_see(visitor)


def test_a_cookie_is_for_the_path_alone_below_which_the_page_is_mounted(site: PageSite) -> None:
    answer = site.visitor().sign_in(environ={"SCRIPT_NAME": "/queue"})
    assert all("Path=/queue" in cookie.split("; ") for cookie in answer.headers.getlist("Set-Cookie"))


def session_of(visitor: Visitor) -> str:
    cookie = visitor.client.get_cookie(access.SESSION_COOKIE, "site.example")
    assert cookie is not None
    return cookie.value


def test_a_session_outlives_a_restart_and_ends_by_signing_out_for_all_who_have_the_cookie(site: PageSite) -> None:
    owner, thief = site.owner(), site.visitor()
    thief.client.set_cookie(access.SESSION_COOKIE, session_of(owner), domain="site.example")
    assert may_see(thief)
    assert owner.post("view=sign-out", data={"token": owner.token()}).status_code == HTTPStatus.SEE_OTHER
    assert not may_see(owner)
    assert not may_see(thief)


def test_a_session_ends_with_its_time_and_with_another_password(
    site: PageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = site.owner()
    with monkeypatch.context() as later:
        later.setattr(access, "SESSION_SECONDS", -1)
        assert not may_see(owner)
    assert may_see(owner)
    site.set(TASKSERVER_PAGE_PASSWORD="pbkdf2:sha256:1000$other$" + "0" * 64)
    assert not may_see(owner)


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: "x" + text, lambda text: "", lambda text: "é"])
def test_a_cookie_that_was_changed_lets_nobody_in(site: PageSite, change: object) -> None:
    session = session_of(site.owner())
    visitor = site.visitor()
    assert callable(change)
    visitor.client.set_cookie(access.SESSION_COOKIE, change(session), domain="site.example")
    assert not may_see(visitor)


def test_a_cookie_of_a_form_or_of_a_known_browser_is_no_session(site: PageSite) -> None:
    owner = site.owner()
    known = owner.client.get_cookie(access.KNOWN_COOKIE, "site.example")
    assert known is not None
    for text in (known.value, owner.token()):
        visitor = site.visitor()
        visitor.client.set_cookie(access.SESSION_COOKIE, text, domain="site.example")
        assert not may_see(visitor)


def test_who_has_signed_in_and_sends_the_form_once_more_sees_the_page(site: PageSite) -> None:
    owner = site.owner()
    assert owner.sign_in("wrong").headers["Location"] == "?view=overview"


# ---- guesses


def guess_until_slowed(visitor: Visitor) -> int:
    """How many guesses were compared."""
    for number in range(130):
        answer = visitor.sign_in("wrong")
        if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            assert int(answer.headers["Retry-After"]) > 0
            assert "Too many guesses" in answer.text
            return number
    raise AssertionError("nobody slowed it down")


ADDRESS, NETWORK, PROVIDER = guesses.LEVELS


@pytest.mark.parametrize("address", ["203.0.114.7", "2a01:db8::7"])
def test_guesses_are_slowed_whatever_is_restarted_and_the_right_password_waits_too(
    site: PageSite, address: str
) -> None:
    assert guess_until_slowed(site.visitor(address)) == ADDRESS.free
    assert site.visitor(address).sign_in("wrong").status_code == HTTPStatus.TOO_MANY_REQUESTS
    assert site.visitor(address).sign_in().status_code == HTTPStatus.TOO_MANY_REQUESTS


def test_guesses_from_elsewhere_do_not_lock_the_owner_out(site: PageSite) -> None:
    owner = site.owner("8.8.8.8")
    owner.post("view=sign-out", data={"token": owner.token()})
    guess_until_slowed(site.visitor("8.8.8.8"))
    assert site.visitor("9.9.9.9").sign_in().status_code == HTTPStatus.SEE_OTHER
    # Behind one proxy all have one address: the owner's browser is known by its cookie.
    assert owner.sign_in().status_code == HTTPStatus.SEE_OTHER


@pytest.mark.parametrize(
    ("addresses", "compared"),
    [
        ("2a01:db8::{}", ADDRESS.free),
        ("2a01:db8:1:{}::1", NETWORK.free),
        ("2a01:db8:{}::1", PROVIDER.free),
        ("8.8.8.{}", NETWORK.free),
        ("8.8.{}.8", PROVIDER.free),
    ],
)
def test_guesses_from_many_addresses_of_one_network_are_slowed_together_and_nobody_else_s(
    site: PageSite, monkeypatch: pytest.MonkeyPatch, addresses: str, compared: int
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    codes = [site.visitor(addresses.format(number)).sign_in("wrong").status_code for number in range(1, compared + 20)]
    assert codes.count(HTTPStatus.FORBIDDEN) == compared
    assert site.visitor("9.9.9.9").sign_in().status_code == HTTPStatus.SEE_OTHER
    assert site.visitor("2001:4860::1").sign_in().status_code == HTTPStatus.SEE_OTHER


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "", "fd00::1", "100.64.1.9"])
def test_an_address_that_may_be_everybody_s_waits_for_seconds_at_most(
    site: PageSite, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    for _ in range(130):
        site.visitor(address).sign_in("wrong")
    now += 6
    assert site.visitor(address).sign_in().status_code == HTTPStatus.SEE_OTHER
    # By which others' guesses there are not forgiven.
    assert site.visitor(address).sign_in().status_code == HTTPStatus.TOO_MANY_REQUESTS


def test_waits_grow_and_are_forgotten_with_time(site: PageSite, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    visitor = site.visitor("8.8.8.8")
    guess_until_slowed(visitor)
    waits = []
    for _ in range(12):
        waits.append(int(visitor.sign_in("wrong").headers["Retry-After"]))
        now += waits[-1] + 0.1
        assert visitor.sign_in("wrong").status_code == HTTPStatus.FORBIDDEN
    assert waits[:4] == [1, 2, 4, 8]
    assert ADDRESS.most_seconds / 2 < max(waits) <= ADDRESS.most_seconds
    now += 86_400
    assert guess_until_slowed(visitor) == ADDRESS.free


def test_a_clock_that_was_set_back_has_nobody_wait_for_the_time_that_was(
    site: PageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_086_400.0
    monkeypatch.setattr("time.time", lambda: now)
    visitor = site.visitor("8.8.8.8")
    guess_until_slowed(visitor)
    now -= 86_400
    assert visitor.sign_in().status_code == HTTPStatus.TOO_MANY_REQUESTS
    now += 2
    assert visitor.sign_in().status_code == HTTPStatus.SEE_OTHER


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_secret_that_a_full_disk_left_behind_is_made_anew(site: PageSite, content: bytes) -> None:
    site.owner()
    path = site.folder / "var" / "page" / "secret"
    path.write_bytes(content)
    assert site.visitor().sign_in().status_code == HTTPStatus.SEE_OTHER
    assert len(path.read_bytes()) == private_files.SECRET_BYTES


def test_who_fills_the_list_of_guesses_holds_up_the_others_for_seconds_at_most(
    site: PageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guesses, "MAX_COUNTERS", 30)
    now = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    for number in range(300):
        site.visitor(f"2a{number % 90 + 10}:db8:{number}::1").sign_in("wrong")
    now += 6
    assert site.visitor("9.9.9.9").sign_in().status_code == HTTPStatus.SEE_OTHER
    assert (site.folder / "var" / "page" / "guesses").stat().st_size < 10_000


def test_a_guess_that_another_site_has_a_browser_send_is_not_counted(site: PageSite) -> None:
    visitor = site.visitor()
    for _ in range(20):
        answer = visitor.sign_in("wrong", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == HTTPStatus.FORBIDDEN
    assert visitor.sign_in().status_code == HTTPStatus.SEE_OTHER


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 7}', '{"a": ["x", 1, 2]}', "\0\0"])
def test_a_list_of_guesses_that_was_cut_off_is_begun_anew(site: PageSite, text: str) -> None:
    site.visitor().sign_in("wrong")
    (site.folder / "var" / "page" / "guesses").write_text(text)
    assert site.visitor().sign_in().status_code == HTTPStatus.SEE_OTHER


def test_many_guesses_at_once_are_as_few_as_one_after_the_other(site: PageSite) -> None:
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda number: site.visitor("8.8.8.8").sign_in("wrong").status_code, range(24)))
    assert codes.count(HTTPStatus.FORBIDDEN) == ADDRESS.free


def test_the_page_s_files_are_for_their_owner_alone(site: PageSite) -> None:
    site.owner()
    folder = site.folder / "var" / "page"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path for path in folder.iterdir() if path.stat().st_mode & 0o077] == []


def test_old_marks_of_sign_outs_go(site: PageSite) -> None:
    owner = site.owner()
    owner.post("view=sign-out", data={"token": owner.token()})
    (mark,) = (site.folder / "var" / "page").glob("ended-*")
    os.utime(mark, (1, 1))
    site.owner()
    assert not mark.exists()


def test_a_folder_that_is_removed_while_the_page_runs_is_made_anew(site: PageSite) -> None:
    owner = site.owner()
    shutil.rmtree(site.folder / "var" / "page")
    assert owner.get().status_code == HTTPStatus.FORBIDDEN
    assert owner.sign_in().status_code == HTTPStatus.SEE_OTHER


def test_processes_and_threads_that_begin_at_once_have_one_secret(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        with ThreadPoolExecutor(8) as pool:
            folder = tmp_path / str(number)
            secrets = set(pool.map(lambda _, at=folder: PrivateFiles(at).secret(), range(8)))
        assert len(secrets) == 1


# ---- by address


@pytest.mark.parametrize(
    ("address", "sees"),
    [
        ("198.51.100.7", True),
        ("::ffff:198.51.100.7", True),
        ("2001:db8::7", True),
        ("203.0.113.7", False),
        ("2001:db9::7", False),
        ("", False),
        ("unix:", False),
    ],
)
def test_listed_addresses_see_the_page_without_a_password(site: PageSite, address: str, sees: bool) -> None:
    site.set(TASKSERVER_PAGE_ALLOW=OFFICE)
    visitor = site.visitor(address)
    assert may_see(visitor) is sees
    assert visitor.get().status_code == (HTTPStatus.OK if sees else HTTPStatus.FORBIDDEN)


def test_with_addresses_and_a_password_both_are_needed(site: PageSite) -> None:
    from tests.support.pages import PASSWORD_HASH

    site.set(TASKSERVER_PAGE_ALLOW=OFFICE, TASKSERVER_PAGE_PASSWORD=PASSWORD_HASH)
    inside, outside = site.visitor("198.51.100.7"), site.visitor()
    assert 'type="password"' in inside.get().text
    assert inside.sign_in().status_code == HTTPStatus.SEE_OTHER
    assert may_see(inside)
    assert outside.sign_in().status_code == HTTPStatus.FORBIDDEN
    assert 'type="password"' not in outside.get().text


@pytest.mark.parametrize(
    ("connection", "said", "sees"),
    [
        ("10.0.0.1", "198.51.100.7", True),
        ("10.0.0.1", "203.0.113.7, 198.51.100.7", True),
        ("10.0.0.1", "198.51.100.7, 10.0.0.2", True),
        ("10.0.0.1", "198.51.100.7, 203.0.113.7", False),
        ("10.0.0.1", "", False),
        ("10.0.0.1", "nonsense", False),
        ("", "198.51.100.7", True),
        # Nobody's word but a listed proxy's; and what comes by another one comes from who knows where.
        ("203.0.113.7", "198.51.100.7", False),
        ("198.51.100.7", "198.51.100.7", False),
    ],
)
def test_the_word_of_listed_proxies_alone_counts(site: PageSite, connection: str, said: str, sees: bool) -> None:
    site.set(TASKSERVER_PAGE_ALLOW=OFFICE, TASKSERVER_PAGE_PROXIES="10.0.0.0/8, unix")
    assert may_see(site.visitor(connection), headers={"X-Forwarded-For": said}) is sees


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_a_proxy_that_is_not_listed_is_known_by_any_of_its_headers(site: PageSite, header: str) -> None:
    site.set(TASKSERVER_PAGE_ALLOW=OFFICE)
    visitor = site.visitor("198.51.100.7")
    assert may_see(visitor)
    assert not may_see(visitor, headers={header: "203.0.113.9"})


def test_a_second_cookie_of_the_same_name_keeps_nobody_out(site: PageSite) -> None:
    session = session_of(site.owner())
    cookies = f"{access.SESSION_COOKIE}=bogus; {access.SESSION_COOKIE}={session}"
    visitor = site.visitor()
    visitor.client = Client(application_of(site.folder), use_cookies=False)
    assert may_see(visitor, headers={"Cookie": cookies})


# ---- forms


def test_a_form_without_its_token_or_with_another_visitor_s_does_nothing(site: PageSite) -> None:
    site.set(TASKSERVER_PAGE_ALLOW="0.0.0.0/0", TASKSERVER_PAGE_ACTIONS="yes")
    first, second = site.visitor(), site.visitor("198.51.100.9")
    for token in ("", "x", second.token()):
        assert first.act(token, verb="pause", group="3").status_code == HTTPStatus.FORBIDDEN
    assert site.server.store.claims.paused() == ([], False)
    assert first.act(verb="pause", group="3").status_code == HTTPStatus.SEE_OTHER


@pytest.mark.parametrize(
    "headers",
    [
        *({"Sec-Fetch-Site": word} for word in ("cross-site", "same-site", "none")),
        *({"Origin": word} for word in ("https://evil.example", "https://site.example.evil.example", "http://[", "x")),
    ],
)
def test_a_form_that_the_browser_calls_another_site_s_does_nothing(site: PageSite, headers: dict[str, str]) -> None:
    site.set(TASKSERVER_PAGE_ALLOW="0.0.0.0/0", TASKSERVER_PAGE_ACTIONS="yes")
    visitor = site.visitor()
    form = visitor.form(verb="pause", group="3")
    answer = visitor.post("view=act", data=form, headers=headers)
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert site.server.store.claims.paused() == ([], False)
    assert visitor.post("view=act", data=form, headers={"Origin": URL}).status_code == HTTPStatus.SEE_OTHER


# ---- what every answer bears


def test_every_answer_has_a_strict_policy_and_is_kept_by_nobody(site: PageSite) -> None:
    owner = site.owner()
    for answer in (owner.get(), site.visitor().get(), owner.get("view=none"), owner.get("view=tasks&group=x")):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert re.search(r"https?:|\*", policy) is None
        for part in ("frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"):
            assert part in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert not re.search(r"<script>|<script [^>]*>[^<]|style=| on[a-z]+=|https?://(?!www\.w3\.org)", answer.text)


def test_a_long_form_is_refused_before_it_is_read(site: PageSite) -> None:
    answer = site.visitor().post("view=sign-in", data={"password": "x" * 200_000})
    assert answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert site.visitor().sign_in("x" * 50_000).status_code == HTTPStatus.FORBIDDEN


def test_a_folder_that_cannot_be_written_closes_the_page(site: PageSite, capsys: pytest.CaptureFixture[str]) -> None:
    (site.folder / "var").write_text("a file")
    assert site.visitor().get().status_code == HTTPStatus.SERVICE_UNAVAILABLE


def test_the_folder_of_the_program_is_served_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from taskserver import web

    assert callable(web.application)
    assert PASSWORD not in str(web.application)
