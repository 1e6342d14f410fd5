"""Pools as the program uses them: `[defaults]` and `[types.*]` combined with each pool, and the rules between keys.

A pool's own key replaces the default. Tables, such as `retry`, `env` and `options`, are merged with the default's
key by key. `workers = N` and `min_workers`/`max_workers` are two ways to express the same thing: a pool that has one
of these keys ignores those of the defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config.checks import NAME, Way, usable_cores
from supervisor.config.limits import LIMITS, contradiction, limits_of
from supervisor.config.pool_settings import NAMING, POOL, TASK, TYPE, VISIBLE_DEVICES, PoolSettings, Trial, TypeSettings
from supervisor.config.problems import Report, checked, dotted
from supervisor.config.tasks import Declared, Unreadable, of_module
from supervisor.domain.settlement import FollowUps, RetryPolicy
from supervisor.domain.text import human, like

_EITHER = 'handler = "module:attribute", tasks = ["module"] or command = ["program", "argument"]'
_RANGE = ("min_workers", "max_workers")
_SIZES = ("workers", *_RANGE)
Types = Mapping[str, Mapping[str, Any]]
"""The tables [types.NAME]."""


class Layers(NamedTuple):
    """One pool's own table over the defaults."""

    name: str
    own: Mapping[str, Any]
    defaults: Mapping[str, Any]
    report: Report

    def get(self, key: str) -> Any:
        """What applies; a table is merged key by key."""
        default = POOL[key].default
        if isinstance(default, dict):
            return {**self.defaults.get(key, default), **self.own.get(key, default)}
        return self.own.get(key, self.defaults.get(key, default))

    def has(self, key: str) -> bool:
        """Whether the pool itself has this key."""
        return bool(self.own.get(key))

    @property
    def largest_batch(self) -> int:
        size: int | None = self.get("batch_size")
        return int(self.get("max_batch_size")) if size is None else size

    def faulty(self, *keys: str) -> bool:
        return any(self.report.has((*at, key)) for at in (("pools", self.name), ("defaults",)) for key in keys)

    def at(self, key: str) -> Way:
        """Where a user fixes it: in the defaults, if only they have it."""
        return ("defaults", key) if key in self.defaults and key not in self.own else ("pools", self.name, key)


def build(values: Mapping[str, Any], folder: Path, report: Report) -> dict[str, PoolSettings]:
    """Every pool of `[pools]`, with what `[types]` says of its types. `folder` is searched first for tasks.

    Problems are added to the report; the settings are valid only if it stays empty.
    """
    defaults, types = values["defaults"], values["types"]
    pools = [Layers(name, table, defaults, report) for name, table in values["pools"].items()]
    if not pools and not report.has(("pools",)):
        report.add(("pools",), f"no pool is configured; add a table [pools.NAME] with {_EITHER}")
    for pool in pools:
        _check_name(pool, report)
    for at, table in ((("defaults",), defaults), *((("pools", pool.name), pool.own) for pool in pools)):
        if "workers" in table and not table.keys().isdisjoint(_RANGE):
            report.add((*at, "workers"), "write either workers or min_workers and max_workers, not both")
    sources: dict[str, Mapping[str, Declared]] = {}
    settings = {pool.name: _pool(pool, types, folder, sources, report) for pool in pools}
    for pool in pools:
        _check_rules(pool, report)
    comparable = [settings[pool.name] for pool in pools if not pool.faulty(*NAMING, "capabilities")]
    _check_contradictions([pool for pool in comparable if pool.handler or pool.command], sources, report)
    _check_follow_ups(settings.values(), types, report)
    if pools and not report.of_sources:  # otherwise not all types are known
        taken = sorted({type_ for pool in settings.values() for type_ in pool.types})
        for name in types:
            if name not in taken:
                report.add(("types", name), f"no pool takes the type {name!r}{like(name, taken)}")
    return settings


def _check_name(pool: Layers, report: Report) -> None:
    """How it is called, and whether it says in one way what runs its jobs."""
    at = ("pools", pool.name)
    if not re.fullmatch(NAME, pool.name):
        report.add(at, "the name of a pool must have 1 to 100 characters of a-z 0-9 _ . -")
    named = [key for key in ("handler", "tasks", "command") if pool.has(key) or report.has((*at, key))]
    if not named:
        report.add((*at, "handler"), f"is missing; write {_EITHER}")
    if len(named) > 1:
        report.add((*at, named[-1]), f"write either {named[0]} or {named[-1]}, not both")


