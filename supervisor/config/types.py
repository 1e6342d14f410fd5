"""`[types.NAME]` and the options of `@task`: what differs between the types of a pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.config.checking import Checked, checked
from supervisor.config.problems import Report, dotted, shown
from supervisor.config.settings import PoolSettings, TypeSettings
from supervisor.config.shape import TypeTable
from supervisor.config.tasks import Declared, Unreadable, of_module
from supervisor.config.values import Key, whole
from supervisor.domain.intake import MAX_PRIORITY
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
