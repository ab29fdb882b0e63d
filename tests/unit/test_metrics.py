"""Metrics, read back by Prometheus' own parser."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from taskserver import TaskServer
from taskserver.health.judge import JUDGES
from taskserver.health.metrics import MAX_GROUP_LABELS, MAX_NAME_LABELS, OTHER_LABEL, as_text, gauges_of
from taskserver.health.status import GroupStatus, QueueStatus
from taskserver.model.task import MAX_GROUP_ID, Status
from taskserver.stores.queue.stats import NO_CALLABLE, HourStats
from taskserver.stores.records import LastRun
from tests.support.documents import read, table

METRICS = "docs/metrics.md"
Samples = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def empty() -> QueueStatus:
    with TaskServer("sqlite:///:memory:") as server:
        server.create_tables()
        return server.status()


def samples_of(text: str) -> dict[str, Samples]:
    """The values of each metric by those of its labels, which are in order of their names."""
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(text):
        values = found.setdefault(family.name.removeprefix("taskserver_"), {})
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            values[labels] = sample.value
    return found


def metrics_of(overview: QueueStatus, *recent: HourStats) -> dict[str, Samples]:
    return samples_of(as_text(gauges_of(overview, recent)))


def of_status(
    status: Status, rows: int, ready: float | None = None, is_more: bool = False, running: int = 0
) -> GroupStatus:
    return GroupStatus({status: rows}, ready, ready, frozenset({status} if is_more else ()), running=running)


def test_each_group_has_its_counts_latency_and_pause(empty: QueueStatus) -> None:
    groups = {3: of_status(Status.NEW, 37, 412.0, running=2), 4: of_status(Status.FATAL, 100_000, is_more=True)}
    found = metrics_of(empty._replace(groups=groups, paused_groups=[4, 9]))
    assert found["tasks"] == {("3", "new"): 37, ("4", "fatal"): 100_000}
    assert found["tasks_uncounted"] == {("4", "fatal"): 1}
    assert found["queue_latency_seconds"] == {("3",): 412, ("4",): 0, ("9",): 0}
    assert found["running_tasks"] == {("3",): 2, ("4",): 0, ("9",): 0}
    assert found["group_paused"] == {("3",): 0, ("4",): 1, ("9",): 1}


def test_the_largest_groups_have_labels_and_the_rest_is_summed_up(empty: QueueStatus) -> None:
    groups = {group: of_status(Status.NEW, group, float(group)) for group in range(1, 1001)}
    stats = [HourStats(empty.this_hour.hour, group, "x", attempts=1, done=1) for group in groups]
    found = metrics_of(empty._replace(groups=groups, paused_groups=[7, 1000, MAX_GROUP_ID]), *stats)
    first = 1000 - MAX_GROUP_LABELS
    assert found["tasks"]["1000", "new"] == 1000
    assert found["tasks"][OTHER_LABEL, "new"] == sum(range(1, first + 1))
    assert found["queue_latency_seconds"][OTHER_LABEL,] == first
    assert found["group_paused"][OTHER_LABEL,] == 1
    assert found["this_hour_attempts"][OTHER_LABEL, "done", "x"] == first


def test_an_hour_has_its_attempts_by_outcome_and_task(empty: QueueStatus) -> None:
    this, last = empty.this_hour.hour, empty.hour_before.hour
    numbers = range(MAX_NAME_LABELS + 3)
    many = [HourStats(this, 3, f"tasks.t{number}", attempts=number, done=number) for number in numbers]
    found = metrics_of(empty, HourStats(last, 3, "tasks.a", 9, 9, 5, 3, 2, 1), *many)
    by_outcome = {outcome: value for (_, outcome, _), value in found["last_hour_attempts"].items()}
    assert by_outcome == {"done": 5, "failed": 3, "lost": 1}
    assert found["last_hour_fatal_tasks"] == {("3", "tasks.a"): 2}
    assert found["this_hour_attempts"]["3", "done", OTHER_LABEL] == 0 + 1 + 2


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("# HELP x\n# TYPE up counter\ntaskserver_up 0", "# HELP x\\n# TYPE up counter\\ntaskserver_up 0"),
        ("\x1b[2J\x9b31m\u2028\udc80", "\\x1b[2J\\x9b31m\\u2028\\udc80"),
        ("", NO_CALLABLE),
    ],
)
def test_names_from_rows_are_escaped_in_labels(empty: QueueStatus, name: str, label: str) -> None:
    text = as_text(gauges_of(empty, [HourStats(empty.this_hour.hour, 3, name, attempts=1, done=1)]))
    assert samples_of(text)["this_hour_attempts"]["3", "done", label] == 1
    assert [one for one in text if not one.isprintable() and one != "\n"] == []


def test_the_document_has_exactly_the_metrics_and_labels(empty: QueueStatus) -> None:
    runs = [LastRun("host", "all", 4711, empty.now, 60.0, None, "empty", 0, 0, 0, 0, 0, None)]
    groups = {3: of_status(Status.FATAL, 1, is_more=True)}
    stats = [HourStats(hour, 3, "tasks.a") for hour in (empty.this_hour.hour, empty.hour_before.hour)]
    families = list(text_string_to_metric_families(as_text(gauges_of(empty._replace(runs=runs, groups=groups), stats))))
    labels = {family.name: sorted(family.samples[0].labels) for family in families}
    rows = table(METRICS, "metric", "labels").items()
    assert {name: sorted(filter(None, found.split(", "))) for name, (found, _) in rows} == labels
    assert set(re.findall(r"\btaskserver_[a-z_]+", read(METRICS))) - {"taskserver_"} == set(labels)
    _, meaning = table(METRICS, "metric", "labels")["taskserver_finding"]
    assert set(re.findall("`([a-z]+)`", meaning)) - {"name"} == {one.name for one in JUDGES} - {"ready"}
