"""Who may see the page, and what everybody else gets."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import pytest

from taskserver.web import access
from tests.support.pages import PASSWORD_HASH, URL, PageSite, Visitor

OFFICE = "198.51.100.0/24, 2001:db8::/48"
VIEWS = ("", "tasks", "task&id=1", "errors", "hours", "schedules", "workers", "doctor", "confirm&verb=retry&id=1")


def may_see(visitor: Visitor, **more: Any) -> bool:
    return "Groups" in visitor.get(**more).text


# ---- with neither a password nor addresses


def test_a_page_without_password_and_addresses_is_shown_to_nobody(site: PageSite) -> None:
    site.set()
    answer = site.visitor().get()
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert "set TASKSERVER_PAGE_PASSWORD or TASKSERVER_PAGE_ALLOW" in answer.text


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("TASKSERVER_PAGE_PASSWORD", "secret"),
        ("TASKSERVER_PAGE_PROXIES", "the proxy"),
        ("TASKSERVER_PAGE_ACTIONS", "yes"),  # for anybody: without a password
        ("TASKSERVER_ADD_TOKENS", "shop;sha256=12;tasks=*;groups=*"),
    ],
)
def test_a_wrong_setting_closes_the_page_and_shows_strangers_only_its_name(
    site: PageSite, key: str, wrong: str
) -> None:
    site.set(**{"TASKSERVER_PAGE_ALLOW": "0.0.0.0/0", key: wrong})
    answer = site.visitor().get()
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert f"{key} is wrong or missing" in answer.text
    assert str(site.folder) not in answer.text
    assert wrong not in answer.text


# ---- by password


def test_without_the_password_each_view_asks_for_it_and_shows_nothing(site: PageSite) -> None:
    site.server.add_task("tasks.secret_name")
    for view in VIEWS:
        answer = site.visitor().get(f"view={view}")
        assert answer.status_code == HTTPStatus.FORBIDDEN, view
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
    # In another window, somebody who has signed in meanwhile sends the form once more.
    assert visitor.sign_in("wrong").headers["Location"] == "?view=overview"


def cookie_of(visitor: Visitor, name: str = "session") -> tuple[str, str]:
    """The name and value of a visitor's cookie."""
    cookies = (visitor.client._cookies or {}).items()
    (cookie,) = [(key, one.value) for (_, _, key), one in cookies if f"_{name}_" in key]
    return cookie


def give(visitor: Visitor, name: str, value: str) -> None:
    visitor.client.set_cookie(name, value, domain="site.example")


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


def test_who_signs_out_is_out_wherever_the_cookie_went(site: PageSite) -> None:
    owner, other = site.owner(), site.visitor()
    give(other, *cookie_of(owner))
    assert may_see(other)
    owner.post("view=sign-out", data={"token": owner.token()})
    assert not may_see(other)


def test_a_cookie_that_is_no_session_lets_nobody_in(site: PageSite) -> None:
    owner, visitor = site.owner(), site.visitor()
    name, value = cookie_of(owner)
    for other in (value[:-1], "é", owner.token(), cookie_of(owner, "known")[1]):
        give(visitor, name, other)
        assert not may_see(visitor)


# ---- guesses


def test_guesses_are_slowed_whatever_is_restarted_and_the_right_password_waits_too(
    site: PageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    codes = [site.visitor().sign_in("wrong").status_code for _ in range(12)]
    assert codes == [HTTPStatus.FORBIDDEN] * 10 + [HTTPStatus.TOO_MANY_REQUESTS] * 2
    now += 400
    answer = site.visitor().sign_in()
    assert (answer.status_code, answer.headers["Retry-After"]) == (HTTPStatus.TOO_MANY_REQUESTS, "200")
    assert "Too many guesses: please wait for 200 s" in answer.text
    now += 201
    assert site.visitor().sign_in().status_code == HTTPStatus.SEE_OTHER


@pytest.mark.parametrize(("guesses", "compared"), [("203.0.113.{}", 10), ("203.0.{}.7", 20), ("2001:db8:7:{}::1", 10)])
def test_guesses_of_one_network_are_counted_together(site: PageSite, guesses: str, compared: int) -> None:
    codes = [site.visitor(guesses.format(number)).sign_in("wrong").status_code for number in range(1, 21)]
    assert codes.count(HTTPStatus.FORBIDDEN) == compared


def test_guesses_do_not_lock_the_owner_out(site: PageSite) -> None:
    owner = site.owner("8.8.8.8")
    owner.post("view=sign-out", data={"token": owner.token()})
    for _ in range(12):
        site.visitor("8.8.8.8").sign_in("wrong")
    assert site.visitor("8.8.8.8").sign_in().status_code == HTTPStatus.TOO_MANY_REQUESTS
    assert site.visitor("9.9.9.9").sign_in().status_code == HTTPStatus.SEE_OTHER
    # Behind one proxy all have one address: the owner's browser is known by its cookie.
    assert owner.sign_in().status_code == HTTPStatus.SEE_OTHER


# ---- its files


def test_the_page_s_files_are_only_for_their_owner(site: PageSite) -> None:
    site.owner()
    folder = site.folder / "var" / "page"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path for path in folder.iterdir() if path.stat().st_mode & 0o077] == []


