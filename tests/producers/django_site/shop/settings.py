"""Settings of the site, whose DATABASES come from the test that copied it."""

import json
import os
from pathlib import Path

import pymysql

# In the place of mysqlclient, which Django knows.
pymysql.install_as_MySQLdb()

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "of a test"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": json.loads(os.environ["SHOP_DATABASE"]),
    "elsewhere": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "elsewhere.db"},
}
TASKS = {
    "default": {"BACKEND": "taskserver.django.Backend", "OPTIONS": {"groups": {"default": 0, "mail": 3}}},
    "at_once": {"BACKEND": "taskserver.django.Backend", "OPTIONS": {"database": None}},
    "elsewhere": {"BACKEND": "taskserver.django.Backend", "OPTIONS": {"database": "elsewhere"}},
}
