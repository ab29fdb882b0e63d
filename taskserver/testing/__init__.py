"""For a site's tests: a test queue that replaces the site's, and fake running tasks. See docs/testing.md.

Nothing else in the package imports it, and no setting enables it.
"""

from .added import AddedTask
from .fake_task import FakeTask, running_task
from .queue import Ran, TaskQueue, task_queue

__all__ = ["AddedTask", "FakeTask", "Ran", "TaskQueue", "running_task", "task_queue"]
