"""`[machine]` and `[devices.NAME]`: the memory that pools share, and whether the cores suffice for their threads."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from supervisor.config.checking import checked
from supervisor.config.problems import Report, shown
from supervisor.config.settings import MachineSettings, PoolSettings, Settings
from supervisor.config.shape import DeviceTable, MachineTable


def machine(raw: Mapping[str, Any], pools: Collection[PoolSettings], report: Report) -> MachineSettings:
    table = MachineTable(checked(MachineTable, raw.get("machine", {}), ("machine",), report).values)
    devices = _devices(raw.get("devices", {}), {gpu for pool in pools for gpu in pool.gpus}, report)
    return MachineSettings(table.memory, table.min_residency, table.max_wait, devices)


def _devices(raw: object, used: Collection[str], report: Report) -> dict[str, int]:
    if not isinstance(raw, dict):
        report.add(("devices",), f"must be a table, not {shown(raw)}; write [devices.0]")
        return {}
    found = {}
    for name, own in raw.items():
        at = ("devices", name)
        table = checked(DeviceTable, own, at, report)
        memory = DeviceTable(table.values).memory
        if not table.faulty and isinstance(own, dict) and memory is None:
            report.add((*at, "memory"), 'is missing; write memory = "14GiB"')
        elif memory is not None and name not in used:
            report.add(at, f"no pool has this device in its gpus; they name {', '.join(sorted(used)) or 'none'}")
        elif memory is not None:
            found[name] = memory
    return found


def crowded_cores(settings: Settings) -> list[str]:
    """One sentence if the threads that pools ask for are more than the cores. Pools that set none may mostly wait."""
    stated = {name: (pool.max_workers, pool.threads) for name, pool in settings.pools.items() if pool.threads}
    total, cores = sum(workers * threads for workers, threads in stated.values()), len(os.sched_getaffinity(0))
    if total <= cores:
        return []
    told = ", ".join(f"{name} {workers} x {threads}" for name, (workers, threads) in stated.items())
    return [f"workers x threads are {total} on {cores} cores, so that jobs slow each other down: {told}"]
