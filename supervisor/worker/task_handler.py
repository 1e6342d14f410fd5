"""Runs the tasks of modules: each job calls the function that has its type."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from supervisor.config.tasks import Unreadable, by_module
from supervisor.domain.errors import InvalidJob
from supervisor.tasks import Task, registered
from supervisor.tasks.parameters import Mismatch
from supervisor.worker.context import Context
from supervisor.worker.loader import Handler, HandlerError, import_module
from supervisor.worker.outcomes import BadPayload


def load(name: str) -> TaskHandler:
    """A handler for every task of the modules that `name` lists, with commas. Raises HandlerError."""
    tasks: dict[str, Task[..., Any]] = {}
    for module in name.split(","):
        tasks |= _imported(module, name)
    return TaskHandler(name, tasks)


class TaskHandler(Handler):
    """A handler for these tasks, by their types. `name` is for messages."""

    def __init__(self, name: str, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._tasks = tasks
        self._async = {type_ for type_, task in tasks.items() if inspect.iscoroutinefunction(task.function)}
        super().__init__(self._call, name)
        self.handle = self._result_of_call

    def is_async(self, type: str) -> bool:
        return type in self._async

    async def awaitable(self, payload: Any, ctx: Context) -> Any:
        return self._result(await self._call(payload, ctx), ctx)

    def _call(self, payload: Any, ctx: Context) -> Any:
        task = self._tasks.get(ctx.type)
        if task is None:
            raise BadPayload(f"no task of {self.name} has the type {ctx.type!r}")
        try:
            arguments = task.parameters.arguments(payload, ctx)
        except Mismatch as error:
            raise BadPayload(str(error)) from None
        return task.function(**arguments)

    def _result_of_call(self, payload: Any, ctx: Context) -> Any:
        return self._result(self._called(payload, ctx), ctx)

    def _result(self, value: Any, ctx: Context) -> Any:
        try:
            return self._tasks[ctx.type].parameters.result(value)
        except Mismatch as error:
            raise InvalidJob("result", str(error)) from None

    def insist_on(self, types: Iterable[str]) -> None:
        for type_ in types:
            if type_ not in self._tasks:
                raise HandlerError(
                    f"{self.name}: its tasks have changed: there is none of the type {type_!r} any more; "
                    "`supervisor reload` reads the modules again"
                )


def _imported(module: str, name: str) -> dict[str, Task[..., Any]]:
    """The tasks of a module, or of all modules of a package, by their types."""
    folder = Path(sys.path[0] or ".")
    try:
        read = by_module(module, folder)
    except Unreadable as error:
        raise HandlerError(f"{name}: {error}") from None
    for each in read:
        import_module(each, name)
    declared = {task.type for tasks in read.values() for task in tasks}
    found = {type_: task for type_, task in registered.items() if task.function.__module__ in read}
    for type_, task in found.items():
        if type_ not in declared:
            raise HandlerError(
                f"{name}: {task} cannot be found by reading the source; write `from supervisor import task` and @task "
                "above a function of the module, with a literal type"
            )
        name_there, there = task.function.__name__, sys.modules[task.function.__module__]
        if (
            callable(other := getattr(there, name_there, task))
            and "." not in task.function.__qualname__
            and (not isinstance(other, Task))
        ):
            raise HandlerError(f"{name}: {task} is hidden by another decorator; @task must be the first line above it")
        try:
            _ = task.parameters
        except TypeError as error:
            raise HandlerError(str(error)) from None
    if missing := declared - found.keys():
        raise HandlerError(f"{name}: importing {module} did not define the task {min(missing)!r}")
    return found
