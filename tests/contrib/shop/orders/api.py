"""Django's tasks, wherever they are."""

try:
    from django import tasks
    from django.tasks import signals
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
except ImportError:
    import django_tasks as tasks
    from django_tasks import signals
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist

__all__ = ["InvalidTask", "TaskResultDoesNotExist", "signals", "tasks"]
