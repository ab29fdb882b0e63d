"""What programs ask of the page, each by a token of its own: adding tasks, and the metrics."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from io import BytesIO
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.test import TestResponse

from taskserver.errors import Unavailable
from taskserver.web import api
from tests.support.pages import PageSite

SHOP, BLOG, ALL = "token-of-the-shop", "token-of-the-blog", "token-of-all"
TOKENS = " ".join(
    f"{name};sha256={hashlib.sha256(token.encode()).hexdigest()};{rights}"
    for name, token, rights in (
        ("shop", SHOP, "tasks=tasks.send,orders.*;groups=3,5"),
        ("blog", BLOG, "tasks=tasks.ping;groups=*"),
        ("all", ALL, "tasks=*;groups=*"),
    )
)


@pytest.fixture
def adds(site: PageSite) -> PageSite:
    site.set(TASKSERVER_ADD_TOKENS=TOKENS)
    return site


def post(site: PageSite, body: Any, token: str | None = SHOP, path: str = "/tasks", **headers: str) -> TestResponse:
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    given = {"Content-Type": "application/json", **headers}
    if token is not None:
        given.setdefault("Authorization", f"Bearer {token}")
    return site.visitor().client.post(path, base_url="https://site.example", data=data, headers=given)


def error_of(answer: TestResponse, code: HTTPStatus) -> str:
    """What a refusal says."""
    assert (answer.status_code, answer.content_type) == (code, "application/json")
    assert answer.json is not None
    return str(answer.json["error"])


def tasks_of(site: PageSite) -> list[tuple[Any, ...]]:
    return site.sql("SELECT id, task, args, group_id FROM jobs_queue ORDER BY id")


# ---- what is added


def test_one_task_or_many_are_added_and_their_ids_answered(adds: PageSite) -> None:
    one = post(adds, {"task": "tasks.send", "args": {"to": "ü"}, "group_id": 3})
    assert (one.status_code, one.json) == (HTTPStatus.CREATED, {"ids": [1]})
    tasks = [{"task": "orders.ship", "group_id": 5}, {"task": "orders.mail.thank", "group_id": 3}]
    many = post(adds, tasks, path="/mounted/below/tasks")
    assert (many.status_code, many.json) == (HTTPStatus.CREATED, {"ids": [2, 3]})
    assert [row[1:] for row in tasks_of(adds)] == [
        ("tasks.send", r'{"to":"\u00fc"}', 3),
        ("orders.ship", None, 5),
        ("orders.mail.thank", None, 3),
    ]


# ---- who may add what


@pytest.mark.parametrize("token", [None, "", SHOP[:-1]])
def test_without_a_right_token_nothing_is_added(adds: PageSite, token: str | None) -> None:
    answer = post(adds, {"task": "tasks.send", "group_id": 3}, token)
    assert answer.status_code == HTTPStatus.UNAUTHORIZED
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert tasks_of(adds) == []


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"task": "tasks.other", "group_id": 3}, "may not add 'tasks.other'"),
        ({"task": "ordersx.ship", "group_id": 3}, "may not add 'ordersx.ship'"),
        ({"task": "tasks.send"}, "may not add to group 0"),
        ({"stages": ["tasks.send", "tasks.other"], "group_id": 3}, "may not add 'tasks.other'"),
        ({"stages": ["tasks.send", {"task": "orders.a", "group_id": 9}], "group_id": 3}, "may not add to group 9"),
        ({"task": "tasks.send", "group_id": 3, "unique_key": "k", "rerun": True}, "rerun is for tokens of all"),
        ({"task": "tasks.send", "group_id": 3, "depends_on": [1]}, "depends_on is for tokens of all"),
        ({"task": "tasks.send", "group_id": 3, "unique_key": "shopx:1"}, "begins with shop:"),
    ],
)
def test_a_token_adds_only_its_own_tasks_to_its_own_groups(adds: PageSite, task: dict[str, Any], words: str) -> None:
    error = error_of(post(adds, [{"task": "tasks.send", "group_id": 3}, task]), HTTPStatus.FORBIDDEN)
    assert error.startswith("task 2: ")
    assert words in error
    assert tasks_of(adds) == []


def test_without_tokens_there_is_no_adding(site: PageSite) -> None:
    assert post(site, {"task": "tasks.send"}).status_code == HTTPStatus.NOT_FOUND


# ---- what is refused


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "the body is not JSON: look at line 1, column 2"),
        (b"\xff", "the body is not JSON: it is not UTF-8 text"),
        ([], "0 tasks"),
        ([{"task": "tasks.send", "group_id": 3}, {"task": "no name"}], "task 2: "),
        ({"task": "tasks.send", "prioriti": 3}, "'prioriti'; allowed: task, args"),
        ({"task": "tasks.send", "args": {"x": "\ud800"}, "group_id": 3}, "task 1: "),
    ],
)
def test_a_wrong_body_is_refused_with_the_sentence_that_says_what_is_allowed(
    adds: PageSite, body: object, words: str
) -> None:
    assert words in error_of(post(adds, body), HTTPStatus.BAD_REQUEST)
    assert tasks_of(adds) == []


def test_too_long_a_body_and_too_many_tasks_are_refused(adds: PageSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_BODY_BYTES", 10_000)
    monkeypatch.setattr(api, "MAX_TASKS_OF_REQUEST", 2)
    without_length = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": ""}
    for body in ("x" * 10_001, json.dumps([{"task": "tasks.send", "group_id": 3}] * 3)):
        assert post(adds, body).status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        environ = {**without_length, "wsgi.input": BytesIO(body.encode()), "HTTP_AUTHORIZATION": f"Bearer {SHOP}"}
        answer = adds.visitor().client.post("/tasks", environ_overrides=environ)
        assert answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert tasks_of(adds) == []


def test_too_many_requests_of_one_token_wait_for_the_next_minute(
    adds: PageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "REQUESTS_A_MINUTE", 3)
    monkeypatch.setattr(api, "WRONG_A_MINUTE", 2)
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    codes = [post(adds, {"task": "tasks.ping"}, BLOG) for _ in range(5)]
    assert [answer.status_code for answer in codes] == [HTTPStatus.CREATED] * 3 + [HTTPStatus.TOO_MANY_REQUESTS] * 2
    assert codes[-1].headers["Retry-After"] == "60"
    assert [post(adds, {}, "wrong").status_code for _ in range(3)] == [401, 401, 429]
    # Neither another token's requests, nor somebody's guesses, keep this one from adding.
    assert post(adds, {"task": "tasks.send", "group_id": 3}).status_code == HTTPStatus.CREATED
    monkeypatch.setattr("time.time", lambda: 1_800_000_060.0)
    assert post(adds, {"task": "tasks.ping"}, BLOG).status_code == HTTPStatus.CREATED


def test_where_nothing_can_be_added_the_answer_is_json_without_the_database_s_words(
    adds: PageSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = Mock(side_effect=Unavailable("Access denied for user 'shop'@'10.0.0.7'"))
    monkeypatch.setattr("taskserver.stores.queue.adding.Producing.add_many", refused)
    error = error_of(post(adds, {"task": "tasks.send", "group_id": 3}), HTTPStatus.SERVICE_UNAVAILABLE)
    assert "The database is away" in error
    assert "10.0.0.7" not in error
    assert capsys.readouterr().err.startswith("taskserver page: ")


# ---- once


def keyed(site: PageSite, body: Any, key: str = "order-17", token: str = SHOP) -> TestResponse:
    return post(site, body, token, **{"Idempotency-Key": key})


TWO = [{"task": "tasks.send", "group_id": 3, "unique_key": "shop:1"}, {"task": "tasks.send", "group_id": 5}]


def test_a_request_that_is_repeated_with_its_key_adds_once(adds: PageSite) -> None:
    first, again = (keyed(adds, TWO) for _ in range(2))
    assert first.json == again.json == {"ids": [1, 2]}
    # Also once its tasks are done, and their rows deleted.
    adds.sql("DELETE FROM jobs_queue")
    assert keyed(adds, TWO).json == {"ids": [1, 2]}
    assert tasks_of(adds) == []
    # Another token's key is another one.
    keyed(adds, {"task": "tasks.ping"}, token=BLOG)
    keyed(adds, TWO, "order-18")
    assert len(tasks_of(adds)) == 3


def test_a_key_with_other_tasks_is_refused_and_one_whose_tasks_were_refused_is_free(adds: PageSite) -> None:
    assert keyed(adds, {"task": "no name"}).status_code == HTTPStatus.BAD_REQUEST
    assert keyed(adds, {"task": "tasks.send", "depends_on": [99]}, token=ALL).status_code == HTTPStatus.BAD_REQUEST
    assert keyed(adds, TWO).status_code == HTTPStatus.CREATED
    assert keyed(adds, TWO[:1]).status_code == HTTPStatus.CONFLICT
    assert keyed(adds, [*TWO, TWO[1]]).status_code == HTTPStatus.CONFLICT
    assert len(tasks_of(adds)) == 2


def test_of_many_requests_at_once_with_one_key_one_adds(adds: PageSite) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: keyed(adds, TWO).json, range(12)))
    assert answers == [answers[0]] * 12
    assert len(tasks_of(adds)) == 2


def test_a_key_that_is_invalid_is_refused(adds: PageSite) -> None:
    for key in ("", "x" * 256, "ä"):
        assert keyed(adds, TWO, key).status_code == HTTPStatus.BAD_REQUEST
    assert tasks_of(adds) == []


# ---- metrics

METRICS = "token-of-prometheus"


def test_metrics_are_only_for_their_own_token_and_prometheus_reads_them(site: PageSite) -> None:
    site.set(TASKSERVER_METRICS_TOKEN=hashlib.sha256(METRICS.encode()).hexdigest(), TASKSERVER_ADD_TOKENS=TOKENS)
    site.server.add_task("tasks.a", group_id=3)
    client = site.visitor().client
    for token in ("", f"Bearer {SHOP}", f"Basic {METRICS}"):
        assert client.get("/metrics", headers={"Authorization": token}).status_code == HTTPStatus.UNAUTHORIZED
    answer = client.get("/queue/metrics", headers={"Authorization": f"Bearer {METRICS}"})
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["taskserver_tasks", "3", "new"] == 1
    assert samples["taskserver_up",] == 1


def test_metrics_of_a_database_that_is_away_say_so(site: PageSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.set(TASKSERVER_METRICS_TOKEN=hashlib.sha256(METRICS.encode()).hexdigest())
    monkeypatch.setattr("taskserver.health.metrics.judged", Mock(side_effect=Unavailable("away")))
    answer = site.visitor().client.get("/metrics", headers={"Authorization": f"Bearer {METRICS}"})
    assert "taskserver_up 0.0" in answer.text
