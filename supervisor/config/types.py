"""`[types.NAME]` and the options of `@task`: what differs between the types of a pool, and which types nobody takes."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.config.problems import Report, dotted, shown
from supervisor.config.settings import PoolSettings, Settings, TypeSettings
from supervisor.config.shape import TypeTable
from supervisor.config.tasks import Declared, Unreadable, of_module
from supervisor.config.values import Checked, Key, checked, whole
from supervisor.domain.intake import MAX_PRIORITY
from supervisor.domain.job import high_enough
from supervisor.domain.schedule import Schedule
from supervisor.domain.settlement import RetryPolicy
from supervisor.domain.text import human, like


class TaskTable(TypeTable):
    """The options of `@task`; `priority` is of the jobs that it enqueues."""

    priority = Key(whole(-MAX_PRIORITY, MAX_PRIORITY), 0)


def tables(raw: object, report: Report) -> dict[str, Checked]:
    """The tables of `[types]`. Problems are added to the report."""
    if not isinstance(raw, dict):
        report.add(("types",), f"must be tables [types.NAME], not {shown(raw)}")
        return {}
    return {name: checked(TypeTable, table, ("types", name), report) for name, table in raw.items()}


def declared(
    pool: str, modules: Iterable[str], wanted: Sequence[str] | None, folder: Path, path: Sequence[Path], report: Report
) -> dict[str, Declared]:
    """The tasks of these modules by their types; only the `wanted` types if these are given."""
    at = ("pools", pool, "tasks")
    found: dict[str, Declared] = {}
    for index, module in enumerate(modules):
        try:
            tasks = of_module(module, folder, path)
        except Unreadable as error:
            report.add_of_source((*at, index), str(error))
            continue
        if not tasks:
            report.add_of_source((*at, index), f"the module {module!r} defines no function with @task")
        for task in tasks:
            other = found.setdefault(task.type, task)
            if other.where != task.where:
                report.add_of_source(
                    (*at, index), f"{task.where}: the type {task.type!r} is that of {other.where} already"
                )
    if wanted is None or report.problems or report.of_sources:
        return found
    for type_ in wanted:
        if type_ not in found:
            report.add(("pools", pool, "types"), f"no task has the type {type_!r}{like(type_, found)}")
    return {type_: task for type_, task in found.items() if type_ in wanted}


def settings(
    names: Iterable[str],
    written: Mapping[str, Checked],
    tasks: Mapping[str, Declared],
    timeout: float,
    retry: RetryPolicy,
    report: Report,
) -> dict[str, TypeSettings]:
    """For each of these types that differs from its pool, whose time limit and retry policy are given."""
    found = {}
    for name in names:
        values = {**_options(tasks.get(name), report), **(written[name].values if name in written else {})}
        if values.keys() & TypeTable.keys.keys():
            table = TypeTable(values)
            policy = _retry(table, retry)
            if policy.max < policy.base and table.retry:
                what = f"max is {human(policy.max)}, which is shorter than base, {human(policy.base)}"
                report.add(("types", name, "retry") if name in written else ("pools",), f"the type {name!r}: {what}")
            found[name] = TypeSettings(timeout if table.timeout is None else table.timeout, policy)
    return found


def _retry(table: TypeTable, retry: RetryPolicy) -> RetryPolicy:
    retry = replace(retry, **table.retry)
    if table.max_attempts is not None:
        retry = replace(retry, max_attempts=table.max_attempts)
    return replace(retry, give_up_on=tuple(table.give_up_on)) if "give_up_on" in table.written else retry


def policy_of(options: Mapping[str, Any], retry: RetryPolicy) -> RetryPolicy:
    """The retry policy of a task with these options in its decorator, in a pool with this one."""
    return _retry(TaskTable(_checked(options, Report())), retry)


def _checked(options: Mapping[str, Any], found: Report) -> Mapping[str, Any]:
    return checked(TaskTable, {n: list(v) if isinstance(v, tuple) else v for n, v in options.items()}, (), found).values


def _options(task: Declared | None, report: Report) -> Mapping[str, Any]:
    """The valid options of a task's decorator."""
    if task is None:
        return {}
    found = Report()
    values = _checked(task.options, found)
    for problem in found.problems:
        report.add_of_source(("pools",), f"{task.where}: {dotted(problem.at)}: {problem.text}")
    return values


def report_untaken(written: Mapping[str, Checked], pools: Iterable[PoolSettings], report: Report) -> None:
    """A table for a type that no pool takes is a mistake."""
    if report.of_sources:
        return  # not all types are known
    taken = {type_ for pool in pools for type_ in pool.types}
    for name, table in written.items():
        if name not in taken:
            report.add(table.at, f"no pool takes the type {name!r}{like(name, sorted(taken))}")


def untaken_priorities(settings: Settings) -> list[str]:
    """A sentence for each type of whose jobs no pool of this configuration takes those of a low priority. Another
    supervisor may do so.
    """
    takers: dict[str, list[PoolSettings]] = defaultdict(list)
    for pool in settings.pools.values():
        for type_ in pool.types:
            takers[type_].append(pool)
    return [
        f"no pool takes jobs of the type {type_} below priority {least}: add a pool for them without min_priority"
        for type_, pools in sorted(takers.items())
        if not any(high_enough(-MAX_PRIORITY, pool.min_priority) for pool in pools)
        for least in [min(pool.min_priority for pool in pools if pool.min_priority is not None)]
    ]


def untaken_tasks(settings: Settings) -> list[str]:
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
    others = {type_ for pool in settings.pools.values() if not _task_modules(pool.handler) for type_ in pool.types}
    places = _places(text)
    for schedule in settings.schedules:
        task = tasks.get(schedule.type)
        if task is not None and schedule.type not in others and schedule.name in places:
            for problem in _problems_of_payload(schedule, task):
                report.add(places[schedule.name], f"the task {schedule.type!r} ({task.where}) {problem}")


def _problems_of_payload(schedule: Schedule, task: Declared) -> Iterator[str]:
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
    modules = {(module, pool.path): None for pool in settings.pools.values() for module in _task_modules(pool.handler)}
    found: dict[str, Declared] = {}
    for module, path in modules:
        try:
            found |= {task.type: task for task in of_module(module, settings.folder, path)}
        except Unreadable:
            continue  # reported as the pool's problem
    return found


def _task_modules(handler: str) -> list[str]:
    """Of a pool with tasks; a handler has a colon."""
    return handler.split(",") if handler and ":" not in handler else []
