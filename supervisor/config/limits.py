"""The limits of a type as people write them: in `[types.NAME]` and `@task`, on the command line and in requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from supervisor.config import checks
from supervisor.config.checks import Key, Keys, boolean, duration, limit, one_of, whole
from supervisor.domain.enqueueing import MAX_ATTEMPTS, MAX_WAITING
from supervisor.domain.limits import Limits, rate_of
from supervisor.domain.text import human

_COUNT, _PLAIN = whole(1, MAX_WAITING), Limits()

BREAKER: Keys = {
    "failures": Key(whole(1, MAX_ATTEMPTS), 5, "After so many failed attempts in a row, no job of the type starts."),
    "pause": Key(
        duration, _PLAIN.breaker_pause, "How long that is; then one job starts at a time, until one succeeds."
    ),
}
LIMITS: Keys = {
    "max_running": Key(_COUNT, about="How many jobs of the type may run at a time, over all pools and hosts."),
    "rate": Key(checks.rate, about="How many may start in a period: 50/s, 100/m, 1/5s."),
    "burst": Key(_COUNT, 1, "How many starts may be saved up; needs a rate."),
    "concurrency_per_key": Key(
        _COUNT, about="How many jobs with the same concurrency_key may run at a time; else one."
    ),
    "on_conflict": Key(
        one_of("wait", "skip", "cancel_running"),
        "wait",
        "What a job does whose key has another: wait, skip, cancel_running.",
    ),
    "rate_per_key": Key(checks.rate, about="How many jobs with the same concurrency_key may start in a period."),
    "burst_per_key": Key(_COUNT, 1, "How many starts of a key may be saved up; needs rate_per_key."),
    "fair": Key(boolean, False, "Whether jobs take turns by their fair_key."),
    "age_boost": Key(limit, about="The waiting that counts as much as one step of priority."),
    "breaker": Key(BREAKER, about="After N failures in a row, start nothing for so long, then one job at a time."),
}
_FIELDS = {
    "rate": "interval",
    "concurrency_per_key": "per_key",
    "rate_per_key": "key_interval",
    "burst_per_key": "key_burst",
}
"""Of `Limits`, where they are not called like the key; `breaker` is two of them."""


def limits_of(values: Mapping[str, Any], base: Limits = _PLAIN) -> Limits:
    """`base` with these checked values of LIMITS; None stands for the default. Other keys are ignored."""
    found = {}
    for key in LIMITS.keys() & values.keys() - {"breaker"}:
        field, value = _FIELDS.get(key, key), values[key]
        found[field] = getattr(_PLAIN, field) if value is None else value
    if "breaker" in values:
        table = {} if values["breaker"] is None else {name: key.default for name, key in BREAKER.items()}
        table |= values["breaker"] or {}
        found |= {"max_failures": table.get("failures"), "breaker_pause": table.get("pause", _PLAIN.breaker_pause)}
    return base._replace(**found)


def written(limits: Limits) -> dict[str, Any]:
    """The keys that lead to these limits, as they are written in a file."""
    words = {"rate": rate_of, "rate_per_key": rate_of, "age_boost": human}
    found: dict[str, Any] = {}
    for key in LIMITS.keys() - {"breaker"}:
        field = _FIELDS.get(key, key)
        if (value := getattr(limits, field)) != getattr(_PLAIN, field):
            found[key] = words[key](value) if key in words else value
    if limits.max_failures is not None:
        found["breaker"] = {"failures": limits.max_failures, "pause": human(limits.breaker_pause)}
    return {key: found[key] for key in LIMITS if key in found}


def in_words(values: Mapping[str, Any]) -> str:
    """What `written` returns, in one line: `max_running 5, rate 50/s, fair`."""
    breaker = values.get("breaker") or {}
    words = {"fair": "fair", "breaker": f"breaker {breaker.get('failures')}/{breaker.get('pause')}"}
    return ", ".join(words.get(key, f"{key} {value}") for key, value in values.items())


def contradiction(limits: Limits) -> tuple[str, str] | None:
    """The key that has no effect beside the others, and why; None if there is none."""
    if limits.burst > 1 and limits.interval is None:
        return "burst", "it has an effect only with a rate"
    if limits.key_burst > 1 and limits.key_interval is None:
        return "burst_per_key", "it has an effect only with rate_per_key"
    if limits.on_conflict != "wait" and limits.per_key not in (None, 1):
        return "concurrency_per_key", f'with on_conflict = "{limits.on_conflict}", a key has one job at a time'
    return None


def of_pools(pools: Collection[Any]) -> dict[str, Limits]:
    """By type, for those types of these PoolSettings that have any. Where the order counts, twice as many are
    admitted as the pools can run.
    """
    found = {type_: own.limits for pool in pools for type_, own in pool.by_type.items() if own.limits is not None}
    for type_, limits in found.items():
        if limits.needs_room:
            room = sum(
                pool.max_workers * max(pool.batch_size, pool.concurrency) for pool in pools if type_ in pool.types
            )
            found[type_] = limits._replace(max_running=2 * max(room, 1))
    return found
