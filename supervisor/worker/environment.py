"""Where a worker runs: on which cores, with what priority, how many threads and which device; and the environment of
a program that it runs, which is small, and without the supervisor's own variables.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from supervisor.config.checks import usable_cores
from supervisor.config.pool_settings import VISIBLE_DEVICES, PoolSettings
from supervisor.domain import scaling
from supervisor.domain.text import human_size
from supervisor.system import ending, kernel, resources
from supervisor.worker.handler import HandlerError

# One thread each, unless the pool says otherwise: a fork copies only the thread that calls it, and
# libraries that had other threads hang or crash in the child. ONNX Runtime's telemetry uses such a thread, too.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
SINGLE_THREADED = {**dict.fromkeys(THREADS, "1"), "ORT_DISABLE_TELEMETRY": "1"}
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", ending.SCOREBOARD_VARIABLE)
REPLY_FD = "SUPERVISOR_REPLY_FD"
REPLIES = 3  # fixed: a plain sh can only use single digits

HELPER = Path(__file__).parent.parent / "helper"
"""A folder that contains only job_handler.py, so that it can be on any interpreter's path."""

_KEPT = 256 << 20  # bytes
_KEPT_SHARE = 8  # at most one part in so many of the memory that a worker may have
_LARGEST = 32 << 20  # bytes of an array that the heap may serve, a limit of glibc on 64-bit machines
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # numbers of glibc


class Place(NamedTuple):
    """`threads` is the limit for numerical libraries; `device` is an id from the configuration."""

    threads: int = 1
    device: str | None = None


class Threads(NamedTuple):
    """How many threads numerical libraries get in each worker of a pool, and why, in a few words."""

    number: int
    why: str

    def __str__(self) -> str:
        return f"{self.number} ({self.why})"


def threads_of(pools: Mapping[str, PoolSettings]) -> dict[str, Threads]:
    """For these pools, which are all that run here.

    The pool may set it. Otherwise it is one if the worker is forked from an image in which the libraries may have
    started theirs, because threads do not survive the fork; else it follows from the pool's share of the cores. A model
    on a device is set up after the fork.
    """
    usable = usable_cores()
    wanted = [(frozenset(pool.cpu_affinity) or usable, pool.max_workers) for pool in pools.values()]
    found = {}
    for (own, _), pool in zip(wanted, pools.values(), strict=True):
        if pool.threads is not None:
            found[pool.name] = Threads(pool.threads, "as configured")
        elif pool.preloads and not pool.gpus:
            found[pool.name] = Threads(1, "threads do not survive the fork of a preloaded handler")
        else:
            found[pool.name] = Threads(scaling.threads_per_worker(own, wanted), "its share of the cores")
    return found


def worth_telling(pool: PoolSettings) -> bool:
    """Whether a user should see how many: where they decide about the speed."""
    return bool(pool.gpus) or pool.batch_size > 1 or pool.threads is not None


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
    elif pool.threads is None and place.threads > 1:
        _widen_threads(pool, place.threads)
    if kept := kept_memory(pool):
        _keep_freed_memory(kept)
    if place.device is not None:
        os.environ[VISIBLE_DEVICES] = place.device
    # An absolute value, but never a lower one than now: that would need a privilege.
    nice = max(pool.nice, os.getpriority(os.PRIO_PROCESS, 0))
    if nice > 0:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        resources.set_nice_of_session(nice)  # a worker has a session of its own
    if pool.cpu_affinity:
        try:
            os.sched_setaffinity(0, pool.cpu_affinity)
        except OSError as error:
            wanted = ", ".join(map(str, pool.cpu_affinity))
            raise HandlerError(f"cpu_affinity: none of the cores {wanted} can be used: {error.strerror}") from None


def _widen_threads(pool: PoolSettings, threads: int) -> None:
    """After a fork from an image whose libraries were told to have one thread, and have started none: those that the
    worker loads itself read the environment, and two that may be loaded already are told.
    """
    for name in THREADS:
        if name not in pool.env:
            os.environ[name] = str(threads)
    with contextlib.suppress(OSError, AttributeError):  # it is not loaded
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD).omp_set_num_threads(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def kept_memory(pool: PoolSettings) -> int:
    """How many freed bytes a worker of this pool keeps for its next job, instead of returning them to the system."""
    if pool.batch_size == 1 and not pool.gpus:
        return 0
    limits = [pool.max_memory, pool.memory_budget and pool.memory_budget // pool.max_workers]
    return min([_KEPT, *(limit // _KEPT_SHARE for limit in limits if limit)])


def _keep_freed_memory(size: int) -> None:
    """Have large arrays allocated from the heap, and the heap trimmed later. Otherwise glibc maps each of them again
    for every batch, and the kernel clears its pages. musl has no such options.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_MMAP_THRESHOLD, min(size, _LARGEST)), (_TRIM_THRESHOLD, size), (_TOP_PAD, size // 4)):
            mallopt(option, value)


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


def of_program(env: Mapping[str, str], device: str | None = None) -> dict[str, str]:
    """The whole environment of a program of a pool with this `env`, run by a worker with this `device`.

    It contains no secret from the supervisor's own environment, and not the database's address. The thread
    settings are the worker's.
    """
    found = {**SINGLE_THREADED, **os.environ}
    own = {name: found[name] for name in (*INHERITED, *SINGLE_THREADED) if name in found} | dict(env)
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [own.get("PYTHONPATH"), str(HELPER)]))
    own[REPLY_FD] = str(REPLIES)
    if device is not None:
        own[VISIBLE_DEVICES] = device
    return own
