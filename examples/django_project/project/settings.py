"""The settings of the site. What is secret, or differs from host to host, stands in .env, as taskserver's settings do.

So cron's workers find all of it, too: no line of a crontab has to set a variable.
"""

import os
import sys
from pathlib import Path

from dotenv import dotenv_values

BASE_DIR = Path(__file__).resolve().parent.parent
ENV = {**dotenv_values(BASE_DIR / ".env", interpolate=False), **os.environ}

if "test" in sys.argv:  # manage.py test
    os.environ["TASKSERVER_DSN"] = "sqlite:///:memory:"

SECRET_KEY = ENV["SECRET_KEY"]
ALLOWED_HOSTS = ENV.get("ALLOWED_HOSTS", "localhost").split(",")
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "db.sqlite3",
        # Each transaction waits for its turn when it begins. Django before 5.1 does not know the mode.
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
}
for engine in ("mysql", "postgresql"):
    kind = engine.upper()
    if f"{kind}_DATABASE" in ENV:
        DATABASES["default"] = {
            "ENGINE": f"django.db.backends.{engine}",
            "NAME": ENV[f"{kind}_DATABASE"],
            "USER": ENV[f"{kind}_USER"],
            "PASSWORD": ENV[f"{kind}_PASSWORD"],
            "HOST": ENV.get(f"{kind}_HOST", "localhost"),
            "PORT": ENV.get(f"{kind}_PORT", ""),
        }

EMAIL_HOST = ENV.get("EMAIL_HOST", "localhost")
EMAIL_PORT = int(ENV.get("EMAIL_PORT", "25"))
EMAIL_TIMEOUT = 30
DEFAULT_FROM_EMAIL = "shop@example.org"
