"""System limits per process, user and machine, compared with what the configured pools may need."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from supervisor.config.settings import Settings
from supervisor.ops.commands import MOST_WORKERS
from supervisor.ops.diagnosis import Finding, fault, good, warning
from supervisor.worker.placement import threads_of, worth_telling

_FILES_OF_OURS = 64  # descriptors of a supervisor without workers
_FILES_OF_A_WORKER = 8  # descriptors per worker in the supervisor: a pidfd, a channel, a run log and temporary ones
_TASKS_OF_A_WORKER = 4  # the worker, its threads, and the program of a pool with a command
_INOTIFY = Path("/proc/sys/fs/inotify")


def limits(settings: Settings, inotify: Path = _INOTIFY) -> list[Finding]:
    workers = sum(pool.max_workers + pool.spares for pool in settings.pools.values())
    found = [*_descriptors(workers), *_processes(workers), *_inotify(inotify)]
    threads = {name: its for name, its in threads_of(settings.pools).items() if worth_telling(settings.pools[name])}
    if workers > MOST_WORKERS:
        fact = f"the pools may have {workers} workers, but a supervisor can have at most {MOST_WORKERS}"
        found.append(fault("limits", fact, "lower max_workers, or divide the pools among several supervisors"))
    found = found or [good("limits", f"descriptors, processes and watches are sufficient for {workers} workers")]
    if threads:
        told = "; ".join(f"{name} {its}" for name, its in threads.items())
        found.append(good("threads", f"of numerical libraries in each worker: {told}"))
    return found


def _descriptors(workers: int) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_OF_OURS + _FILES_OF_A_WORKER * workers
    if soft != resource.RLIM_INFINITY and soft < needed:
        yield warning(
            "limits",
            f"the limit is {soft} open files per process, but {workers} workers may need {needed}",
            f"LimitNOFILE={max(16384, needed)} in the unit, or `ulimit -n {needed}`"
            + ("" if hard == resource.RLIM_INFINITY or hard >= needed else "; the hard limit must also be raised"),
        )


def _processes(workers: int) -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    needed = _TASKS_OF_A_WORKER * workers
    if soft != resource.RLIM_INFINITY and soft < needed:
        yield warning(
            "limits",
            f"the limit is {soft} processes and threads for this user, but {workers} workers may need {needed} of them",
            f"LimitNPROC={max(4096, 2 * needed)} in the unit, or `ulimit -u`",
        )


def _inotify(folder: Path) -> Iterator[Finding]:
    """A supervisor needs one instance and one watch; the limits apply to all programs of a user."""
    for name in ("max_user_instances", "max_user_watches"):
        try:
            allowed = int((folder / name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            yield warning(
                "limits",
                "inotify does not work here, so new jobs are found by polling once a second",
                "no action needed, unless a second is too long",
            )
            return
        if allowed < 16:
            advice = f"sysctl fs.inotify.{name}=128: without it, new jobs are found by polling once a second"
            yield warning("limits", f"fs.inotify.{name} is {allowed} for all programs of a user", advice)
