"""Pools as the program uses them: `[defaults]` under each pool, and the rules between keys.

A pool's own key replaces the default. The tables `retry`, `env` and `options` are merged with the default's
key by key. `workers = N` and `min_workers`/`max_workers` are two ways to express the same thing: a pool that
uses one of them ignores what the defaults say in the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config import types
from supervisor.config.kinds import is_pool_name
from supervisor.config.lines import Key as Way
from supervisor.config.problems import Report, dotted
from supervisor.config.settings import VISIBLE_DEVICES, PoolSettings
from supervisor.config.shape import PoolTable, RetryTable
from supervisor.config.tasks import Declared
from supervisor.config.values import Checked, checked
from supervisor.domain.settlement import RetryPolicy
from supervisor.domain.text import human
from supervisor.domain.trial import Trial


def trial(written: Mapping[str, Any] | None, types: Sequence[str], at: Way, report: Report) -> Trial | None:
    """None if nothing is `written`, or if that has a problem. `types` are the pool's."""
    if written is None:
        return None
    type_ = written.get("type", types[0] if len(types) == 1 else None)
    if "payload" not in written:
        report.add((*at, "payload"), "is missing; write the payload with which the handler is to be called")
    elif type_ is None and types:
        report.add((*at, "type"), f"is missing; the pool takes {', '.join(types)}")
    elif types and type_ not in types:
        report.add((*at, "type"), f"the pool does not take {type_}, only {', '.join(types)}")
    elif type_ is not None:
        return Trial(type_, written["payload"], written.get("expect"), written.get("tolerance", 0.0))
    return None


# Pools as the program uses them: `[defaults]` under each pool, and the rules between keys.
#
# A pool's own key replaces the default. The tables `retry`, `env` and `options` are merged with the default's key by
# key. `workers = N` and `min_workers`/`max_workers` are two ways to express the same thing: a pool that uses one of
# them ignores what the defaults say in the other.

_RANGE = ("min_workers", "max_workers")
_EITHER = 'handler = "module:attribute", tasks = ["module"] or command = ["program", "argument"]'
_COMPUTED = {"types", "handler", "command", "min_workers", "max_workers", "batch_size"}
_COMPUTED |= {"path", "env", "options", "retry", "warmup", "canary"}
_AS_WRITTEN = (PoolTable.keys.keys() & set(PoolSettings._fields)) - _COMPUTED


class Layers(NamedTuple):
    """One pool's own table over the defaults."""

    name: str
    own: Checked
    defaults: Checked

    def get(self, key: str) -> Any:
        for layer in (self.own, self.defaults):
            if key in layer.values:
                return layer.values[key]
        return PoolTable.keys[key].default

    def laid_over(self, key: str) -> dict[str, Any]:
        return {**self.defaults.values.get(key, {}), **self.own.values.get(key, {})}

    def written(self, key: str) -> dict[str, Any] | None:
        """The same; None if it is written nowhere."""
        return self.laid_over(key) if key in self.own.values or key in self.defaults.values else None

    def faulty(self, *keys: str) -> bool:
        return not (self.own.faulty | self.defaults.faulty).isdisjoint(keys)

    def at(self, *ways: Way) -> Way:
        """Where a user fixes one of `ways`, keys or keys of a table: the first that the pool itself contains, else
        the first that the defaults contain."""
        for layer in (self.own, self.defaults):
            for way in ways:
                if _holds(layer.values, way):
                    return (*layer.at, *way)
        return (*self.own.at, *ways[0])


def _holds(values: Any, way: Way) -> bool:
    for part in way:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True


Pools = dict[str, PoolSettings]


def build(raw: object, defaults: Checked, types: Mapping[str, Checked], folder: Path, report: Report) -> Pools:
    """Every pool of `[pools]`, with what `[types]` says of its types. `folder` is searched first for tasks.

    Problems are added to the report; the settings are valid only if it stays empty.
    """
    if not isinstance(raw, dict) or not raw:
        report.add(("pools",), f"no pool is configured; add a table [pools.NAME] with {_EITHER}")
        return {}
    pools = [Layers(name, _own(name, table, report), defaults) for name, table in raw.items()]
    for table in (defaults, *(pool.own for pool in pools)):
        _check_one_way(table, report)
    sources: dict[str, Mapping[str, Declared]] = {}
    settings = {pool.name: _pool(pool, types, folder, sources, report) for pool in pools}
    for pool in pools:
        _check_batches(pool, report)
    comparable = [
        pool.name for pool in pools if not pool.faulty("types", "handler", "tasks", "command", "capabilities")
    ]
    _check_contradictions([s for name in comparable if (s := settings[name]).handler or s.command], sources, report)
    return settings


