"""A small Django project for the tests of supervisor.contrib.django. Its database is a file also in tests, so that the
workers of a real supervisor find it.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

import django

BASE_DIR = Path(__file__).parent
SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
DEBUG = os.environ.get("DEBUG") == "1"
USE_TZ = os.environ.get("USE_TZ", "1") == "1"
TIME_ZONE = "Europe/Berlin"
ROOT_URLCONF = "orders.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["orders"] if django.VERSION >= (6,) else ["django_tasks", "orders"]
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20}}
DATABASES = {
    "default": {**SQLITE, "NAME": BASE_DIR / "app.db", "TEST": {"NAME": BASE_DIR / "app.db"}},
    "other": {**SQLITE, "NAME": BASE_DIR / "other.db", "TEST": {"NAME": BASE_DIR / "other.db"}},
}
if "SHOP_SERVER" in os.environ:  # a URL: everything is in that database of a PostgreSQL server
    at = urlsplit(os.environ["SHOP_SERVER"])
    own = {"ENGINE": "django.db.backends.postgresql", "NAME": at.path[1:], "HOST": at.hostname, "PORT": at.port}
    DATABASES["default"] = {**own, "USER": at.username, "PASSWORD": at.password or ""}
BACKEND = "supervisor.contrib.django.TasksBackend"
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]},
    "apart": {"BACKEND": BACKEND, "OPTIONS": {"database": "other", "url": "sqlite:///app.db"}},
}