def _check_rules(pool: Layers, report: Report) -> None:
    """The rules between keys."""
    get, has, program = pool.get, pool.has, pool.has("command")
    batches, many, budget = pool.largest_batch > 1, get("concurrency") > 1, get("batch_budget")
    fixed, forked = get("batch_size") is not None, not program and get("preload") and get("start") == "fork"
    only_auto = 'it has an effect only with batch_size = "auto"'
    only_batches = "it has an effect only with batches: set batch_size"
    rules: tuple[tuple[str, object, str], ...] = (
        ("batch_size", batches and has("tasks"), "a task is given one job at a time; batches need a handler"),
        (
            "concurrency",
            many and batches,
            "a worker runs batches one at a time: raise batch_size or concurrency, not both",
        ),
        ("concurrency", many and program, "a program is given one job at a time; raise workers instead"),
        ("max_batch_size", has("max_batch_size") and fixed, only_auto),
        ("latency_target", has("latency_target") and fixed, only_auto),
        *((key, has(key) and not batches, only_batches) for key in ("batch_key", "batch_cost", "batch_budget")),
        (
            "batch_cost",
            get("batch_cost") and budget is None and not pool.faulty("batch_budget"),
            "it needs a batch_budget, the most that a batch may cost",
        ),
        (
            "batch_budget",
            budget is not None and not get("batch_cost"),
            "it needs batch_cost, the field of the payload that says what a job costs",
        ),
        ("path", has("path") and program, "it applies to Python handlers; for a program, set PYTHONPATH in env"),
        ("preload_setup", get("preload_setup") and not forked, 'it needs a handler, start = "fork" and preload = true'),
        (
            "preload_setup",
            get("preload_setup") and get("gpus"),
            "it cannot be combined with gpus: the model would be loaded before a worker has its device",
        ),
        (
            "gpus",
            get("gpus") and VISIBLE_DEVICES in get("env"),
            f"it sets {VISIBLE_DEVICES}, differently for each worker; leave that out of env",
        ),
    )
    for key, broken, why in rules:
        if broken:
            report.add(pool.at(key), why)


def _pool(
    pool: Layers, tables: Types, folder: Path, sources: dict[str, Mapping[str, Declared]], report: Report
) -> PoolSettings:
    """The settings of a pool; its tasks are added to `sources`."""
    low, high = _workers(pool, report)
    tasks, path = pool.get("tasks"), _path(pool, folder, report)
    sources[pool.name] = declared = _declared(pool, folder, path, report)
    types = tuple(declared) or pool.get("types") or (pool.name,)
    retry = RetryPolicy(**pool.get("retry"), give_up_on=pool.get("give_up_on"))
    _check_delays(retry, pool.at("retry"), "", report)
    return PoolSettings(
        **{key: pool.get(key) for key in PoolSettings._fields if key in POOL}
        | {
            "name": pool.name,
            "types": types,
            "by_type": _by_type(types, tables, declared, pool.get("timeout"), retry, report),
            "handler": ",".join(tasks) or pool.get("handler"),
            "min_workers": low,
            "max_workers": high,
            "batch_size": pool.largest_batch,
            "batch_auto": pool.get("batch_size") is None,
            "warmup": _trial("warmup", pool, types, report),
            "canary": _trial("canary", pool, types, report),
            "path": path,
            "retry": retry,
        }
    )


def _workers(pool: Layers, report: Report) -> tuple[int, int]:
    """The minimum and maximum number of workers of a pool.

    `min_workers` alone lets the pool grow to one worker per processor; `max_workers` alone keeps one worker
    ready, because a pool that may have no worker at all should say so with `min_workers = 0`.
    """
    sizes = pool.defaults if pool.own.keys().isdisjoint(_SIZES) else pool.own
    low, high = sizes.get("min_workers"), sizes.get("max_workers")
    if low is None and high is None:
        workers = sizes.get("workers", POOL["workers"].default)
        return workers, workers
    low = 1 if low is None else low
    high = max(low, len(usable_cores())) if high is None else high
    if low > high:
        report.add(pool.at("max_workers"), f"min_workers is {low}, which is more than max_workers, {high}")
    return low, high


def _path(pool: Layers, folder: Path, report: Report) -> tuple[Path, ...]:
    if pool.has("command"):
        return ()
    written = pool.get("path")
    others = pool.get("env").get("PYTHONPATH", "").split(os.pathsep)
    places = [Path(os.path.normpath(folder / each)) for each in (*written, *filter(None, others))]
    for place in places[: len(written)]:
        if not place.is_dir():
            report.add(pool.at("path"), f"there is no folder {place}", of_source=True)
    return tuple(places)


def _trial(key: str, pool: Layers, types: Sequence[str], report: Report) -> Trial | None:
    """None if nothing is written, or if that has a problem."""
    written = pool.get(key)
    if pool.faulty(key):
        return None
    type_ = written.get("type", types[0] if len(types) == 1 else None)
    if written and "payload" not in written:
        report.add((*pool.at(key), "payload"), "is missing; write the payload with which the handler is to be called")
    elif written and type_ not in types:
        report.add((*pool.at(key), "type"), f"must be one of the types of the pool: {', '.join(types)}")
    elif written:
        return Trial(type_, **{name: value for name, value in written.items() if name != "type"})
    return None


