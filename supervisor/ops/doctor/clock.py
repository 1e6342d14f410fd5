"""The clock. It decides when jobs are due, and nothing else."""

from __future__ import annotations

import ctypes
import struct
import time

from supervisor.domain.text import human
from supervisor.ops.diagnosis import Finding, fault, good, note, warning

_RELEASED = 1_760_000_000.0  # Unix seconds; a correct clock is later
_TIMEX_BYTES = 256  # at least the size of the kernel's struct timex
_TIMEX_STATUS = 40  # offset of its status, after modes, offset, freq, maxerror and esterror
_STA_UNSYNC = 0x40


def shown() -> Finding:
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < _RELEASED:
        return fault("clock", f"it shows {text}", "set the clock: it decides when jobs are due")
    if synchronised() is False:
        return note(
            "clock",
            f"it shows {text} and is not synchronized",
            "install chrony or systemd-timesyncd, unless the host of this virtual machine does it",
        )
    return good("clock", text)


def synchronised() -> bool | None:
    """Whether the kernel's clock is synchronized, as adjtimex(2) reports; None if it is unavailable."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: only read
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except AttributeError:
        return None
    if state < 0 or struct.calcsize("l") != 8:
        return None
    return not struct.unpack_from("i", buffer, _TIMEX_STATUS)[0] & _STA_UNSYNC


def went_back(jobs: int, seconds: float) -> Finding | None:
    """The finding if this many jobs started or ended more than this many seconds in the future."""
    if not jobs:
        return None
    count = "1 job has" if jobs == 1 else f"{jobs} jobs have"
    return warning(
        "clock",
        f"{count} start or end times over {human(seconds)} in the future: the clock was set back, or another program "
        "wrote a wrong time",
        "set the clock; no lock depends on it, but delays and retention do",
    )
