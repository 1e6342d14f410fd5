"""What a worker calls in its set-up, before it takes jobs; whether the result is what is expected; and failures."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.config import load
from supervisor.domain.recovery import JobPolicy
from supervisor.system.slot import SLOT_BYTES, Slot
from supervisor.worker.context import BatchContext, Board, Context
from supervisor.worker.executor import Executor
from supervisor.worker.handler import Handler, HandlerError
from supervisor.worker.trial import mismatch, try_out


class Batch:
    def handle_batch(self, payloads: list[Any], ctx: BatchContext) -> list[Any]:
        return [{"jobs": [job.job_id for job in ctx.jobs], "payloads": payloads}]


class Later:
    async def handle_batch(self, payloads: list[Any], ctx: BatchContext) -> list[Any]:
        return Batch().handle_batch(payloads, ctx)


class Both(Batch):
    def handle(self, payload: Any, ctx: Context) -> Any:
        return "handle"


class Fails:
    def handle_batch(self, payloads: list[Any], ctx: BatchContext) -> list[Any]:
        return [ValueError("no kernel image")]


class Exits:
    def handle(self, payload: Any, ctx: Context) -> Any:
        sys.exit(0)


class IsCancelled:
    async def handle(self, payload: Any, ctx: Context) -> Any:
        raise asyncio.CancelledError("by a library")


def attempt(folder: Path, target: type, batch_size: str, what: str, expected: str = "") -> None:
    expect = f"expect = {expected}" if expected else ""
    pool = f'[pools.model]\nhandler = "jobs:model"\nbatch_size = {batch_size}\n'
    config = folder / "supervisor.toml"
    config.write_text(f"{pool}[pools.model.{what}]\npayload = {{ x = 1 }}\n{expect}\n")
    handler = Handler(target, "jobs:model")
    executor = Executor(handler, Board(), JobPolicy(), options={})
    slot = Slot(memoryview(bytearray(SLOT_BYTES)))
    try:
        try_out(executor, load(config).pools["model"], slot, unproven=True)
    finally:
        handler.teardown(executor.context())


@pytest.mark.parametrize("what", ["warmup", "canary"])
@pytest.mark.parametrize("batch_size", ["1", "8", '"auto"'])
@pytest.mark.parametrize("target", [Batch, Later])
def test_a_handler_for_batches_finds_the_job_that_it_is_tried_with(
    tmp_path: Path, target: type, batch_size: str, what: str
) -> None:
    expected = "{ jobs = [0], payloads = [{ x = 1 }] }" if what == "canary" else ""
    attempt(tmp_path, target, batch_size, what, expected)


def test_what_is_tried_is_what_will_run(tmp_path: Path) -> None:
    attempt(tmp_path, Both, "1", "canary", '"handle"')
    attempt(tmp_path, Both, "8", "canary", "{ jobs = [0] }")


@pytest.mark.parametrize("what", ["warmup", "canary"])
@pytest.mark.parametrize(
    ("target", "batch_size", "why"),
    [
        (Fails, "8", "ValueError: no kernel image"),
        (Fails, "1", "ValueError: no kernel image"),
        (Exits, "1", "the handler called sys.exit(0)"),
        (IsCancelled, "1", "CancelledError: by a library"),
    ],
)
def test_whatever_is_raised_there_is_its_failure(
    tmp_path: Path, target: type, batch_size: str, why: str, what: str
) -> None:
    with pytest.raises(HandlerError) as caught:
        attempt(tmp_path, target, batch_size, what)
    assert str(caught.value) == f"{what} failed: {why}"


@pytest.mark.parametrize(
    ("expected", "found", "tolerance"),
    [
        ({"label": "cat"}, {"label": "cat", "score": 0.9}, 0.0),
        ({"all": [{"x": 1}, 2]}, {"all": [{"x": 1, "y": 2}, 2]}, 0.0),
        (0.98, 1, 0.02000001),
        (1, 1.0, 0.0),
        (None, None, 0.0),
        ([], [], 0.0),
        (True, True, 0.0),
    ],
)
def test_what_is_as_expected(expected: Any, found: Any, tolerance: float) -> None:
    assert mismatch(expected, found, tolerance) == ""


@pytest.mark.parametrize(
    ("expected", "found", "why"),
    [
        ({"label": "cat"}, {"label": "dog"}, 'result.label is "dog", not "cat"'),
        ({"label": "cat"}, {"score": 1}, "result has no 'label'"),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "result.a.b[1] is 3, not 2"),
        ([1, 2], [1], "result has 1 elements, not 2"),
        ({"x": 1}, None, 'result is null, not {"x": 1}'),
        (1, True, "result is true, not 1"),
        (0, False, "result is false, not 0"),
        ("1", 1, 'result is 1, not "1"'),
    ],
)
def test_what_differs_is_named(expected: Any, found: Any, why: str) -> None:
    assert mismatch(expected, found, 0.0) == why


def test_numbers_may_differ_by_the_tolerance_and_no_more() -> None:
    assert mismatch({"p": 0.5}, {"p": 0.509}, 0.01) == ""
    assert mismatch({"p": 0.5}, {"p": 0.52}, 0.01) == "result.p is 0.52, not 0.5"


def test_a_long_value_is_shortened() -> None:
    assert len(mismatch("x" * 5000, "y" * 5000, 0.0)) < 250
