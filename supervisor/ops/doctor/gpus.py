"""Whether the devices in the pools' `gpus` exist and can be used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from supervisor.config.settings import Settings
from supervisor.ops.diagnosis import Finding, fault, good, note, warning

_METER = "nvidia-smi"


def gpus(settings: Settings, devices: Path = Path("/dev"), driver: Path = Path("/proc/driver/nvidia")) -> list[Finding]:
    """No findings without `gpus`. Only NVIDIA's devices are checked."""
    wanted = sorted({gpu for pool in settings.pools.values() for gpu in pool.gpus})
    if not wanted:
        return []
    found = list(_missing(settings, devices))
    version = _version(driver)
    if version is None:
        found.append(
            warning(
                "gpus",
                f"the configuration names {', '.join(wanted)}, but NVIDIA's driver is not loaded",
                "install the driver or pass the devices to the container; other vendors' devices are not checked",
            )
        )
    if settings.machine.devices and shutil.which(_METER) is None:
        fact = f"{_METER} is not installed, so the memory of [devices] cannot be measured and is not kept to"
        found.append(warning("gpus", fact, "install it with the driver, or remove [devices]"))
    if not any(finding.level in ("fault", "warning") for finding in found):
        found.append(good("gpus", f"{', '.join(wanted)}; driver {version}"))
    return found


def _missing(settings: Settings, devices: Path) -> Iterator[Finding]:
    for pool in settings.pools.values():
        for gpu in pool.gpus:
            if not gpu.isdecimal():
                fact = (
                    f"{pool.name}: the device {gpu} cannot be checked here; only its handler can tell whether it exists"
                )
                yield note("gpus", fact, "`nvidia-smi -L` lists the devices")
                continue
            device = devices / f"nvidia{gpu}"
            if not device.exists():
                advice = "`nvidia-smi -L` lists the devices; correct `gpus`"
                yield fault("gpus", f"{pool.name}: {device} does not exist", advice)
            elif not os.access(device, os.R_OK | os.W_OK):
                advice = "run as a user of its group (often video), or see deploy/systemd/gpu.conf"
                yield fault("gpus", f"{pool.name}: this user has no access to {device}", advice)
    for name in ("nvidiactl", "nvidia-uvm"):
        device = devices / name
        if device.exists() and not os.access(device, os.R_OK | os.W_OK):
            yield fault("gpus", f"this user has no access to {device}", "grant access: every CUDA program opens it")


def _version(driver: Path) -> str | None:
    """Like `550.54.15`; None without a driver."""
    try:
        words = (driver / "version").read_text(encoding="utf-8", errors="replace").split("\n", 1)[0].split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdecimal() and "." in word), "of unknown version")
