"""client.py metrics: what Prometheus and node exporter read, also of a database that is away."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line, assert_silent
from tests.support.queues import Queue
from tests.support.servers import free_port


def values_of(text: str) -> dict[str, float]:
    """The value of each sample, by its name and labels."""
    return {
        f"{sample.name} {' '.join(value for _, value in sorted(sample.labels.items()))}".strip(): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_tell_of_tasks_runs_and_this_hour(queue: Queue) -> None:
    queue.add("tasks.note", None, 3)
    queue.add('tasks.no"ne\\\n\x1b[2J', None, 5)
    queue.run_here()
    queue.add("tasks.note", None, 3)
    queue.sql(f"UPDATE jobs_queue SET updated_at = {queue.ago(412)} WHERE status = 0")
    ended = queue.here("metrics")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    values = values_of(ended.stdout)
    assert (values["taskserver_up"], values["taskserver_level"]) == (1, 1)
    assert values["taskserver_finding fatal"] == 1
    assert [values[f"taskserver_tasks {one}"] for one in ("3 new", "5 fatal")] == [1, 1]
    assert 412 <= values["taskserver_queue_latency_seconds 3"] < 500
    assert values["taskserver_queue_latency_seconds 5"] == 0
    began = float(queue.sql(f"SELECT {seconds_since_1970(queue)} FROM jobs_queue_workers")[0][0])
    assert values["taskserver_last_run_timestamp_seconds all"] == pytest.approx(began, abs=0.01)
    hours = [sum(values.get(f"taskserver_{when}_hour_{one}", 0) for when in ("this", "last")) for one in ENDED]
    assert hours == [1, 1]


ENDED = ("attempts 3 done tasks.note", "fatal_tasks 5 (no callable)")


def seconds_since_1970(queue: Queue) -> str:
    return queue.seconds_between("'1970-01-01 00:00:00'", "started_at")


def test_a_text_file_is_written_as_a_whole_for_every_reader_and_nothing_is_printed(queue: Queue) -> None:
    path = queue.folder / "taskserver.prom"
    for _ in range(2):
        assert_silent(queue.here("metrics", "--textfile", path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert values_of(path.read_text())["taskserver_up"] == 1
    assert [name for name in os.listdir(queue.folder) if name.endswith((".prom", ".tmp"))] == [path.name]
    path = queue.folder / "none" / "taskserver.prom"
    assert_one_line(queue.here("metrics", "--textfile", path), 2, str(path), "No such file or directory")


def test_a_database_that_is_away_is_told_in_the_metrics_with_code_1(deployment: Deployment, tmp_path: Path) -> None:
    deployment.write_env(TASKSERVER_DSN=f"mysql://u:secret@127.0.0.1:{free_port()}/none")
    path = tmp_path / "taskserver.prom"
    path.write_text("taskserver_up 1\n")
    written = deployment.here("metrics", "--textfile", path)
    printed = deployment.here("metrics")
    for ended, text in ((written, path.read_text()), (printed, printed.stdout)):
        assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
        assert "secret" not in ended.stderr + text
        values = values_of(text)
        assert values["taskserver_up"] == 0
        assert not [name for name in values if name.startswith("taskserver_tasks")]
    assert written.stdout == ""
