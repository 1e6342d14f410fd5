"""What the programs of all peers on PostgreSQL have in common.

PROGRAM setup | work | fill JOBS | fill-many JOBS | feed JOBS | slow: the first two are the peer's own, the others
driver.py's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop
from driver import drive

DSN = os.environ["BENCH_POSTGRES"]
AT_ONCE = 1000  # jobs in a call for many


def run(
    setup: Callable[[], Awaitable[object]],
    work: Callable[[], Awaitable[object]],
    client: Callable[[], Awaitable[Any]],
    noop: Callable[[Any], Awaitable[object]],
    arrive: Callable[[Any, int], Awaitable[object]],
    many: Callable[[Any, int], Awaitable[object]],
    slow: Callable[[Any], Awaitable[object]],
) -> None:
    """`client` opens what the last four enqueue with: a no-op job, one that tells its number, so many no-op jobs, and
    a slow one.
    """
    loop = uvloop.new_event_loop()
    wait = loop.run_until_complete
    if sys.argv[1] in ("setup", "work"):
        wait(setup() if sys.argv[1] == "setup" else work())
        return
    opened = wait(client())

    async def noops(count: int) -> None:
        for _ in range(count // AT_ONCE):
            await many(opened, AT_ONCE)
        if count % AT_ONCE:
            await many(opened, count % AT_ONCE)

    drive(
        lambda: wait(noop(opened)),
        lambda number: wait(arrive(opened, number)),
        lambda count: wait(noops(count)),
        lambda: wait(slow(opened)),
    )
    sys.stdout.flush()
    os._exit(0)  # pools and listeners need not be closed
