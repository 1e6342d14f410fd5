"""Django's tasks: those of Django 6 itself, or of the package django-tasks, whose names are nearly the same."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import django
from django.conf import settings

_own = django.VERSION >= (6,) and "django_tasks" not in settings.INSTALLED_APPS
_name = "django.tasks" if _own else "django_tasks"
try:
    tasks: Any = import_module(_name)
except ModuleNotFoundError as error:
    raise ImportError(f"Django {django.__version__} has no tasks; install the package django-tasks") from error
base: Any = import_module(f"{_name}.base")
signals: Any = import_module(f"{_name}.signals")
exceptions: Any = import_module(f"{_name}.exceptions")
BaseTaskBackend: Any = import_module(f"{_name}.backends.base").BaseTaskBackend
InvalidTask: Any = exceptions.InvalidTask if _own else exceptions.InvalidTaskError
normalize_json: Any = import_module("django.utils.json" if _own else "django_tasks.utils").normalize_json
DEFAULT_QUEUE: str = tasks.DEFAULT_TASK_QUEUE_NAME
DEFAULT_ALIAS: str = tasks.DEFAULT_TASK_BACKEND_ALIAS
Status: Any = tasks.TaskResultStatus
