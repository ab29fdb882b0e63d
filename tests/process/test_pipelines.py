"""Workers that race for the stages of pipelines."""

from __future__ import annotations

from collections import defaultdict

from tests.support.databases import EACH_DATABASE
from tests.support.processes import end_of, wait_until
from tests.support.queues import Queue

TASKS = """
import os
import time

def passes(pipeline, stage):
    note(f"{pipeline} {stage} {os.getpid()}")
    while not (HERE / f"go{stage}").exists():
        time.sleep(0.005)
    return [pipeline, stage + 1]
"""
SETTINGS = {"TASKSERVER_LEASE": "600"}


@EACH_DATABASE
def test_workers_that_race_run_each_stage_of_each_pipeline_once_and_in_order(queue: Queue) -> None:
    stages = ["tasks.passes", {"task": "tasks.passes", "group_id": 4, "priority": -1}]
    stages.append({"task": "tasks.passes", "priority": -2})
    queue.server.add_tasks([{"stages": stages, "args": [number, 0]} for number in range(20)])
    workers = [queue.start("--batch", 2, "--mode", "mark") for _ in range(3)]

    def passes() -> list[list[int]]:
        return [[int(word) for word in line.split()] for line in queue.notes()]

    for stage in range(3):
        # Each worker is in this stage, so that they race in it once they may go on.
        wait_until(lambda: len({pid for _, at, pid in passes() if at == stage}) == len(workers))  # noqa: B023
        queue.go(f"go{stage}")
    assert [end_of(worker) for worker in workers] == [(0, "", "")] * 3
    queue.run_quietly(mode="mark")
    ran = defaultdict(list)
    for pipeline, stage, _ in passes():
        ran[pipeline].append(stage)
    assert ran == {number: [0, 1, 2] for number in range(20)}
    assert queue.statuses() == [2] * 20
