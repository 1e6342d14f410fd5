from pathlib import Path

import django

BASE_DIR = Path(__file__).parent
SECRET_KEY = "change me"
DEBUG = True
USE_TZ = True
ROOT_URLCONF = "views"
INSTALLED_APPS = [] if django.VERSION >= (6,) else ["django_tasks"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "app.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
}
TASKS = {"default": {"BACKEND": "supervisor.contrib.django.TasksBackend"}}
