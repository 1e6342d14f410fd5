"""All pools, as set by the configuration and the operators: what `status` shows of them, and the result of a reload."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from supervisor.config.settings import PoolSettings
from supervisor.domain.text import shortened
from supervisor.maintenance.duties import PoolInfo
from supervisor.maintenance.finished_jobs import RedrivePolicy
from supervisor.maintenance.locks import LockTimes
from supervisor.store.base import JobSelector
from supervisor.supervision.failures import RELOADED
from supervisor.supervision.pool import Pool, Waiting, spares_configured, spares_wanted
from supervisor.supervision.release import ImageTrial, Release, Releases
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.scoreboard import MAX_SLOTS
from supervisor.telemetry import events
from supervisor.worker.placement import threads_of, worth_telling


class Pools(dict[str, Pool]):
    """Pools by name. A pool that is no longer in the configuration stays, `closing`, until its last worker has left."""

    def configure(self, wanted: Mapping[str, PoolSettings]) -> None:
        """Create missing pools, and begin a new release of the others.

        Raises OSError if no descriptor is available; then nothing has changed.
        """
        wakes = _eventfds([name for name in wanted if name not in self])
        now = time.monotonic()
        trial = ImageTrial.DUE if self else ImageTrial.OVER
        for name, settings in wanted.items():
            if name in self:
                self[name].reload(settings, now)
            else:
                self[name] = Pool(Releases(Release(settings, trial)), wakes[name])
        for name, pool in self.items():
            if name not in wanted:
                pool.close_down()

    def pool_infos(self) -> dict[str, PoolInfo]:
        """What the maintainer must know about the pools that take jobs."""
        return {name: _info(pool) for name, pool in self.items() if not pool.closing}

    def wakes(self) -> dict[str, int]:
        """The eventfds on which the idle workers of the pools sleep that take jobs."""
        return {name: pool.wake for name, pool in self.items() if not pool.closing}

    def leaving(self) -> dict[str, LockTimes]:
        """The lock times of closing pools, whose workers finish their jobs."""
        return {name: _info(pool).locks for name, pool in self.items() if pool.closing}

    def status(self, now: float) -> dict[str, dict[str, Any]]:
        """What `status` shows of them."""
        threads = threads_of({name: pool.settings for name, pool in self.items()})
        told = {name: str(threads[name]) if worth_telling(pool.settings) else "" for name, pool in self.items()}
        return {name: _status(pool, told[name], now) for name, pool in self.items()}

    def sharing(self, pool: Pool) -> dict[str, Pool]:
        """The pools that share this one's template."""
        image = _image(pool.settings)
        return {name: other for name, other in self.items() if not other.closing and _image(other.settings) == image}

    def workers(self) -> list[WorkerProcess]:
        """The workers of all pools."""
        return [worker for pool in self.values() for worker in pool.workers.values()]

    def find(self, incarnation: str) -> WorkerProcess | None:
        return next((pool.workers[incarnation] for pool in self.values() if incarnation in pool.workers), None)

    def running(self) -> list[WorkerProcess]:
        """Those that have a process, as far as is known."""
        return [worker for worker in self.workers() if worker.running]

    def take_depths(self, depths: Mapping[str, Any]) -> None:
        """Store the depths that the maintainer has measured."""
        for name, depth in depths.items():
            if name in self:
                self[name].scale.waiting = Waiting(depth["due"], depth["oldest_age"], depth["at"])

    def take_sizes(self, sizes: Mapping[str, int]) -> None:
        """Store the sizes that operators have set."""
        for name, pool in self.items():
            size = sizes.get(name)
            pool.scale.fixed = None if size is None else min(max(size, 0), MAX_SLOTS - 1)  # any program may write a row

    def remove(self, pool: Pool) -> None:
        """Remove a closing pool whose last worker has left."""
        del self[pool.name]
        pool.close()


def _info(pool: Pool) -> PoolInfo:
    settings = pool.settings
    wanted = JobSelector(settings.types, " ".join(settings.capabilities), settings.min_priority)
    locks = LockTimes(settings.lock_time, settings.heartbeat_timeout)
    redrive = RedrivePolicy(wanted, settings.retry_failed_every, settings.retry_failed_times)
    return PoolInfo(wanted, pool.wake, locks, redrive)


