"""What taskserver calls in its workers: TASKSERVER_SETUP=shop.worker:setup and TASKSERVER_BETWEEN=shop.worker:between.

An app context lasts for one task, as it lasts for one request: so the next task has a session of its own.
"""

from flask.ctx import AppContext

from . import create_app

_context: AppContext


def setup() -> None:
    """Make the app, and push its context, before a module of tasks is imported."""
    global _context
    _context = create_app().app_context()
    _context.push()


def between() -> None:
    """Replace the context of the last task. Its teardown closes what that task used."""
    global _context
    _context.pop()
    _context = _context.app.app_context()
    _context.push()
