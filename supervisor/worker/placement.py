"""Where a worker runs: on which cores, with what priority, how many threads and which device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from supervisor.config.settings import VISIBLE_DEVICES, PoolSettings
from supervisor.domain import cores
from supervisor.domain.duration import human_size
from supervisor.system import autogroup, kernel
from supervisor.worker.environment import SINGLE_THREADED, THREADS
from supervisor.worker.loader import HandlerError


class Place(NamedTuple):
    """`threads` is the limit for numerical libraries; `device` is an id from the configuration."""

    threads: int = 1
    device: str | None = None


def threads_of(pools: Mapping[str, PoolSettings]) -> dict[str, int]:
    """The number of threads that numerical libraries get in each worker of these pools, which are all that run here.

    The pool may set it. Otherwise it is one if the worker is forked from an image that has imported the handler,
    because threads do not survive the fork; else it follows from the pool's share of the cores.
    """
    usable = frozenset(os.sched_getaffinity(0))
    wanted = [(frozenset(pool.cpu_affinity) or usable, pool.max_workers) for pool in pools.values()]
    found = {}
    for (own, _), pool in zip(wanted, pools.values(), strict=True):
        found[pool.name] = pool.threads or (1 if pool.preloads else cores.share(own, wanted))
    return found


def limit_threads(pool: PoolSettings, threads: int) -> None:
    """Must be called before any numerical library is loaded, since they read the setting once.

    The pool's `env` takes precedence over its `threads`, and that over the environment of the supervisor.
    """
    for name, value in SINGLE_THREADED.items():
        if name not in THREADS:
            os.environ.setdefault(name, value)
        elif pool.threads is None:
            os.environ.setdefault(name, str(threads))
        else:
            os.environ[name] = str(threads)
    os.environ.update(pool.env)


def take(pool: PoolSettings, place: Place) -> None:
    """In the worker, before its set-up; the processes it starts inherit all of this. Raises HandlerError."""
    if not pool.preloads:
        limit_threads(pool, place.threads)
    if place.device is not None:
        os.environ[VISIBLE_DEVICES] = place.device
    # An absolute value, but never a lower one than now: that would need a privilege.
    nice = max(pool.nice, os.getpriority(os.PRIO_PROCESS, 0))
    if nice > 0:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        autogroup.set_nice(nice)  # a worker has a session of its own
    if pool.cpu_affinity:
        try:
            os.sched_setaffinity(0, pool.cpu_affinity)
        except OSError as error:
            wanted = ", ".join(map(str, pool.cpu_affinity))
            raise HandlerError(f"cpu_affinity: none of the cores {wanted} can be used: {error.strerror}") from None


def check_memory(limit: int | None) -> None:
    """Otherwise a worker that is above `limit` (bytes) before its first job would be replaced after each job, forever.

    Counted is the memory it shares with nobody, including everything it has started. Raises HandlerError.
    """
    if limit is None:
        return
    used = kernel.memory_of_family(os.getpid())
    if used > limit:
        least = f"the {human_size(used)} that a worker uses after its set-up"
        raise HandlerError(f"max_memory = {human_size(limit)} is less than {least}: raise it above that")
