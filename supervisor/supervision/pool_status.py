"""What `status` shows of a pool."""

from __future__ import annotations

from typing import Any

from supervisor.domain.text import shortened
from supervisor.supervision.pool import Pool


def pool_status(pool: Pool, now: float) -> dict[str, Any]:
    """`broken`: there is a problem, and no worker with the old code runs instead. `now` is monotonic seconds."""
    living, failures, settings, problem = pool.workers.living(), pool.failures, pool.settings, pool.problem(now)
    deaths = failures.template_deaths
    alone = f"its templates have died {len(deaths.at)} times: jobs run one at a time to find the cause"
    return {
        "size": len(living),
        "target": pool.target,
        "why": shortened(alone if deaths.isolated(now) else pool.reason),
        "due": pool.waiting.due,
        "oldest_age": round(pool.waiting.oldest_age, 3),
        "rate": round(pool.rate, 1),
        "problem": problem,
        "broken": bool(problem) and not pool.workers.old_serve(),
        "fixed": pool.fixed,
        "deaths": failures.deaths,
        "restarts": dict(failures.restarted),
        "types": list(settings.types),
        "capabilities": list(settings.capabilities),
        "min_workers": settings.min_workers,
        "max_workers": settings.max_workers,
        "memory": {w.name: w.memory.unique for w in living if w.memory.unique},
        "devices": {w.name: w.device for w in living if w.device is not None},
        "stale": {w.name: w.stale for w in living if w.stale},
    }
