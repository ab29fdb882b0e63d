"""What taskserver calls in its workers: TASKSERVER_SETUP=shop.worker:setup."""

import os

import django


def setup() -> None:
    """Make Django ready, before a module of tasks is imported. Cron sets no DJANGO_SETTINGS_MODULE."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
