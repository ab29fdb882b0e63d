"""What taskserver calls in its workers: TASKSERVER_SETUP=shop.worker:setup and TASKSERVER_BETWEEN=shop.worker:between.

An app context lasts for one task, as it lasts for one request: so the next task has a session of its own.
"""

from flask.ctx import AppContext

from . import create_app

_context: AppContext


def setup() -> None:
    """Make the app, and have its context for code of tasks, also for their modules as they are imported."""
    global _context
    _context = create_app().app_context()
    _context.push()


def between() -> None:
    """End the context of the task before, with what its teardown closes, and have another one."""
    global _context
    _context.pop()
    _context = _context.app.app_context()
    _context.push()
