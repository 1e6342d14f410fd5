"""How long a job may run and how often it is tried, by the pools of a configuration that take it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.domain.job import Job, covers, high_enough
from supervisor.domain.settlement import RetryPolicy
from supervisor.domain.text import counted, human

if TYPE_CHECKING:
    from supervisor.config.settings import Settings


class Limits(NamedTuple):
    """Those of one pool: of the decorator of a task, `[types.NAME]`, the pool or the defaults. `timeout` is seconds."""

    pool: str
    timeout: float
    retry: RetryPolicy

    def as_json(self) -> dict[str, Any]:
        policy = {name: getattr(self.retry, name) for name in self.retry.__slots__}
        return {"pool": self.pool, "timeout": self.timeout, "retry": policy}


def limits_of(job: Job, settings: Settings) -> list[Limits]:
    """For each pool that takes the job; its own `max_attempts` comes before the pool's."""
    return [
        Limits(pool.name, pool.timeout_of(job.type), pool.policy.retry_of(job.type).limited(job.max_attempts))
        for pool in settings.pools.values()
        if job.type in pool.types
        and covers(" ".join(pool.capabilities), job.requires)
        and high_enough(job.priority, pool.min_priority)
    ]


def in_words(limits: list[Limits]) -> str:
    """One sentence, or one for each pool if they differ; empty for no pool."""
    said = {one.pool: _in_words(one) for one in limits}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"in {pool}: {what}" for pool, what in said.items())


def _in_words(limits: Limits) -> str:
    retry = limits.retry
    pause = f" of {human(retry.base)}" if retry.backoff == "fixed" else f", {human(retry.base)} to {human(retry.max)}"
    parts = [
        f"{human(limits.timeout)} a run",
        counted(retry.max_attempts, "attempt"),
        f"{retry.backoff} backoff{pause}" if retry.max_attempts > 1 else "",
        f"given up on {', '.join(retry.give_up_on)}" if retry.give_up_on else "",
    ]
    return ", ".join(part for part in parts if part)
