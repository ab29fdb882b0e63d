"""A queue's metrics in Prometheus' text format, as `client.py metrics` prints them.

Only gauges, read from the database on demand. Hourly stats could be summed to counters, but a sum falls when old hours
are pruned. Prometheus would take that for a restart, and `rate()` would count the rest again. So there are gauges of
this hour and of the last whole one, which need no `rate()`.

Rows name groups and tasks, and each new label costs Prometheus memory for hours. So only the largest have their own
label, and the rest is summed up. No host and no process id is a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from .. import __version__
from ..errors import SettingError
from ..messages.finding import Level
from ..messages.programs import install_command
from ..messages.text import escaped, truncate_middle
from ..model.task import Status
from ..settings.load import Settings
from ..stores import Store
from ..stores.queue.stats import HOUR_SECONDS, KEY, NO_CALLABLE, HourStats, Stats
from .coverage import seconds_since_start
from .judge import judged
from .status import QueueStatus

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Every Prometheus reads it, and node exporter's files have the same format."""
PACKAGE = "prometheus-client>=0.20,<1"
METRIC_PREFIX = "taskserver_"
OTHER_LABEL = "other"
"""The label of the rest."""
MAX_GROUP_LABELS = 100
MAX_NAME_LABELS = 50
MAX_LABEL = 255

T = TypeVar("T")
Labels = tuple[str, ...]


class Gauge(NamedTuple):
    """One metric: its values by its labels."""

    name: str
    about: str
    labels: Labels
    values: Mapping[Labels, float]


def read_gauges(store: Store, settings: Settings) -> Sequence[Gauge]:
    """The metrics of a queue. Raises DatabaseError: then use `gauges_when_away`."""
    status = judged(store, settings)
    stats = Stats(store)
    # Two reads, so that each hour has room for its names.
    this_hour = stats.sums(0, *KEY)
    before = [one for one in stats.sums(HOUR_SECONDS, *KEY) if one.hour != status.this_hour.hour]
    return gauges_of(status, [*before, *this_hour])


def gauges_of(status: QueueStatus, recent: Sequence[HourStats]) -> Sequence[Gauge]:
    """The metrics of a status; `recent` has the stats of this hour and of the last one, by hour, group and name."""
    return [*_of_program(is_up=True), *_of_findings(status), *_of_queue(status, recent)]


def gauges_when_away() -> Sequence[Gauge]:
    """The metrics while the database is away."""
    return list(_of_program(is_up=False))


def together(by_queue: Mapping[str, Sequence[Gauge]]) -> Sequence[Gauge]:
    """The metrics of several queues by their names, which become a label. A format's metric stands there only once."""
    merged: dict[str, Gauge] = {}
    for queue, gauges in by_queue.items():
        for gauge in gauges:
            own = {(_label(queue), *labels): value for labels, value in gauge.values.items()}
            others = merged[gauge.name].values if gauge.name in merged else {}
            merged[gauge.name] = Gauge(gauge.name, gauge.about, ("queue", *gauge.labels), {**others, **own})
    return list(merged.values())


# ---- the metrics


def _of_program(is_up: bool) -> Iterator[Gauge]:
    yield Gauge("up", "1 where the database answered, 0 where it did not.", (), {(): is_up})
    yield Gauge("build_info", "The version of taskserver, always 1.", ("version",), {(__version__,): 1})


def _of_findings(status: QueueStatus) -> Iterator[Gauge]:
    levels = "0 ok, 1 warning, 2 critical"
    yield Gauge("level", f"The worst level of the findings: {levels}.", (), {(): status.level})
    found: dict[Labels, float] = {(one.name,): one.level for one in status.findings if one.level is not Level.UNKNOWN}
    yield Gauge("finding", "What is not ok, by its name: 1 warning, 2 critical.", ("name",), found)


def _of_queue(status: QueueStatus, recent: Sequence[HourStats]) -> Iterator[Gauge]:
    sizes = {one.group_id: 0 for one in recent} | dict.fromkeys(status.paused_groups, 0)
    sizes |= {group: sum(one.rows.values()) for group, one in status.groups.items()}
    group_label = _labels(sizes, MAX_GROUP_LABELS)
    yield from _of_rows(status, group_label)
    yield from _of_workers(status)
    for when, hour in (("last_hour", status.hour_before.hour), ("this_hour", status.this_hour.hour)):
        yield from _of_hour(when, [one for one in recent if one.hour == hour], group_label)


