"""What `check`, `doctor` and the start can tell of the priorities that pools take."""

from __future__ import annotations

from collections import defaultdict

from supervisor.config.settings import PoolSettings, Settings
from supervisor.domain.intake import MAX_PRIORITY
from supervisor.domain.job import high_enough


def untaken(settings: Settings) -> list[str]:
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
