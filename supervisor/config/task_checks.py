"""What `check` and `doctor` can tell of tasks by reading their modules, beyond what the settings need."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping

from supervisor.config.problems import Report
from supervisor.config.settings import Settings
from supervisor.config.tasks import Declared, Unreadable, of_module
from supervisor.domain.schedule import Schedule
from supervisor.domain.text import like


def untaken(settings: Settings) -> list[str]:
    """A sentence for each task of the pools' modules that no pool of this configuration takes. Another supervisor may
    do so.
    """
    taken = {type_ for pool in settings.pools.values() for type_ in pool.types}
    return [
        f"no pool takes the type {type_} of the task at {task.where}"
        for type_, task in sorted(_tasks(settings).items())
        if type_ not in taken
    ]


def report_schedules(settings: Settings, text: str, report: Report) -> None:
    """A schedule whose payload lacks a parameter of its task, or names one that there is not, always fails."""
    tasks = _tasks(settings)
    # Who takes a type as a handler or a program may want another payload.
    others = {type_ for pool in settings.pools.values() if not _modules(pool.handler) for type_ in pool.types}
    places = _places(text)
    for schedule in settings.schedules:
        task = tasks.get(schedule.type)
        if task is not None and schedule.type not in others and schedule.name in places:
            for problem in _problems(schedule, task):
                report.add(places[schedule.name], f"the task {schedule.type!r} ({task.where}) {problem}")


def _problems(schedule: Schedule, task: Declared) -> Iterator[str]:
    if task.parameters is None:
        return
    payload, (required, known) = json.loads(schedule.payload), task.parameters
    if not isinstance(payload, dict):
        yield "takes its parameters from the payload by name; write payload = { name = value }"
        return
    missing = sorted(required - payload.keys())
    if missing:
        yield f"needs {', '.join(map(repr, missing))} in the payload"
    for name in () if known is None else sorted(payload.keys() - known):
        yield f"has no parameter {name!r}{like(name, sorted(known or ()))}"


def _places(text: str) -> dict[str, tuple[str | int, ...]]:
    """The keys of the schedules' payloads by the names of the schedules, in a valid file."""
    found: dict[str, tuple[str | int, ...]] = {}
    for index, table in enumerate(tomllib.loads(text).get("schedules", ())):
        if "name" in table:
            found[table["name"]] = ("schedules", index, *(("payload",) if "payload" in table else ()))
    return found


def _tasks(settings: Settings) -> Mapping[str, Declared]:
    """Those of all modules that pools name, by their types."""
    modules = {(module, pool.path): None for pool in settings.pools.values() for module in _modules(pool.handler)}
    found: dict[str, Declared] = {}
    for module, path in modules:
        try:
            found |= {task.type: task for task in of_module(module, settings.folder, path)}
        except Unreadable:
            continue  # reported as the pool's problem
    return found


def _modules(handler: str) -> list[str]:
    """Of a pool with tasks; a handler has a colon."""
    return handler.split(",") if handler and ":" not in handler else []
