"""The machine and what is installed on it: libraries, memory, limits and GPUs, for the configured pools."""

from __future__ import annotations

import os
import platform
import re
import resource
import sqlite3
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from supervisor.config.pool_settings import PoolSettings
from supervisor.config.settings import Settings
from supervisor.domain.text import counted, human_size
from supervisor.ops.diagnosis import fault, good, note, warning
from supervisor.ops.views import Finding
from supervisor.system.resources import available

# Names as in /proc/self/mounts.
NETWORK = re.compile(
    r"9p|afs|afpfs|beegfs|ceph|cifs|fuse\.(ceph|glusterfs|rclone|s3fs|sshfs)|gfs2?|glusterfs|gpfs|lustre|"
    r"ncpfs|nfs[34]?|ocfs2|orangefs|pvfs2|smb3|smbfs|virtiofs"
)
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_FIXED_SQLITE = (3, 51, 3)  # connections that write and checkpoint at once
# Of a supervisor without workers, and for each worker: a pidfd, a channel, a run log and temporary ones.
_FILES, _FILES_OF_A_WORKER = 64, 8
_TASKS_OF_A_WORKER = 4  # the worker, its threads, and the program of a pool with a command


def interpreter() -> Finding:
    version = f"Python {platform.python_version()} in {sys.prefix}"
    if not sys.platform.startswith("linux"):
        return fault("system", f"this is {sys.platform}", "run the supervisor on Linux")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        fact = f"{version} is free-threaded, a build with which job-supervisor is not tested"
        advice = "use the usual build of this version: workers are processes, so they use all cores with it, too"
        return warning("python", fact, advice)
    return good("python", version)


def names() -> Finding:
    """PyPI's `supervisor` (supervisord) has a package with the same import name."""
    try:
        theirs = metadata.version("supervisor")
    except metadata.PackageNotFoundError:
        return good("names", "no other distribution contains a package `supervisor`")
    return fault(
        "names",
        f"supervisord's distribution `supervisor` {theirs} is installed beside `job-supervisor`, and both "
        "contain a package `supervisor`",
        "pip uninstall supervisor job-supervisor, then pip install job-supervisor alone; keep supervisord in a "
        "separate environment",
    )


def sqlite_library() -> Finding:
    version = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        return fault("sqlite", f"{version} is too old", "use a Python with SQLite 3.37 or newer")
    if sqlite3.sqlite_version_info < _FIXED_SQLITE:
        harm = "programs that write and checkpoint at the same time can, very rarely, damage a database"
        advice = "leave checkpoints to the supervisor, and keep backups: `supervisor backup FILE`"
        return note("sqlite", f"{version}: before 3.51.3, {harm}", advice)
    return good("sqlite", version)


def file_system(folder: Path) -> Finding:
    """SQLite's write-ahead log with shared memory works only on local disks."""
    mounts = Path("/proc/self/mounts")
    kind = kind_of(folder, mounts.read_text(encoding="utf-8", errors="replace")) if mounts.exists() else ""
    fact = f"{folder} is on {kind or 'an unknown file system'}"
    if NETWORK.fullmatch(kind):
        fact += ", a network file system, where SQLite's locks and shared memory do not work"
        return fault("file system", fact, "keep the database on a local disk")
    if kind in ("tmpfs", "ramfs"):
        return warning("file system", f"{fact}: its files are lost at a restart", "use a disk")
    return good("file system", fact)


def kind_of(folder: Path, mounts: str) -> str:
    """The type of the file system that holds a folder, from the text of /proc/self/mounts."""
    place = Path(os.path.realpath(folder))
    found = (line.split(" ") for line in mounts.splitlines())
    kinds = {Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), point)): kind for _, point, kind, *_ in found}
    return next((kinds[point] for point in (place, *place.parents) if point in kinds), "")


def memory(settings: Settings) -> Iterator[Finding]:
    """Whether all pools at their largest size fit into the memory of this machine or container."""
    total, stated = available(), settings.machine.memory
    needs = {pool.name: _need(pool) for pool in settings.pools.values()}
    wanted = sum(most for most in needs.values() if most is not None)
    fact = f"{human_size(total)} for this machine or container"
    if stated is not None and stated > total:
        yield warning("memory", f"{fact}, but [machine] has memory = {human_size(stated)}", "lower it below that")
    elif stated is not None:
        yield good("memory", f"{fact}; the pools share {human_size(stated)} of it")
    elif wanted > total:
        advice = "lower max_workers, max_memory or memory_budget"
        yield warning("memory", f"{fact}, but the pools may use {human_size(wanted)}", advice)
    elif unlimited := [name for name, most in needs.items() if most is None]:
        advice = "max_memory replaces a worker that has grown, memory_budget limits the whole pool"
        yield note("memory", f"{fact}; no limit is set for {', '.join(unlimited)}", advice)
    else:
        yield good("memory", f"{fact}; the pools use {human_size(wanted)} at most")


def _need(pool: PoolSettings) -> int | None:
    """Bytes of the pool at its largest size; None if it has no limit."""
    most = None if pool.max_memory is None else (pool.max_workers + pool.spares) * pool.max_memory
    return min((limit for limit in (most, pool.memory_budget) if limit is not None), default=None)


def limits(settings: Settings) -> list[Finding]:
    """Those of the system, for the number of workers that the pools may have."""
    workers = sum(pool.max_workers + pool.spares for pool in settings.pools.values())
    found = []
    for limit, what, key, needed, usual in (
        (resource.RLIMIT_NOFILE, "open files per process", "NOFILE", _FILES + _FILES_OF_A_WORKER * workers, 16384),
        (resource.RLIMIT_NPROC, "processes and threads for this user", "NPROC", _TASKS_OF_A_WORKER * workers, 4096),
    ):
        soft, hard = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY and soft < needed:
            fact = f"the limit is {soft} {what}, but {workers} workers may need {needed}"
            more = "" if hard == resource.RLIM_INFINITY or hard >= needed else "; the hard limit must also be raised"
            advice = f"Limit{key}={max(usual, 2 * needed)} in the unit, or `ulimit`{more}"
            found.append(warning("limits", fact, advice))
    enough = f"descriptors and processes are sufficient for {counted(workers, 'worker')}"
    return found or [good("limits", enough)]


def gpus(settings: Settings, devices: Path = Path("/dev")) -> list[Finding]:
    """No findings without `gpus`. Only NVIDIA's devices with a number are checked: of others, only the handler can tell
    whether they exist.
    """
    wanted = sorted({gpu for pool in settings.pools.values() for gpu in pool.gpus})
    found = []
    for device in [devices / f"nvidia{gpu}" for gpu in wanted if gpu.isdecimal()]:
        if not device.exists():
            advice = "`nvidia-smi -L` lists the devices; correct `gpus`, or install the driver"
            found.append(fault("gpus", f"{device} does not exist", advice))
        elif not os.access(device, os.R_OK | os.W_OK):
            advice = "run as a user of its group (often video), or see deploy/systemd/gpu.conf"
            found.append(fault("gpus", f"this user has no access to {device}", advice))
    return found or ([good("gpus", f"{', '.join(wanted)} can be used")] if wanted else [])
