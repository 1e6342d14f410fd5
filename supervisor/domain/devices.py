"""Which device a new worker gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def assign(devices: Sequence[str], used: Iterable[str | None], kept: Iterable[str | None] = ()) -> str | None:
    """The device with the fewest workers, None without devices.

    `used` are the devices of the current workers. If several devices have equally few, the first of `kept`
    wins: the device that the worker of that name had in its previous life.
    """
    if not devices:
        return None
    counts = Counter(used)
    least = min(counts[device] for device in devices)
    fit = [device for device in devices if counts[device] == least]
    return next((device for device in kept if device in fit), fit[0])