# ---- by address


@pytest.mark.parametrize(
    ("connection", "headers", "sees"),
    [
        ("::ffff:198.51.100.7", {}, True),
        ("2001:db8::7", {}, True),
        ("203.0.113.7", {}, False),
        ("10.0.0.1", {"X-Forwarded-For": "203.0.113.7, 198.51.100.7, 10.0.0.2"}, True),
        ("10.0.0.1", {"X-Forwarded-For": "198.51.100.7, 203.0.113.7"}, False),
        ("10.0.0.1", {"X-Forwarded-For": "nonsense"}, False),
        ("", {"X-Forwarded-For": "198.51.100.7"}, True),
        # Nobody's word but a listed proxy's; and what comes by another one comes from who knows where.
        ("203.0.113.7", {"X-Forwarded-For": "198.51.100.7"}, False),
        ("198.51.100.7", {"X-Real-IP": "203.0.113.9"}, False),
    ],
)
def test_listed_addresses_see_the_page_without_a_password_and_only_listed_proxies_are_believed(
    site: PageSite, connection: str, headers: dict[str, str], sees: bool
) -> None:
    site.set(TASKSERVER_PAGE_ALLOW=OFFICE, TASKSERVER_PAGE_PROXIES="10.0.0.0/8, unix")
    answer = site.visitor(connection).get(headers=headers)
    assert ("Groups" in answer.text, answer.status_code == HTTPStatus.FORBIDDEN) == (sees, not sees)


def test_with_addresses_and_a_password_both_are_needed(site: PageSite) -> None:
    site.set(TASKSERVER_PAGE_ALLOW=OFFICE, TASKSERVER_PAGE_PASSWORD=PASSWORD_HASH)
    inside, outside = site.visitor("198.51.100.7"), site.visitor()
    assert 'type="password"' in inside.get().text
    assert inside.sign_in().status_code == HTTPStatus.SEE_OTHER
    assert may_see(inside)
    assert outside.sign_in().status_code == HTTPStatus.FORBIDDEN
    assert 'type="password"' not in outside.get().text


@pytest.mark.parametrize(
    ("url", "headers", "connection", "sees"),
    [
        ("http://rebound.example", {}, "10.0.0.1", False),
        # As gunicorn takes this header for https.
        ("https://rebound.example", {"X-Forwarded-Proto": "https"}, "198.51.100.7", False),
        ("http://site.example", {"X-Forwarded-Proto": "https"}, "10.0.0.1", True),
        ("http://[::1]:8000", {}, "198.51.100.7", True),
        ("http://Queue.lan:8000", {}, "198.51.100.7", True),
        ("http://127.0.0.1.rebound.example", {}, "198.51.100.7", False),
    ],
)
def test_without_a_password_no_name_of_another_site_leads_a_browser_here(
    site: PageSite, url: str, headers: dict[str, str], connection: str, sees: bool
) -> None:
    proxies = {"TASKSERVER_PAGE_PROXIES": "10.0.0.1", "TASKSERVER_PAGE_HOSTS": "queue.lan, shop.lan"}
    site.set(TASKSERVER_PAGE_ALLOW="198.51.100.0/24, 10.0.0.1", **proxies)
    scheme, _, host = url.partition("://")
    environ = {"REMOTE_ADDR": connection, "wsgi.url_scheme": scheme, "HTTP_HOST": host}
    answer = site.visitor().client.get("/", headers=headers, environ_overrides=environ)
    assert ("Groups" in answer.text, answer.status_code == HTTPStatus.FORBIDDEN) == (sees, not sees)


# ---- forms


def test_a_form_without_its_token_or_with_another_visitor_s_does_nothing(site: PageSite) -> None:
    site.let_act()
    first, second = site.owner(), site.owner()
    form = first.form(verb="pause", group="3")
    for token in ("", "x", second.token()):
        assert first.post("view=act", data={**form, "token": token}).status_code == HTTPStatus.FORBIDDEN
    assert site.server.store.claims.paused() == ([], False)
    assert first.post("view=act", data=form).status_code == HTTPStatus.SEE_OTHER


def test_a_form_that_the_browser_calls_another_site_s_does_nothing(site: PageSite) -> None:
    site.let_act()
    visitor = site.owner()
    form = visitor.form(verb="pause", group="3")
    for name, word in (
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
        ("Origin", "https://site.example.evil.example"),
        ("Origin", "http://["),
    ):
        assert visitor.post("view=act", data=form, headers={name: word}).status_code == HTTPStatus.FORBIDDEN
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


def test_a_folder_that_cannot_be_written_closes_the_page(site: PageSite) -> None:
    (site.folder / "var").write_text("a file")
    assert site.visitor().get().status_code == HTTPStatus.SERVICE_UNAVAILABLE
