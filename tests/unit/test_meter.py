"""The meter of a process's CPU and memory."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.system.meter import Meter


def test_a_file_that_has_got_a_closed_descriptor_is_not_written(tmp_path: Path) -> None:
    meter = Meter(os.getpid())
    meter.restart()
    own = tmp_path / "own"
    own.write_bytes(b"mine")
    descriptor = os.open(own, os.O_RDWR)
    os.dup2(descriptor, meter._clear)
    meter.restart()
    assert own.read_bytes() == b"mine"
    os.close(descriptor)
    meter.close()
