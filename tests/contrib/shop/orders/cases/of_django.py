"""Django's own tests of task backends, from its source, with ours in place of the backends that they name.

With the package django-tasks, which ships no tests, they are its tests too: the names of the modules are replaced.
"""

import os
import sys
import types
import unittest
from pathlib import Path

from orders.api import tasks as api

FOLDER = Path(os.environ["DJANGO_TESTS"], "tasks")
PACKAGE = {
    '"django.tasks"': '"django_tasks"',
    "from django.tasks": "from django_tasks",
    "\n    InvalidTask,": "\n    InvalidTaskError as InvalidTask,",
    "\n    InvalidTaskBackend,": "\n    InvalidTaskBackendError as InvalidTaskBackend,",
    " import InvalidTask": " import InvalidTaskError as InvalidTask",
    "async Tasks": "async tasks",
}
OURS = {
    "from django.tasks.backends.dummy import DummyBackend": "from orders.cases.backends import Keeping as DummyBackend",
    "from django.tasks.backends.immediate import ImmediateBackend": (
        "from orders.cases.backends import Running as ImmediateBackend"
    ),
    "django.tasks.backends.dummy.DummyBackend": "orders.cases.backends.Keeping",
    "django.tasks.backends.immediate.ImmediateBackend": "orders.cases.backends.Running",
}
CAN = "ours can"
IN_MEMORY = "it changes a result in the memory of DummyBackend"
NOT_YET = "a worker sees what a transaction has enqueued when it has committed"
NEW = "its subject is new in Django 6"
SKIPPED = {
    "test_cannot_get_result": CAN,
    "test_cannot_refresh_result": CAN,
    "test_cannot_pass_run_after": CAN,
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": NOT_YET,
    "DummyBackendTestCase.test_refresh_result": IN_MEMORY,
    "DummyBackendTestCase.test_refresh_result_async": IN_MEMORY,
}

if api.__name__ == "django_tasks":
    SKIPPED |= {
        "test_pickle_task": NEW,
        "test_pickle_task_result": NEW,
        "test_unpickle_arbitrary_string": NEW,
        "test_unpickle_non_task_object": NEW,
        "test_run_after_in_decorator": NEW,
    }


def module(name):
    text = (FOLDER / f"{name}.py").read_text()
    for replaced in (OURS, PACKAGE if api.__name__ == "django_tasks" else {}):
        for old, new in replaced.items():
            text = text.replace(old, new)
    made = sys.modules[f"tasks.{name}"] = types.ModuleType(f"tasks.{name}")
    made.__package__ = "tasks"
    exec(compile(text, str(FOLDER / f"{name}.py"), "exec"), vars(made))
    setattr(sys.modules["tasks"], name, made)
    return made


sys.modules["tasks"] = types.ModuleType("tasks")
sys.modules["tasks"].__path__ = [str(FOLDER)]
module("tasks")

for name in ("test_tasks", "test_dummy_backend", "test_immediate_backend"):
    classes = [value for value in vars(module(name)).values() if isinstance(value, type)]
    for case in [one for one in classes if one.__module__.startswith("tasks.")]:
        case.databases = {"default"}
        for which, why in SKIPPED.items():
            test = which.removeprefix(f"{case.__name__}.")
            if hasattr(case, test):
                setattr(case, test, unittest.skip(why)(getattr(case, test)))
        globals()[case.__name__] = case
