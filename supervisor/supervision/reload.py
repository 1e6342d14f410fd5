"""The result of a reload, for `status` and `reload --wait`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.domain.text import shortened
from supervisor.supervision.pool import Pool
from supervisor.telemetry import events

_MOST_PROBLEMS = 20


class ReloadOutcome:
    """The result of the last reload. `number` counts the requests in the database up to this one; None after a signal.

    A pool is `waiting` until a worker with the new code is ready or has failed, then `accepted` or `failed`. A pool
    that needs no worker now is accepted when its code was loaded; with `preload = false`, without loading it.
    `canaries` names the accepted ones whose canary has passed.
    """

    def __init__(self) -> None:
        self._news: dict[str, Any] = {}
        self._waiting: set[str] = set()

    def refused(self, why: str, number: int | None, at: float, problems: list[str], file: Path) -> None:
        """The configuration is invalid; nothing was changed. `at` is Unix seconds."""
        hint = "the previous configuration stays in effect"
        log = events(process="supervisor")
        log.error("reload_refused", why=why, problems=problems, file=str(file), hint=hint)
        told = [shortened(problem, 500) for problem in problems[:_MOST_PROBLEMS]]
        self._news = {"number": number, "at": at, "state": "refused", "problems": told, "pools": {}, "canaries": []}
        self._waiting = set()

    def begun(self, number: int | None, at: float, pools: Mapping[str, Pool]) -> None:
        self._waiting = {name for name, pool in pools.items() if not pool.closing}
        states = dict.fromkeys(sorted(self._waiting), "waiting")
        self._news = {"number": number, "at": at, "state": "running", "problems": [], "pools": states, "canaries": []}

    def follow(self, pools: Mapping[str, Pool], trying: Callable[[str], bool], now: float) -> dict[str, Any] | None:
        """Update the result of each pool. Returns the outcome; None if there was no reload. `now` is monotonic seconds;
        `trying` tells whether the code of a sleeping pool is still being loaded.
        """
        for name in sorted(self._waiting):
            pool = pools.get(name)
            if pool is None or pool.closing:
                self._settle(name, "gone")
            elif pool.failures.restarts.failed_setups:
                self._settle(name, "failed", f"{name}: {pool.problem(now)}")
            elif _is_proven(pool, trying):
                self._settle(name, "accepted", canary=pool.settings.canary is not None and pool.fixed != 0)
        return self._news or None

    def _settle(self, name: str, state: str, problem: str = "", *, canary: bool = False) -> None:
        self._waiting.discard(name)
        problems = [*self._news["problems"], shortened(problem, 500)] if problem else self._news["problems"]
        over = "failed" if problems else "accepted"
        self._news = {
            **self._news,
            "state": "running" if self._waiting else over,
            "problems": problems[:_MOST_PROBLEMS],
            "pools": {**self._news["pools"], name: state},
            "canaries": [*self._news["canaries"], *([name] if canary else ())],
        }


def _is_proven(pool: Pool, trying: Callable[[str], bool]) -> bool:
    """Whether a worker with the new code is ready, or none is needed now and the code was loaded."""
    if any(worker.is_ready and not worker.stale for worker in pool.workers.living()):
        return True
    return pool.asleep and not pool.untried and not trying(pool.name)
