"""The stages that a row holds, as a worker reads them: whatever any program wrote there."""

from __future__ import annotations

import json

import pytest

from taskserver.errors import BadTask
from taskserver.model.attempt import NextStage
from taskserver.model.new_task import new_task
from taskserver.model.pipeline import MAX_STAGES, MAX_STAGES_BYTES, next_stage
from taskserver.model.task import ClaimedTask

TWO = '["tasks.a", "tasks.b"]'


def claimed(stages: object, stage: int, task: str = "tasks.a") -> ClaimedTask:
    return ClaimedTask(1, task, None, None, 0, None, 17, stages=stages, stage=stage)  # type: ignore[arg-type]


@pytest.mark.parametrize(("stage", "following"), [(0, "b"), (1, "c"), (2, None)])
def test_the_stage_that_follows_is_the_one_behind_the_row_s_own(stage: int, following: str | None) -> None:
    found = next_stage(claimed('["tasks.a", "tasks.b", "tasks.c"]', stage, f"tasks.{'abc'[stage]}"))
    assert (found and found.task) == (following and f"tasks.{following}")


def test_what_a_producer_gave_is_what_a_worker_reads() -> None:
    """Each stage whole, so that nothing of the row's stage before it holds on."""
    made = new_task(
        stages=["tasks.a", {"task": "tasks.b", "priority": -1}, {"task": "tasks.c", "max_attempts": 9, "group_id": 8}],
        group_id=3,
        priority=4,
        max_attempts=5,
    )
    assert made[:5] == ("tasks.a", None, 3, 4, 5)
    assert next_stage(claimed(made.stages, 0)) == NextStage("tasks.b", 3, -1, 5)
    assert next_stage(claimed(made.stages, 1, "tasks.b")) == NextStage("tasks.c", 8, 4, 9)


@pytest.mark.parametrize(
    ("stages", "stage", "words"),
    [
        ("tasks.a, tasks.b", 0, "stages is not valid JSON"),
        (json.dumps(["tasks.a"] * (MAX_STAGES + 1)), 0, "allowed: a list of 1 to 100"),
        ('["tasks.a", 5]', 0, "stage 2: it is 5"),
        ('["tasks.a", "tasks b"]', 0, "stage 2: "),
        ('["tasks.a", {"task": "tasks.b", "group_id": -1}]', 0, "stage 2: group_id is -1"),
        ('["tasks.a", {"task": "tasks.b", "priority": NaN}]', 0, "NaN is no JSON number"),
        ("[" * 30_000, 0, "stages is nested too deep"),
        ("ü" * (MAX_STAGES_BYTES // 2 + 1), 0, f"stages is longer than {MAX_STAGES_BYTES} bytes"),
        (TWO.encode(), 0, "stages is text; this row holds something else"),
        (TWO, 2, "it is at stage 3 of 2"),
        (TWO, 1, "its task is 'tasks.a', and stage 2 of its stages 'tasks.b'"),
    ],
)
def test_stages_that_no_producer_wrote_are_a_bad_task_that_says_what_is_wrong(
    stages: object, stage: int, words: str
) -> None:
    with pytest.raises(BadTask) as raised:
        next_stage(claimed(stages, stage))
    assert words in str(raised.value)
    assert str(raised.value).isprintable()
