"""For a site's tests: a queue of their own in the place of the site's, and tasks that seem to run. See docs/testing.md.

Nothing else in the package imports it, and no setting leads here: what is allowed only in tests stays in tests.
"""

from .added import AddedTask
from .fake_task import FakeTask, running_task
from .queue import Ran, TaskQueue, task_queue

__all__ = ["AddedTask", "FakeTask", "Ran", "TaskQueue", "running_task", "task_queue"]
