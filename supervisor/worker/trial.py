"""Calls the handler in a worker's set-up, before it takes jobs: to warm it up, and to see if its results are right."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

from supervisor.domain.job import Claim
from supervisor.domain.text import shortened
from supervisor.domain.values import encode
from supervisor.system.slot import Phase, Slot
from supervisor.worker import returned_fork
from supervisor.worker.context import RUN_ENDED
from supervisor.worker.executor import Executor, decoded, described
from supervisor.worker.handler import HandlerError, for_one_job

if TYPE_CHECKING:
    from supervisor.config.pool_settings import PoolSettings, Trial

_SHOWN = 60  # characters of a value in a sentence


def try_out(executor: Executor, pool: PoolSettings, slot: Slot, *, unproven: bool) -> None:
    """The pool's warm-up and, of code that is `unproven`, its canary. Raises HandlerError if the handler fails, or
    returns what is not expected.
    """
    if pool.warmup is not None:
        slot.page.phase_number = Phase.WARM_UP
        _try(executor, pool, pool.warmup, Phase.WARM_UP.label)
    if pool.canary is not None and unproven:
        slot.page.phase_number = Phase.CANARY
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
        returned_fork.leave()
        result = None if value is None else encode("result", value)
    except BaseException as error:
        returned_fork.leave(error)
        traceback.print_exc()
        why = described(error)[0] if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        raise HandlerError(f"{name} failed: {why}") from None
    finally:
        ctx._board = RUN_ENDED
        handler.loop_changed = False  # what a set-up leaves in the process is what jobs find there
    if trial.expect is None:
        return
    if why := mismatch(json.loads(trial.expect), json.loads(result or "null"), trial.tolerance):
        raise HandlerError(f"{name} failed: {why}")


def mismatch(expected: Any, found: Any, tolerance: float, where: str = "result") -> str:
    """Why a value is not what is expected, as a sentence; "" if it is. It may have keys that are not expected; lists
    must have the same length.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = next((key for key in expected if key not in found), None)
        if missing is not None:
            return f"{where} has no {shortened(missing, _SHOWN)!r}"
        pairs = [(f"{where}.{shortened(key, _SHOWN)}", each, found[key]) for key, each in expected.items()]
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{where} has {len(found)} elements, not {len(expected)}"
        pairs = [(f"{where}[{at}]", each, found[at]) for at, each in enumerate(expected)]
    else:
        if {type(expected), type(found)} <= {int, float}:
            same = abs(expected - found) <= tolerance
        else:
            same = type(expected) is type(found) and expected == found
        return "" if same else f"{where} is {_shown(found)}, not {_shown(expected)}"
    return next((why for at, one, other in pairs if (why := mismatch(one, other, tolerance, at))), "")


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), _SHOWN)
