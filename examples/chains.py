"""Pipelines, tasks that wait for others, a function that takes several tasks: at work in a queue of its own.

    python3 -m examples.chains

From the folder above this one; the queue is a file that is gone afterwards. Your own tasks stand in `tasks.py`, and
`worker.py` runs them: here one program does all of it, so that it can be tried as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import taskserver

HERE = "examples.chains"

# ---- the tasks


def shrink(picture: str) -> dict[str, Any]:
    """What a stage returns are the arguments of the next one."""
    print(f"shrinking {picture}")
    return {"picture": picture, "sizes": [200, 800]}


def publish(picture: str, sizes: Sequence[int]) -> None:
    print(f"publishing {picture} in {len(sizes)} sizes")


@taskserver.task(batch=50)
def count_views(views: Sequence[dict[str, str]]) -> list[Exception | None]:
    """One call for up to 50 tasks, with an outcome for each: None is done."""
    print(f"counting {len(views)} views at once")
    return [None if "page" in view else taskserver.Fatal("a view of no page") for view in views]


def send_report(to: str) -> None:
    print(f"sending the report to {to}")


# ---- added, run, and looked at


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dsn = f"sqlite:///{Path(folder, 'queue.db')}"
        with taskserver.TaskServer(dsn, modules=HERE) as server:
            server.create_tables()
            pictures = server.add_pipeline(
                [f"{HERE}.shrink", {"task": f"{HERE}.publish", "group_id": 5}], ["beach.jpg"]
            )
            views = server.add_tasks([{"task": f"{HERE}.count_views", "args": {"page": "gallery"}}] * 20)
            server.add_task(f"{HERE}.count_views", {"pgae": "gallery"})  # a mistake, which spoils no other
            server.add_task(f"{HERE}.send_report", ["you@example.org"], depends_on=[pictures, *views])
            result = server.run()
            for error in server.errors():
                print(f"{error.rows} fatal: {error.line}")
            print(f"{result.done} done")


if __name__ == "__main__":
    main()
