"""All pools, as set by the configuration and the operators, and what `status` shows of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from supervisor.config.pool_settings import PoolSettings
from supervisor.domain.text import shortened
from supervisor.supervision.pool import Pool, Waiting
from supervisor.supervision.release import Release, Releases
from supervisor.supervision.templates import TemplateProcess
from supervisor.supervision.worker_process import RELOADED, WorkerProcess
from supervisor.system.scoreboard import MAX_SLOTS
from supervisor.worker.environment import threads_of, worth_telling


class Pools(dict[str, Pool]):
    """Pools by name. A pool that is no longer in the configuration stays, `closing`, until its last worker has left."""

    def configure(self, wanted: Mapping[str, PoolSettings]) -> None:
        """Create missing pools, and begin a new release of the others.

        Raises OSError if no descriptor is available; then nothing has changed.
        """
        wakes: dict[str, int] = {}
        now, reloading = time.monotonic(), bool(self)
        with ExitStack() as opened:
            for name in [name for name in wanted if name not in self]:
                wakes[name] = _eventfd()
                opened.callback(os.close, wakes[name])
            opened.pop_all()
        for name, settings in wanted.items():
            if name in self:
                self[name].reload(settings, now)
            else:
                self[name] = Pool(Releases(Release(settings, on_trial=reloading)), wakes[name])
        for name, pool in self.items():
            if name not in wanted:
                pool.close_down()

    def wakes(self) -> dict[str, int]:
        """The eventfds on which the idle workers of the pools sleep that take jobs."""
        return {name: pool.wake for name, pool in self.items() if not pool.closing}

    def status(self, now: float) -> dict[str, dict[str, Any]]:
        """What `status` shows of them."""
        threads = threads_of({name: pool.settings for name, pool in self.items()})
        shown = {name: str(threads[name]) if worth_telling(pool.settings) else "" for name, pool in self.items()}
        return {name: _status(pool, shown[name], now) for name, pool in self.items()}

    def sharing(self, pool: Pool) -> dict[str, Release]:
        """The code of the pools that share this one's template."""
        image, others = _image(pool.settings), (other.code.current for other in self.values() if not other.closing)
        return {other.pool: other for other in others if _image(other.settings) == image}

    def workers(self) -> list[WorkerProcess]:
        """The workers of all pools."""
        return [worker for pool in self.values() for worker in pool.workers.values()]

    def find(self, incarnation: str) -> WorkerProcess | None:
        return next((pool.workers[incarnation] for pool in self.values() if incarnation in pool.workers), None)

    def unforked(self) -> list[WorkerProcess]:
        """Those that wait for their template."""
        return [worker for worker in self.workers() if worker.living and not worker.process.pid]

    def running(self) -> list[WorkerProcess]:
        """Those that have a process, as far as is known."""
        return [worker for worker in self.workers() if worker.process.pid and worker.living]

    def templates(self) -> set[TemplateProcess]:
        """Those that have forked workers which have not been forgotten."""
        return {worker.request.template for worker in self.workers()}

    def sweep(self, incarnations: Iterable[str]) -> None:
        """No process is left that the handlers of these dead workers have started."""
        for incarnation in incarnations:
            if (worker := self.find(incarnation)) is not None:
                worker.end.swept = True
            for pool in self.values():
                pool.workers.unswept.pop(incarnation, None)

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
        os.close(pool.wake)


def _status(pool: Pool, threads: str, now: float) -> dict[str, Any]:
    """`broken`: there is a problem, and no older code serves instead. `now` is monotonic seconds."""
    living, settings, problem = pool.workers.living(), pool.settings, pool.problem(now)
    scale, deaths = pool.scale, pool.code.current.template_deaths
    spares = pool.spares_wanted
    reasons = [scale.reason, f"no memory for {spares - pool.spares} of {spares} spares" if pool.spares < spares else ""]
    alone = f"its templates have died {len(deaths.at)} times: jobs run one at a time to find the cause"
    return {
        "size": len(pool.workers.serving()),
        "leaving": sum(worker.leaving for worker in living),
        "target": scale.target,
        "why": shortened(alone if deaths.isolated(now) else "; ".join(filter(None, reasons))),
        "due": scale.waiting.due,
        "oldest_age": round(scale.waiting.oldest_age, 3),
        "rate": round(scale.rate.jobs, 1),
        "problem": problem,
        "spares": pool.workers.spare(),
        "spares_wanted": spares,
        "broken": bool(problem) and not pool.old_code_serves,
        "fixed": scale.fixed,
        "deaths": pool.deaths.count,
        "restarts": dict(pool.deaths.restarted),
        "types": list(settings.types),
        "capabilities": list(settings.capabilities),
        "min_priority": settings.min_priority,
        "threads": threads,
        "min_workers": settings.min_workers,
        "max_workers": settings.max_workers,
        "memory": {w.request.name: w.watched.unique for w in living if w.watched.unique},
        "devices": {w.request.name: w.request.device for w in living if w.request.device is not None},
        "stale": {
            w.request.name: pool.code.current.why_older_stays() if w.stale == RELOADED else w.stale
            for w in living
            if w.stale
        },
    }


def _image(settings: PoolSettings) -> tuple[Any, ...]:
    """Pools with the same value share one template: handler module, path, environment, preload, start and threads,
    and with preload_setup everything that is passed to the set-up.
    """
    module = settings.handler.partition(":")[0]
    of_set_up = (settings.handler, settings.options, settings.capabilities) if settings.preload_setup else ()
    return (
        module,
        settings.path,
        tuple(sorted(settings.env.items())),
        settings.preload,
        settings.start,
        settings.threads,
        bool(settings.gpus),  # GPU pools have stricter rules for an image
        *of_set_up,
    )


def _eventfd() -> int:
    """Raises OSError."""
    try:
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
    except OSError as error:
        raise OSError(f"no pool can be added: {error.strerror}") from error
