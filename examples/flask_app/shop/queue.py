"""The queue of the site: made when it is first used, with the settings of the .env beside the package."""

from functools import cache

from taskserver import TaskServer

from . import FOLDER


@cache
def queue() -> TaskServer:
    """One for the whole process: its threads may share it, and it survives a fork."""
    return TaskServer.from_env(FOLDER)
