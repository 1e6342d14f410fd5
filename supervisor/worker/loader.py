"""From "module:attribute", or modules with tasks, to a handler."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from supervisor.domain.errors import InvalidJob
from supervisor.tasks import Task, registered
from supervisor.tasks.parameters import Mismatch
from supervisor.worker.context import Context
from supervisor.worker.handler import BadPayload, Handler, HandlerError

_folder: Path | None = None  # the configuration's, in a process that runs a pool
_SHIPPED = Path(__file__).parents[2] / "handlers"  # our own, which a package of that name may hide


def search_first(path: Sequence[Path], folder: Path) -> None:
    """Put a pool's `path` and the configuration's folder first on sys.path."""
    global _folder
    _folder = folder
    entries = [str(each) for each in (*path, folder)]
    if sys.path[: len(entries)] != entries:
        sys.path[:0] = entries


def load(name: str, *, batches: bool = False) -> Handler:
    """Import the module and find the attribute. A name without an attribute lists modules with tasks.

    Raises HandlerError with one sentence; with `batches` also if it cannot handle several jobs at a time.
    """
    if not name.partition(":")[2]:
        tasks = [_tasks_of(module, name) for module in name.split(",")]
        return TaskHandler(name, {type_: task for found in tasks for type_, task in found.items()})
    handler = Handler(find(name), name)
    if batches:
        handler.insist_on_batches()
    return handler


def find(name: str) -> Any:
    """What `module:attribute` names. Imports the module; raises HandlerError with one sentence."""
    module_name, _, attribute = name.partition(":")
    target: Any = import_module(module_name, name)
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            raise HandlerError(f"{name}: the module {module_name} has no {attribute!r}") from None
    return target


def import_module(module_name: str, name: str) -> ModuleType:
    """Raises HandlerError with one sentence about `name`."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise HandlerError(f"{name}: there is no module {error.name!r} ({_looked_in(error.name)})") from error
        raise HandlerError(f"{name}: importing it failed: no module named {error.name!r}{_place(error)}") from error
    except Exception as error:
        why = f"{type(error).__name__}: {error}{_place(error)}"
        if type(error).__name__ == "AppRegistryNotReady":  # Django's
            why += '; begin the module with "import django; django.setup()", see docs/django.md'
        raise HandlerError(f"{name}: importing it failed: {why}") from error


def _looked_in(missing: str) -> str:
    """Why a module is not found, if another one with its package's name hides it."""
    package, _, name = missing.rpartition(".")
    file = getattr(sys.modules.get(package), "__file__", None)
    is_folder = hasattr(sys.modules.get(package), "__path__")
    if not file or (is_folder and not (package == "handlers" and (_SHIPPED / f"{name}.py").exists())):
        return f"looked in {sys.path[0]} first"
    where, kind = (Path(file).parent, "folder") if is_folder else (file, "file")
    ours = f", which hides the handlers of job-supervisor; rename that {kind}"
    return f"{package} is {where}{ours if package == 'handlers' else ''}"


def _place(error: Exception) -> str:
    """The file and line that raised it, as part of a sentence. A SyntaxError names its own."""
    if isinstance(error, SyntaxError):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    # The first frame is ours.
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames[1:] else ""


def _tasks_of(module: str, name: str) -> dict[str, Task[..., Any]]:
    """The tasks of a module, or of all modules of a package, by their types."""
    from supervisor.config.tasks import Unreadable, by_module  # imported here: only pools with tasks need them

    folder = _folder or Path(sys.path[0] or ".")
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

    def refusal(self, type: str, payload: Any) -> str:
        task = self._tasks.get(type)
        try:
            if task is not None:
                task.parameters.arguments(payload, None)
        except Mismatch as error:
            return f"the task {type!r} would refuse it: {error}"
        return ""

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
