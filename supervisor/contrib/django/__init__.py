"""A backend for Django's tasks: `django.tasks` of Django 6, or the package django-tasks before.

    TASKS = {"default": {"BACKEND": "supervisor.contrib.django.TasksBackend"}}        # settings.py

    [pools.django]                                                                    # supervisor.toml
    handler = "supervisor.contrib.django.worker:Tasks"
    env = { DJANGO_SETTINGS_MODULE = "shop.settings" }

See docs/django.md.
"""

from __future__ import annotations

from supervisor.contrib.django.backend import TasksBackend

__all__ = ["TasksBackend"]
