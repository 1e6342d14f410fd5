"""Fail-points in the process of the test, and in a child of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from supervisor.system import failpoints


def arm(points: str) -> None:
    os.environ[failpoints.VARIABLE] = points
    failpoints._armed.cache_clear()


@contextmanager
def armed(points: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(failpoints.VARIABLE, "")  # to be put back as it was
        arm(points)
        yield
    failpoints._armed.cache_clear()


def in_a_child(work: Callable[[], object], points: str = "", after: float = 0.0) -> bool:
    """Run it with these fail-points, or kill it after so many seconds. Whether it was killed; else it must succeed."""
    child = os.fork()
    if child == 0:
        try:
            with armed(points):
                work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    if after:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0
