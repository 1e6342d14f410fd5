"""Whether all pools at their largest size fit into the memory of this machine or container."""

from __future__ import annotations

from supervisor.config.settings import PoolSettings, Settings
from supervisor.domain.text import human_size
from supervisor.ops.diagnosis import Finding, good, note, warning
from supervisor.system.resources import available


def memory(settings: Settings) -> Finding:
    total = available()
    needs = {pool.name: need(pool) for pool in settings.pools.values()}
    wanted = sum(most for most in needs.values() if most is not None)
    unlimited = [name for name, most in needs.items() if most is None]
    fact = f"{human_size(total)} for this machine or container"
    stated = settings.machine.memory
    if stated is not None and stated > total:
        return warning("memory", f"{fact}, but [machine] has memory = {human_size(stated)}", "lower it below that")
    if stated is not None:
        return good("memory", f"{fact}; the pools share {human_size(stated)} of it")
    if wanted > total:
        return warning(
            "memory",
            f"{fact}, but the pools may use {human_size(wanted)}",
            "lower max_workers, max_memory or memory_budget",
        )
    if unlimited:
        return note(
            "memory",
            f"{fact}; no limit is set for {', '.join(unlimited)}",
            "max_memory replaces a worker that has grown, memory_budget limits the whole pool",
        )
    return good("memory", f"{fact}; the pools use {human_size(wanted)} at most")


def need(pool: PoolSettings) -> int | None:
    """Bytes of the pool at its largest size; None if it has no limit."""
    most = (pool.max_workers + pool.spares) * pool.max_memory if pool.max_memory is not None else None
    if pool.memory_budget is None:
        return most
    return pool.memory_budget if most is None else min(most, pool.memory_budget)
