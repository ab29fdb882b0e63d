"""The queue of the site: made when it is first used, with the settings of the .env beside manage.py."""

from functools import cache

from django.conf import settings

from taskserver import TaskServer


@cache
def queue() -> TaskServer:
    """One for the whole process: its threads may share it, and it survives a fork."""
    return TaskServer.from_env(settings.BASE_DIR)
