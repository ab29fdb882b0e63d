"""What the doctor makes of answers that no server here gives, no database is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taskserver.messages.finding import Finding, Level
from taskserver.settings.dsn import parse_dsn
from taskserver.stores.facts import Asked, Facts, examine
from taskserver.stores.mysql import facts as mysql
from taskserver.stores.postgresql import facts as postgresql
from taskserver.stores.sqlite import facts as sqlite

OK, WARNING, CRITICAL, UNKNOWN = Level


def judged(database: str, check: str, answer: object) -> Finding:
    """The judgement of an answer."""
    checks = {"mysql": mysql.CHECKS, "postgresql": postgresql.CHECKS, "sqlite": sqlite.CHECKS}[database]
    (judge,) = [one.judge for one in checks if one.name == check]
    return judge(answer)


@pytest.mark.parametrize(
    ("database", "check", "answer", "level", "words"),
    [
        ("mysql", "version", [("5.6.24", "x")], WARNING, "the oldest one tried is 5.7"),
        ("mysql", "version", [("10.1.48-MariaDB", "x")], WARNING, "the oldest one tried is 10.3"),
        ("mysql", "version", [("5.5.5-10.3.39-MariaDB", "x")], OK, "without SKIP LOCKED"),
        ("mysql", "version", [("who knows", "x")], WARNING, "MySQL who knows"),
        ("mysql", "character_set", [("latin1",)], CRITICAL, "latin1"),
        ("mysql", "packet", [(1024 * 1024,)], WARNING, "max_allowed_packet is 1024 KiB"),
        ("mysql", "connections", [(5,)], WARNING, "at most 5"),
        ("mysql", "connections", [(1,)], WARNING, "two for a transactional or a long task"),
        ("mysql", "clock", 59.0, OK, "59.0 s ahead"),
        (
            "mysql",
            "transactions",
            [(601, 7, "ann", "Sleep")],
            WARNING,
            "ann has one open since 10 min, in the session 7",
        ),
        ("mysql", "transactions", [(299, 7, "ann", "Sleep")], OK, "none stands open"),
        ("postgresql", "version", [("12.10", "120010")], WARNING, "the oldest one tried is 13"),
        ("postgresql", "standby", [(True,)], CRITICAL, "is a standby"),
        ("postgresql", "connections", [(5,)], WARNING, "at most 5"),
        ("postgresql", "transactions", [(False, None, None, None, None)], UNKNOWN, "pg_read_all_stats"),
        ("postgresql", "transactions", [(False, 600.0, "7", "ann", "active")], WARNING, "in the session 7 (active)"),
        ("postgresql", "durability", [("fsync",), ("full_page_writes",)], WARNING, "are off"),
        ("sqlite", "file", None, UNKNOWN, "too large"),
        ("sqlite", "claim_index", ("claim_by_group",), CRITICAL, "claim_any_group"),
    ],
)
def test_an_answer_is_judged(database: str, check: str, answer: object, level: Level, words: str) -> None:
    found = judged(database, check, answer)
    assert found.level is level
    assert words in found.words


@pytest.mark.parametrize(
    ("dsn", "cipher", "level"),
    [
        ("mysql://u@db.example.org/db", "", WARNING),
        ("mysql://u@db.example.org/db?ssl-mode=required", "TLS_AES_256_GCM_SHA384", OK),
        ("mysql://u@localhost/db", "", OK),
        ("mysql://u@/db?unix_socket=/s", "", OK),
        ("postgresql://u@db.example.org/db", "", WARNING),
        ("postgresql://u@db.example.org/db", "TLSv1.3 TLS_AES_256_GCM_SHA384", OK),
    ],
)
def test_a_connection_over_the_net_without_tls_is_a_warning(dsn: str, cipher: str, level: Level) -> None:
    database = dsn.partition(":")[0]
    answer = (parse_dsn(dsn), "u@%", cipher, *([True] if database == "mysql" else []))
    found = judged(database, "connection", answer)
    assert found.level is level
    if level is WARNING:
        assert ("ssl-mode=required" if database == "mysql" else "sslmode=require") in found.fix


def test_a_mysql_on_another_host_whose_certificate_is_not_verified_is_a_warning() -> None:
    """Its full login shows the password: it is refused then."""
    for query, level in (("", WARNING), ("?ssl-mode=required", WARNING), ("?ssl-ca=/ca.pem", OK)):
        answer = (parse_dsn(f"mysql://u@h/db{query}"), "u@%", "TLS", False)
        assert judged("mysql", "connection", answer).level is level


class Proxy:
    """A database that answers anything."""

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.dialect = SimpleNamespace(facts=lambda: Facts(mysql.CHECKS[6:], mysql.LOOKS))

    def fetch(self, sql: str, values: object = ()) -> Any:
        return self._answer

    fetch_value = change = fetch


@pytest.mark.parametrize("answer", [[], [(None,)], [(None, None)]])
def test_what_a_proxy_hides_is_unknown(answer: object) -> None:
    database: Any = Proxy(answer)
    found = list(examine(Asked(database, parse_dsn("mysql://u@h/db"), "delete")))
    assert {one.level for one in found} <= {OK, UNKNOWN}
    assert len(found) == len(mysql.CHECKS) - 6
