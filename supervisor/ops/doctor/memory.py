"""Whether all pools at their largest size fit into the memory of this machine or container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from supervisor.config.settings import PoolSettings, Settings
from supervisor.domain.duration import human_size
from supervisor.ops.diagnosis import Finding, good, note, warning

_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup version 1 writes a number near 2^63 for no limit


def memory(settings: Settings) -> Finding:
    import psutil

    total = limit(psutil.virtual_memory().total, _own_cgroups(), _CGROUPS)
    needs = {pool.name: need(pool) for pool in settings.pools.values()}
    wanted = sum(most for most in needs.values() if most is not None)
    unlimited = [name for name, most in needs.items() if most is None]
    fact = f"{human_size(total)} for this machine or container"
    if wanted > total:
        return warning(
            "memory",
            f"{fact}, but the pools may use {human_size(wanted)}",
            "lower max_workers, max_memory or memory_budget",
        )
    if unlimited:
        return note(
            "memory",
            f"{fact}; no limit is set for {', '.join(unlimited)}",
            "max_memory replaces a worker that has grown, memory_budget limits the whole pool",
        )
    return good("memory", f"{fact}; the pools use {human_size(wanted)} at most")


def need(pool: PoolSettings) -> int | None:
    """Bytes of the pool at its largest size; None if it has no limit."""
    most = (pool.max_workers + pool.spares) * pool.max_memory if pool.max_memory is not None else None
    if pool.memory_budget is None:
        return most
    return pool.memory_budget if most is None else min(most, pool.memory_budget)


def limit(total: int, cgroups: str, root: Path) -> int:
    """Bytes that may be used: the minimum of the machine's total and the limits of our cgroup and its parents.

    `cgroups` is the text of /proc/self/cgroup, `root` where they are mounted.
    """
    return min((total, *(found for file in _files(cgroups, root) if (found := _number(file)) is not None)))


def _files(cgroups: str, root: Path) -> Iterator[Path]:
    for line in cgroups.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":  # version 2
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = base / path.lstrip("/")
        # In a container the path may be the host's; what is mounted is the container's own.
        while place != base:
            yield place / name
            place = place.parent
        yield base / name


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def _own_cgroups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