def _own(name: str, raw: object, report: Report) -> Checked:
    at = ("pools", name)
    if not is_pool_name(name):
        report.add(at, "the name of a pool must have 1 to 100 characters of a-z 0-9 _ . -")
    if not isinstance(raw, dict):
        return checked(PoolTable, raw, at, report)
    # [pools.a.b] is a table b inside the pool a.
    inner = [key for key, value in raw.items() if key not in PoolTable.keys and isinstance(value, dict)]
    for key in inner:
        report.add_unknown((*at, key), PoolTable.keys, f'a pool of that name is [pools."{name}.{key}"]')
    table = {key: value for key, value in raw.items() if key not in inner}
    # With nothing but such a table inside, this is not a pool that could lack a handler.
    named = [key for key in ("handler", "tasks", "command") if table.get(key) or (key == "handler" and key in table)]
    if not named and (table or not inner):
        report.add((*at, "handler"), f"is missing; write {_EITHER}")
    if len(named) > 1:
        report.add((*at, named[-1]), f"write either {named[0]} or {named[-1]}, not both")
    return checked(PoolTable, table, at, report)


def _check_one_way(table: Checked, report: Report) -> None:
    written = table.values.keys() | table.faulty
    if "workers" in written and not written.isdisjoint(_RANGE):
        report.add((*table.at, "workers"), "write either workers or min_workers and max_workers, not both")


def _largest_batch(pool: Layers) -> int:
    size: int | None = pool.get("batch_size")
    most: int = pool.get("max_batch_size")
    return most if size is None else size


def _check_batches(pool: Layers, report: Report) -> None:
    largest = _largest_batch(pool)
    if pool.own.values.get("tasks") and largest > 1:
        what = "a task is given one job at a time; batches need a handler with handle_batch"
        report.add(pool.at(("batch_size",)), what)
    _check_plans(pool, report)
    if pool.get("concurrency") > 1 and largest > 1:
        report.add(
            pool.at(("concurrency",)), "a worker runs batches one at a time: raise batch_size or concurrency, not both"
        )
    elif pool.get("concurrency") > 1 and pool.own.values.get("command"):
        report.add(pool.at(("concurrency",)), "a program is given one job at a time; raise workers instead")


def _check_plans(pool: Layers, report: Report) -> None:
    """What batches consist of."""
    for key in ("max_batch_size", "latency_target"):
        if key in pool.own.values and pool.get("batch_size") is not None:
            report.add((*pool.own.at, key), 'it has an effect only with batch_size = "auto"')
    for key in ("batch_key", "batch_cost", "batch_budget"):
        if key in pool.own.values and _largest_batch(pool) == 1:
            report.add((*pool.own.at, key), "it has an effect only with batches: set batch_size")
    budget = pool.get("batch_budget")
    if budget == 0:
        report.add(pool.at(("batch_budget",)), "must be more than 0")
    if pool.get("batch_cost") and budget is None and not pool.faulty("batch_budget"):
        report.add(pool.at(("batch_cost",)), "it needs a batch_budget, the most that a batch may cost")
    if budget is not None and pool.own.values.get("command") and not pool.get("batch_cost"):
        what = "it needs batch_cost, the field of the payload that says what a job costs"
        report.add(pool.at(("batch_budget",)), what)