def _status(pool: Pool, threads: str, now: float) -> dict[str, Any]:
    """`broken`: there is a problem, and no older code serves instead. `now` is monotonic seconds."""
    living, failures, settings, problem = pool.workers.living(), pool.failures, pool.settings, pool.problem(now)
    scale, deaths = pool.scale, pool.code.current.template_deaths
    spares = max(0, pool.desired - scale.target) if scale.target else 0
    alone = f"its templates have died {len(deaths.at)} times: jobs run one at a time to find the cause"
    return {
        "size": pool.workers.working(spares),
        "leaving": sum(worker.leaving for worker in living),
        "target": scale.target,
        "why": shortened(
            alone if deaths.isolated(now) else "; ".join(filter(None, (scale.reason, _crowded_out(pool))))
        ),
        "due": scale.waiting.due,
        "oldest_age": round(scale.waiting.oldest_age, 3),
        "rate": round(scale.rate.jobs, 1),
        "problem": problem,
        "spares": pool.workers.spare(),
        "spares_wanted": spares_configured(pool),
        "broken": bool(problem) and not pool.old_serves,
        "fixed": scale.fixed,
        "deaths": failures.deaths,
        "restarts": dict(failures.restarted),
        "types": list(settings.types),
        "capabilities": list(settings.capabilities),
        "min_priority": settings.min_priority,
        "threads": threads,
        "min_workers": settings.min_workers,
        "max_workers": settings.max_workers,
        "memory": {w.name: w.memory.unique for w in living if w.memory.unique},
        "devices": {w.name: w.device for w in living if w.device is not None},
        "stale": {
            w.name: pool.code.current.why_older_stays() if w.stale == RELOADED else w.stale for w in living if w.stale
        },
    }


def _crowded_out(pool: Pool) -> str:
    """Why it keeps fewer spares than configured; "" if it does not."""
    configured = spares_configured(pool)
    lacking = configured - pool.spares
    if lacking <= 0:
        return ""
    if not pool.size.memory.value:
        return "spares start when the size of a worker is known"
    more = "another spare" if lacking == 1 else f"{lacking} more spares"
    return f"memory_budget has no room for {more}" if spares_wanted(pool) < configured else f"no memory for {more}"


def _image(settings: PoolSettings) -> tuple[Any, ...]:
    """Pools with the same value share one template: handler module, path, environment, preload, start and threads,
    and with preload_setup everything that is passed to the set-up.
    """
    module = settings.handler.partition(":")[0]
    told = (settings.handler, settings.options, settings.capabilities) if settings.preload_setup else ()
    return (
        module,
        settings.path,
        tuple(sorted(settings.env.items())),
        settings.preload,
        settings.start,
        settings.threads,
        bool(settings.gpus),  # GPU pools have stricter rules for an image
        *told,
    )


def _eventfds(names: Iterable[str]) -> dict[str, int]:
    """One eventfd for each name. Raises OSError, and then leaves none open."""
    made: dict[str, int] = {}
    try:
        for name in names:
            made[name] = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
    except OSError as error:
        for descriptor in made.values():
            os.close(descriptor)
        raise OSError(f"no pool can be added: {error.strerror}") from error
    return made


_MOST_PROBLEMS = 20


class ReloadOutcome:
    """The result of the last reload. `number` counts the requests in the database up to this one; None after a signal.

    A pool is `waiting` until a worker with the new code is ready or has failed, then `accepted` or `failed`. A pool
    that has no worker now is `imported` when its code was; without an image, or without memory for it, it is `untried`.
    What comes of it later is in the log. `canaries` names the accepted ones whose canary has passed.
    """

    def __init__(self) -> None:
        self._news: dict[str, Any] = {}
        self._unproven: set[str] = set()  # of which the log has not told yet that the new code works
        self._failed: set[str] = set()  # of which it has told that it does not
        self._log = events(process="supervisor")

    def refused(self, why: str, number: int | None, at: float, problems: list[str], file: Path) -> None:
        """The configuration is invalid; nothing was changed. `at` is Unix seconds."""
        hint = "the previous configuration stays in effect"
        self._log.error("reload_refused", why=why, problems=problems, file=str(file), hint=hint)
        told = [shortened(problem, 500) for problem in problems[:_MOST_PROBLEMS]]
        self._news = {"number": number, "at": at, "state": "refused", "problems": told, "pools": {}, "canaries": []}

    def begun(self, number: int | None, at: float, pools: Mapping[str, Pool]) -> None:
        states = {name: "waiting" for name, pool in sorted(pools.items()) if not pool.closing}
        self._unproven, self._failed = set(states), set()
        self._news = {"number": number, "at": at, "state": "running", "problems": [], "pools": states, "canaries": []}

    def follow(self, pools: Mapping[str, Pool], now: float) -> dict[str, Any] | None:
        """Update the result of each pool. Returns the outcome; None if there was no reload. `now` is in
        monotonic seconds.
        """
        for name in sorted(self._unproven):
            pool = pools.get(name)
            state = "gone" if pool is None or pool.closing else pool.code.current.outcome(asleep=pool.asleep)
            if self._news["pools"].get(name) == "waiting" and state != "waiting":
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
        states = {**self._news["pools"], name: state}
        problems = [*self._news["problems"], shortened(problem, 500)] if problem else self._news["problems"]
        over = "failed" if problems else "accepted"
        self._news = {
            **self._news,
            "state": "running" if "waiting" in states.values() else over,
            "problems": problems[:_MOST_PROBLEMS],
            "pools": states,
            "canaries": [*self._news["canaries"], *([name] if canary else ())],
        }
