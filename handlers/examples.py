"""Small handlers, each of which shows one feature.

[pools.examples]
types = ["echo", "progress"]          # …
handler = "handlers.examples:echo"    # one handler per pool
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from supervisor import Fail, Retry

if TYPE_CHECKING:
    from supervisor import Context

# How often a waiting handler checks whether its job has been cancelled, in seconds.
_LOOK = 0.05


def noop(payload: dict[str, Any], ctx: Context) -> None:
    """Do nothing: what remains is the cost of the queue."""


def echo(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Return the payload, and where it ran: shows what a handler receives."""
    ctx.log.info("echo", keys=len(payload))
    return {"payload": payload, "job_id": ctx.job_id, "type": ctx.type, "attempt": ctx.attempt}


def progress(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Work in `steps` (10) of `seconds` (0.1) each, report each, and stop early when cancelled."""
    steps, seconds = int(payload.get("steps", 10)), float(payload.get("seconds", 0.1))
    for step in range(steps):
        if ctx.cancelled:
            return {"steps": step, "cancelled": True}
        time.sleep(seconds)
        ctx.progress((step + 1) / steps, f"step {step + 1} of {steps}")
    return {"steps": steps, "cancelled": False}


def sleep(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Sleep for `seconds` (1), even longer than the pool's time limit, or until cancelled."""
    seconds = float(payload.get("seconds", 1))
    ctx.extend(f"{seconds + 60:.3f}s")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not ctx.cancelled:
        time.sleep(min(left, _LOOK))
    return {"slept": round(seconds - max(left, 0), 3)}


async def asleep(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """The same as a coroutine: it runs on the worker's event loop."""
    seconds = float(payload.get("seconds", 1))
    await asyncio.sleep(seconds)
    return {"slept": seconds}


def flaky(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Ask for another attempt, `after` (1s) each time, until attempt number `succeed_on` (3)."""
    succeed_on = int(payload.get("succeed_on", 3))
    if ctx.attempt < succeed_on:
        raise Retry(f"attempt {ctx.attempt} fails on purpose", after=payload.get("after", "1s"))
    return {"attempts": ctx.attempt}


def broken(payload: dict[str, Any], ctx: Context) -> None:
    """Fail permanently: an error that another attempt cannot fix is not retried."""
    raise Fail(str(payload.get("reason", "this handler always fails")))


def fan_out(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Enqueue a job of type `type` ("noop") for each of `items`.

    The children are committed together with this job's completion: all of them, once, or none.
    """
    items = payload.get("items", [])
    if not isinstance(items, list):
        raise Fail("items must be a list")
    for item in items:
        ctx.enqueue(str(payload.get("type", "noop")), {"item": item, "parent": ctx.job_id})
    return {"children": len(items)}


def recurring(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Do one round, then enqueue the next one `every` (1m) from now, until `rounds` (3) are done.

    The job ends before its successor is inserted, so it can reuse its own unique key, and however often
    it is enqueued with that key (`recurring:` and the `name`), there is only one chain.
    """
    name, done = str(payload.get("name", "default")), int(payload.get("done", 0)) + 1
    if done < int(payload.get("rounds", 3)):
        ctx.enqueue(
            ctx.type,
            {**payload, "done": done},
            delay=payload.get("every", "1m"),
            unique_key=f"recurring:{name}",
        )
    return {"name": name, "done": done}
