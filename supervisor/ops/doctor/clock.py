"""The clock: jobs are due by it, and nothing else is decided by it."""

from __future__ import annotations

import ctypes
import struct
import time

from supervisor.ops.doctor.finding import Finding, fault, good, note, warning

_RELEASED = 1_760_000_000.0  # Unix seconds; no clock that is right shows less
_TIMEX_BYTES = 256  # of the kernel's struct timex, and some more
_TIMEX_STATUS = 40  # where its status stands, behind modes, offset, freq, maxerror and esterror
_STA_UNSYNC = 0x40


def shown() -> Finding:
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < _RELEASED:
        return fault("clock", f"it shows {text}", "set the clock: jobs are due by it")
    if synchronised() is False:
        return note(
            "clock",
            f"it shows {text}, and nothing keeps it right",
            "install chrony or systemd-timesyncd, unless the machine below this one does it",
        )
    return good("clock", text)


def synchronised() -> bool | None:
    """Whether the kernel's clock is kept right, as adjtimex(2) says; None where that cannot be asked."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: a question
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except AttributeError:
        return None
    if state < 0 or struct.calcsize("l") != 8:
        return None
    return not struct.unpack_from("i", buffer, _TIMEX_STATUS)[0] & _STA_UNSYNC


def went_back(jobs: int, seconds: float) -> Finding | None:
    """What it means that so many jobs began or ended more than so many seconds from now."""
    if not jobs:
        return None
    count = "1 job has" if jobs == 1 else f"{jobs} jobs have"
    return warning(
        "clock",
        f"{count} begun or ended over {seconds:.0f} s in the future: the clock has been set back, or another program "
        "wrote a wrong time",
        "set the clock; no lock depends on it, but delays and retention do",
    )
