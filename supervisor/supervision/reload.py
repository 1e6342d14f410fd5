"""The result of a reload, for `status` and `reload --wait`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.domain.text import shortened
from supervisor.supervision.pool import Pool
from supervisor.telemetry import events

_MOST_PROBLEMS = 20


class ReloadOutcome:
    """The result of the last reload. `number` counts the requests in the database up to this one; None after a signal.

    A pool is `waiting` until a worker with the new code is ready or has failed, then `accepted` or `failed`. A pool
    that has no worker now is `imported` when its code was; without an image, or without memory for it, it is `untried`.
    What comes of it later is in the log. `canaries` names the accepted ones whose canary has passed.
    """

    def __init__(self) -> None:
        self._news: dict[str, Any] = {}
        self._waiting: set[str] = set()
        self._unproven: set[str] = set()  # of which the log has not told yet that the new code works
        self._failed: set[str] = set()  # of which it has told that it does not
        self._log = events(process="supervisor")

    def refused(self, why: str, number: int | None, at: float, problems: list[str], file: Path) -> None:
        """The configuration is invalid; nothing was changed. `at` is Unix seconds."""
        hint = "the previous configuration stays in effect"
        self._log.error("reload_refused", why=why, problems=problems, file=str(file), hint=hint)
        told = [shortened(problem, 500) for problem in problems[:_MOST_PROBLEMS]]
        self._news = {"number": number, "at": at, "state": "refused", "problems": told, "pools": {}, "canaries": []}
        self._waiting = set()

    def begun(self, number: int | None, at: float, pools: Mapping[str, Pool]) -> None:
        self._waiting = {name for name, pool in pools.items() if not pool.closing}
        states = dict.fromkeys(sorted(self._waiting), "waiting")
        self._unproven, self._failed = set(self._waiting), set()
        self._news = {"number": number, "at": at, "state": "running", "problems": [], "pools": states, "canaries": []}

    def follow(self, pools: Mapping[str, Pool], now: float) -> dict[str, Any] | None:
        """Update the result of each pool. Returns the outcome; None if there was no reload. `now` is in
        monotonic seconds.
        """
        for name in sorted(self._unproven):
            pool = pools.get(name)
            state = "gone" if pool is None or pool.closing else pool.code.current.outcome(asleep=pool.asleep)
            if name in self._waiting and state != "waiting":
                problem = f"{name}: {pool.problem(now)}" if pool is not None and state == "failed" else ""
                tried = pool is not None and state == "accepted" and pool.settings.canary is not None
                self._settle(name, state, problem, canary=tried)
            if pool is not None:
                self._tell(pool, state, now)
        return self._news or None

    def _tell(self, pool: Pool, state: str, now: float) -> None:
        """In the log, once for each reload: that the new code does not work, and that it works."""
        if state == "failed" and pool.name not in self._failed:
            self._failed.add(pool.name)
            problem, serves = pool.problem(now), pool.old_serves
            self._log.error("new_code_failed", pool=pool.name, problem=problem, old_code_serves=serves)
        elif state == "accepted":
            canary = "none" if pool.settings.canary is None else "passed"
            self._log.info("new_code_accepted", pool=pool.name, canary=canary)
        if state in ("accepted", "gone"):
            self._unproven.discard(pool.name)

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