def _pool(
    pool: Layers,
    tables: Mapping[str, Checked],
    folder: Path,
    sources: dict[str, Mapping[str, Declared]],
    report: Report,
) -> PoolSettings:
    """The settings of a pool; its tasks are added to `sources`."""
    low, high = _workers(pool, report)
    _check_image(pool, report)
    retry, tasks = _retry(pool, report), pool.own.values.get("tasks", [])
    path = _path(pool, folder, report)
    declared = types.declared(pool.name, tasks, pool.own.values.get("types"), folder, path, report) if tasks else {}
    sources[pool.name] = declared
    names = tuple(declared) or tuple(pool.own.values.get("types", (pool.name,)))
    return PoolSettings(
        name=pool.name,
        types=names,
        by_type=types.settings(names, tables, declared, pool.get("timeout"), retry, report),
        handler=",".join(tasks) or pool.own.values.get("handler", ""),
        command=tuple(pool.own.values.get("command", ())),
        min_workers=low,
        max_workers=high,
        batch_size=_largest_batch(pool),
        batch_auto=pool.get("batch_size") is None,
        warmup=trial(pool.written("warmup"), names, pool.at(("warmup",)), report),
        canary=trial(pool.written("canary"), names, pool.at(("canary",)), report),
        path=path,
        env=pool.laid_over("env"),
        options=pool.laid_over("options"),
        retry=retry,
        **{key: _frozen(pool.get(key)) for key in _AS_WRITTEN},
    )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _path(pool: Layers, folder: Path, report: Report) -> tuple[Path, ...]:
    if pool.own.values.get("command"):
        if "path" in pool.own.values:
            report.add(pool.at(("path",)), "it applies to Python handlers; for a program, set PYTHONPATH in env")
        return ()
    written = pool.get("path")
    others = pool.laid_over("env").get("PYTHONPATH", "").split(os.pathsep)
    places = [Path(os.path.normpath(folder / each)) for each in (*written, *filter(None, others))]
    for place in places[: len(written)]:
        if not place.is_dir():
            report.add_of_source(pool.at(("path",)), f"there is no folder {place}")
    return tuple(places)


def _check_image(pool: Layers, report: Report) -> None:
    """What may be loaded before the fork, and what a worker needs before it loads anything."""
    if pool.get("preload_setup"):
        if pool.own.values.get("command"):
            report.add(pool.at(("preload_setup",)), "it applies to a handler's setup; a program sets itself up")
        if pool.get("start") != "fork" or not pool.get("preload"):
            at = pool.at(("preload_setup",))
            report.add(at, 'it needs start = "fork" and preload = true: workers share what is loaded before a fork')
        if pool.get("gpus"):
            what = "the model would be loaded before a worker has its device"
            report.add(pool.at(("preload_setup",)), f"it cannot be combined with gpus: {what}")
    if pool.get("gpus") and VISIBLE_DEVICES in pool.laid_over("env"):
        at = pool.at(("env", VISIBLE_DEVICES))
        report.add(at, "gpus sets this variable, differently for each worker; set only one of the two")


def _workers(pool: Layers, report: Report) -> tuple[int, int]:
    """The minimum and maximum number of workers of a pool.

    `min_workers` alone lets the pool grow to one worker per processor; `max_workers` alone keeps one worker
    ready, because a pool that may have no worker at all should say so with `min_workers = 0`.
    """
    sizes = {key: value for key, value in pool.defaults.values.items() if key in ("workers", *_RANGE)}
    own = {key: value for key, value in pool.own.values.items() if key in ("workers", *_RANGE)}
    for other in _RANGE if "workers" in own else ("workers",) if own else ():
        sizes.pop(other, None)
    sizes |= own
    low: int | None = sizes.get("min_workers")
    high: int | None = sizes.get("max_workers")
    if low is None and high is None:
        workers = sizes.get("workers", PoolTable.keys["workers"].default)
        return workers, workers
    if high is None:
        assert low is not None
        return low, max(low, len(os.sched_getaffinity(0)))
    if low is None:
        return 1, high
    if low > high:
        at = pool.at(("max_workers",), ("min_workers",))
        report.add(at, f"min_workers is {low}, which is more than max_workers, {high}")
    return low, high


def _retry(pool: Layers, report: Report) -> RetryPolicy:
    table = RetryTable(pool.laid_over("retry"))
    if table.max < table.base and not pool.faulty("retry"):
        at = pool.at(("retry", "max"), ("retry", "base"))
        report.add(at, f"max is {human(table.max)}, which is shorter than base, {human(table.base)}")
    return RetryPolicy(
        max_attempts=table.max_attempts,
        backoff=table.backoff,
        base=table.base,
        max=table.max,
        jitter=table.jitter,
        give_up_on=tuple(pool.get("give_up_on")),
    )


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
