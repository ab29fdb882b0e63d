"""What a worker calls first: TASKSERVER_SETUP."""

import os

import django


def setup() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    django.setup()
