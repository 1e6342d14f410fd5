"""Calls the handler in a worker's set-up, before it takes jobs: to warm it up, and to see if its results are right."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

from supervisor.domain.intake import encode
from supervisor.domain.job import Claim
from supervisor.domain.text import shortened
from supervisor.system.slot import Phase, Slot
from supervisor.worker import forked
from supervisor.worker.context import RUN_ENDED
from supervisor.worker.executor import Executor, decoded, described
from supervisor.worker.handler import HandlerError, for_one_job

if TYPE_CHECKING:
    from supervisor.config.settings import PoolSettings, Trial

_SHOWN = 200  # characters of a value in a sentence


def try_out(executor: Executor, pool: PoolSettings, slot: Slot, *, unproven: bool) -> None:
    """The pool's warm-up and, of code that is `unproven`, its canary. Raises HandlerError if the handler fails, or
    returns what is not expected.
    """
    if pool.warmup is not None:
        slot.enter(Phase.WARM_UP)
        _try(executor, pool, pool.warmup, Phase.WARM_UP.label)
    if pool.canary is not None and unproven:
        slot.enter(Phase.CANARY)
        _try(executor, pool, pool.canary, Phase.CANARY.label)


def _try(executor: Executor, pool: PoolSettings, trial: Trial, name: str) -> None:
    """Call it as for a job, in a pool with batches as for a batch of one; with the id 0 and without middleware. What it
    enqueues is dropped.
    """
    claim = Claim(job_id=0, token=0, type=trial.type, payload=trial.payload, attempt=1, max_attempts=None, crashes=0)
    ctx = executor.context(claim)
    handler: Any = executor.handler  # with `handle_batch`, if the pool has batches
    handle = handler.handle if pool.batch_size == 1 else for_one_job(handler.handle_batch)
    try:
        value = handle(decoded(trial.payload), ctx)
        forked.leave()
        result = None if value is None else encode("result", value)
    except BaseException as error:
        forked.leave(error)
        traceback.print_exc()
        why = described(error)[0] if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        raise HandlerError(f"{name} failed: {why}") from None
    finally:
        ctx._board = RUN_ENDED
        handler.loop_changed = False  # what a set-up leaves in the process is what jobs find there
    if trial.expect is None:
        return
    expected, found = json.loads(trial.expect), json.loads(result or "null")
    if not matches(expected, found, trial.tolerance):
        raise HandlerError(f"{name} failed: the result is {_shown(found)}; expected is {_shown(expected)}")


def matches(expected: Any, found: Any, tolerance: float) -> bool:
    """Whether a value is what is expected. It may have keys that are not expected; lists must have the same length."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(key in found and matches(each, found[key], tolerance) for key, each in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        same = len(expected) == len(found)
        return same and all(matches(one, other, tolerance) for one, other in zip(expected, found, strict=True))
    if {type(expected), type(found)} <= {int, float}:
        return bool(abs(expected - found) <= tolerance)
    return type(expected) is type(found) and expected == found


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), _SHOWN)
