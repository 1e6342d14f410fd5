"""Whether the cores of `cpu_affinity` exist and may be used."""

from __future__ import annotations

import os
from collections.abc import Collection

from supervisor.config.problems import Report
from supervisor.config.settings import Settings


def report_absent(settings: Settings, report: Report, names: Collection[str]) -> None:
    """Report the missing cores of the pools of these names, or of all pools without names."""
    ours = os.sched_getaffinity(0)
    for name, pool in settings.pools.items():
        absent = sorted(set(pool.cpu_affinity) - ours)
        if absent and (not names or name in names):
            cores = ", ".join(map(str, absent))
            here = ", ".join(map(str, sorted(ours)))
            what = f"core {cores} is" if len(absent) == 1 else f"cores {cores} are"
            report.add(("pools", name, "cpu_affinity"), f"{what} not available; the available ones are {here}")
