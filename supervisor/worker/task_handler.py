"""The handler of a pool with tasks: each job calls the function that has its type."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from supervisor.domain.errors import InvalidJob
from supervisor.tasks import Task
from supervisor.tasks.parameters import Mismatch
from supervisor.worker.context import Context
from supervisor.worker.handler import Handler, HandlerError
from supervisor.worker.outcomes import BadPayload


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
