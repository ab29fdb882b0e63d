"""A worker of your own: as worker.py, where you choose when it runs, and see what it did."""

import sys

sys.path.insert(0, "/home/you/taskserver")

from taskserver import TaskServer, TaskServerError

try:
    with TaskServer.from_env("/home/you/taskserver") as server:
        result = server.run(max_tasks=100, groups=[3, 5, 6], max_time=240)
except TaskServerError as error:
    sys.exit(f"own_worker: {error}")
print(f"{result.done} done, {result.failed} to be retried, {result.fatal} fatal")