def _check_contradictions(
    pools: Iterable[PoolSettings], sources: Mapping[str, Mapping[str, Declared]], report: Report
) -> None:
    """A job that two pools may take must be handled the same way in both. Two lists of modules may share a task."""
    for first, second in combinations(pools, 2):
        same = (first.handler, first.command) == (second.handler, second.command)
        tasks, others = sources[first.name], sources[second.name]
        shared = sorted(
            type_
            for type_ in set(first.types) & set(second.types)
            if type_ not in tasks or type_ not in others or tasks[type_].where != others[type_].where
        )
        if shared and set(first.capabilities) == set(second.capabilities) and not same:
            report.add(
                ("pools", second.name),
                f"it takes {', '.join(shared)} with the same capabilities as "
                f"{dotted(('pools', first.name))}, but has another {'command' if second.command else 'handler'}",
            )


def _check_follow_ups(pools: Iterable[PoolSettings], types: Types, report: Report) -> None:
    """A chain of follow-ups that comes back to its beginning would never end."""
    follow = {type_: settings.follow for pool in pools for type_, settings in pool.by_type.items()}
    told: set[str] = set()
    for start in follow:
        chains, seen = [[start]], set[str]()
        while chains and start not in told:
            chain = chains.pop()
            for after in filter(None, follow.get(chain[-1], ())):
                if after == start:
                    told.update(chain)
                    way = " → ".join([*chain, start])
                    at = ("types", start) if start in types else ("pools",)
                    report.add(at, f"the follow-ups of {start!r} never end: {way}", of_source=start not in types)
                elif after not in seen:
                    seen.add(after)
                    chains.append([*chain, after])


# What differs between the types of a pool


def _declared(pool: Layers, folder: Path, path: Sequence[Path], report: Report) -> dict[str, Declared]:
    """The tasks of the pool by their types: those of its modules, or only those that `types` lists."""
    found: dict[str, Declared] = {}
    at = ("pools", pool.name, "tasks")
    for module in pool.get("tasks"):
        try:
            tasks = of_module(module, folder, path)
        except Unreadable as error:
            report.add(at, str(error), of_source=True)
            continue
        if not tasks:
            report.add(at, f"the module {module!r} defines no function with @task", of_source=True)
        for task in tasks:
            other = found.setdefault(task.type, task)
            if other.where != task.where:
                report.add(at, f"{task.where}: the type {task.type!r} is that of {other.where} already", of_source=True)
    wanted = pool.get("types")
    if not found or not wanted or report.found:
        return found
    for type_ in wanted:
        if type_ not in found:
            report.add(pool.at("types"), f"no task has the type {type_!r}{like(type_, found)}")
    return {type_: task for type_, task in found.items() if type_ in wanted}


def _by_type(
    types: Iterable[str],
    written: Types,
    tasks: Mapping[str, Declared],
    timeout: float,
    retry: RetryPolicy,
    report: Report,
) -> dict[str, TypeSettings]:
    """For each of these types that differs from its pool, whose time limit and retry policy are given."""
    found = {}
    for name in types:
        values = dict(_options_of(tasks[name], report) if name in tasks else {})
        values |= written.get(name, {})
        if values.keys() & TYPE.keys():
            policy = _retry(values, retry)
            if "retry" in values:
                at = ("types", name, "retry") if name in written else ("pools",)
                _check_delays(policy, at, f"the type {name!r}: ", report)
            limits = None if values.keys().isdisjoint(LIMITS) else limits_of(values)
            if limits is not None and (wrong := contradiction(limits)) is not None:
                at = ("types", name, wrong[0]) if name in written else ("pools",)
                report.add(at, wrong[1] if name in written else f"the type {name!r}: {wrong[0]}: {wrong[1]}")
            follow = FollowUps.of(values)
            found[name] = TypeSettings(values.get("timeout", timeout), policy, follow, limits)
    return found


def _options_of(task: Declared, report: Report) -> Mapping[str, Any]:
    """The valid options of a task's decorator."""
    found = Report()
    values = _options(task.options, found)
    for problem in found.problems:
        report.add(("pools",), f"{task.where}: {dotted(problem.at)}: {problem.text}", of_source=True)
    return values


def policy_of(options: Mapping[str, Any], retry: RetryPolicy) -> RetryPolicy:
    """The retry policy of a task with these options in its decorator, in a pool with this one."""
    return _retry(_options(options, Report()), retry)


def _options(options: Mapping[str, Any], report: Report) -> Mapping[str, Any]:
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return checked(TASK, plain, (), report)


def _retry(values: Mapping[str, Any], retry: RetryPolicy) -> RetryPolicy:
    own = {name: values[name] for name in ("max_attempts", "give_up_on") if name in values}
    return retry._replace(**values.get("retry", {}), **own)


def _check_delays(policy: RetryPolicy, at: Way, whose: str, report: Report) -> None:
    for name, entry in {"": {}, **policy.on}.items():
        each = policy._replace(**entry)
        if each.max < each.base and (not name or entry.keys() & {"base", "max"}):
            what = f"max is {human(each.max)}, which is shorter than base, {human(each.base)}"
            report.add((*at, "on", name) if name else at, whose + what)