def _of_rows(status: QueueStatus, group_label: Mapping[int, str]) -> Iterator[Gauge]:
    def by_group(value: Callable[[int], float]) -> list[tuple[Labels, float]]:
        return [((label,), value(group)) for group, label in group_label.items()]

    rows = [
        ((group_label[group], _status_label(code)), float(count))
        for group, counts in status.groups.items()
        for code, count in counts.rows.items()
    ]
    yield Gauge("tasks", "Tasks in the queue, by group and status.", ("group", "status"), _sums(rows))
    uncounted: dict[Labels, float] = {
        (group_label[group], _status_label(code)): 1.0
        for group, counts in status.groups.items()
        for code in counts.uncounted
    }
    about = "1 where there are more tasks than taskserver_tasks says: they were not counted to their end."
    yield Gauge("tasks_uncounted", about, ("group", "status"), uncounted)
    waits = {group: counts.oldest_ready_seconds or 0.0 for group, counts in status.groups.items()}
    about = "How long the oldest new task has been ready, 0 where there is none."
    latencies = _greatest(by_group(lambda group: waits.get(group, 0.0)))
    yield Gauge("queue_latency_seconds", about, ("group",), latencies)
    running = _sums(by_group(lambda group: status.groups[group].running if group in status.groups else 0))
    yield Gauge("running_tasks", "Tasks that have been started and have not ended.", ("group",), running)
    paused = _greatest(by_group(lambda group: status.are_all_paused or group in status.paused_groups))
    yield Gauge("group_paused", "1 where no worker takes tasks of the group.", ("group",), paused)
    about = "Tasks of dead workers that no run reclaimed in time."
    yield Gauge("leases_lapsed", about, (), {(): status.lapsed})


def _of_workers(status: QueueStatus) -> Iterator[Gauge]:
    at_work = sum(map(status.is_at_work, status.workers))
    yield Gauge("workers", "Workers at work, as far as is known.", (), {(): at_work})
    runs = [run for run in status.runs if seconds_since_start(run) < float("inf")]
    oldest_first = sorted(runs, key=seconds_since_start, reverse=True)
    known = {run.group_ids: run.started_at.timestamp() for run in oldest_first if run.started_at}
    label = _labels(known, MAX_GROUP_LABELS)
    about = "When the last run began, by the groups that it serves: `all`, or their numbers."
    last: dict[Labels, float] = _greatest(((label[groups],), at) for groups, at in known.items())
    yield Gauge("last_run_timestamp_seconds", about, ("groups",), last)
    faulty = sum(stored.fault is not None for stored in status.schedules)
    yield Gauge("schedules", "Schedules, of periodic tasks.", (), {(): len(status.schedules)})
    yield Gauge("schedules_faulty", "Schedules that add no task, as something is wrong.", (), {(): faulty})


def _of_hour(when: str, stats: Sequence[HourStats], group_label: Mapping[int, str]) -> Iterator[Gauge]:
    task_label = _labels(_sums((one.task, float(one.attempts)) for one in stats), MAX_NAME_LABELS)
    in_hour = "in the last whole hour" if when == "last_hour" else "since this hour began"

    def summed(column: str, *more: str) -> dict[Labels, float]:
        return _sums(
            ((group_label[one.group_id], task_label[one.task], *more), float(getattr(one, column))) for one in stats
        )

    attempts = {labels: n for name in ("done", "failed", "lost") for labels, n in summed(name, name).items()}
    yield Gauge(f"{when}_attempts", f"Attempts that ended {in_hour}.", ("group", "task", "outcome"), attempts)
    for name, column, about in (
        ("fatal_tasks", "fatal", "Tasks that became fatal"),
        ("run_seconds", "ran_seconds", "Sum of how long the attempts ran that were done or failed"),
        ("wait_seconds", "waited_seconds", "Sum of how long these had been ready before they were started"),
    ):
        yield Gauge(f"{when}_{name}", f"{about} {in_hour}.", ("group", "task"), summed(column))


# ---- labels and values


def _labels(sizes: Mapping[T, float], most: int) -> dict[T, str]:
    """The label of each: only the largest have their own."""
    ordered = sorted(sizes, key=lambda one: -sizes[one])
    return {one: _label(str(one)) if place < most else OTHER_LABEL for place, one in enumerate(ordered)}


def _label(text: str) -> str:
    """A label from a row's text, safe for a terminal; the library escapes what the format needs."""
    # For Prometheus an empty label is a missing one.
    return truncate_middle(escaped(truncate_middle(text, MAX_LABEL)), MAX_LABEL) or NO_CALLABLE


def _status_label(code: int) -> str:
    return str(Status(code)) if code in set(Status) else OTHER_LABEL


def _sums(samples: Iterable[tuple[T, float]]) -> dict[T, float]:
    # Prometheus refuses the whole text if two samples have the same labels.
    sums: dict[T, float] = {}
    for labels, value in samples:
        sums[labels] = sums.get(labels, 0.0) + value
    return sums


def _greatest(samples: Iterable[tuple[T, float]]) -> dict[T, float]:
    greatest: dict[T, float] = {}
    for labels, value in samples:
        greatest[labels] = max(greatest.get(labels, 0.0), value)
    return greatest


# ---- the text


def as_text(gauges: Iterable[Gauge]) -> str:
    """Raises SettingError if the package is missing."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError:
        raise SettingError(
            f"the package prometheus-client is missing, which writes the metrics: {install_command(PACKAGE)}"
        ) from None

    class OneLook(Collector):
        def collect(self) -> Iterator[Metric]:
            for gauge in gauges:
                family = GaugeMetricFamily(f"{METRIC_PREFIX}{gauge.name}", gauge.about, labels=gauge.labels)
                for labels, value in gauge.values.items():
                    family.add_metric(labels, value)
                yield family

    # Our own registry: the default one has this process's memory and Python's garbage collector.
    registry = CollectorRegistry()
    registry.register(OneLook())
    return generate_latest(registry).decode()
