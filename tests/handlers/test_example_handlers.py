"""handlers.examples: each shows what its docstring says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from handlers import examples
from supervisor import Fail, Retry
from tests.stopwatch import Stopwatch

Contexts = Callable[..., Any]


def test_echo_returns_its_payload_and_logs_none_of_it(context: Contexts) -> None:
    with capture_logs() as logs:
        result = examples.echo({"secret": "x"}, context())
    assert result == {"payload": {"secret": "x"}, "job_id": 1, "type": "test", "attempt": 1}
    assert "secret" not in json.dumps(logs)
    assert examples.noop({}, context()) is None


def test_progress_reports_each_step(context: Contexts) -> None:
    ctx = context()
    assert examples.progress({"steps": 4, "seconds": 0}, ctx) == {"steps": 4, "cancelled": False}
    assert [fraction for fraction, _ in ctx.reported] == [0.25, 0.5, 0.75, 1.0]
    assert ctx.reported[0][1] == "step 1 of 4"


def test_a_cancelled_job_stops_early(context: Contexts) -> None:
    ctx = context()
    ctx.cancelled = True
    assert examples.progress({"steps": 4, "seconds": 0}, ctx) == {"steps": 0, "cancelled": True}
    watch = Stopwatch()
    assert examples.sleep({"seconds": 60}, ctx)["slept"] < 1
    assert watch.seconds() < 5
    assert ctx.extended == ["120.000s"]


def test_both_sleepers_sleep(context: Contexts) -> None:
    assert examples.sleep({"seconds": 0.01}, context()) == {"slept": 0.01}
    assert asyncio.run(examples.asleep({"seconds": 0.01}, context())) == {"slept": 0.01}


def test_flaky_asks_for_retries_until_its_attempt_comes(context: Contexts) -> None:
    ctx = context()
    with pytest.raises(Retry) as asked:
        examples.flaky({"succeed_on": 2, "after": "30s"}, ctx)
    assert asked.value.after == 30
    ctx.attempt = 2
    assert examples.flaky({"succeed_on": 2}, ctx) == {"attempts": 2}


def test_broken_fails_for_good(context: Contexts) -> None:
    with pytest.raises(Fail, match="no such luck"):
        examples.broken({"reason": "no such luck"}, context())


def test_fan_out_enqueues_a_child_for_each_item(context: Contexts) -> None:
    ctx = context()
    assert examples.fan_out({"items": ["a", "b"], "type": "echo"}, ctx) == {"children": 2}
    assert ctx.enqueued == [("echo", {"item": item, "parent": 1}, {}) for item in "ab"]
    with pytest.raises(Fail, match="must be a list"):
        examples.fan_out({"items": "ab"}, ctx)


def test_recurring_enqueues_itself_until_its_rounds_are_done(context: Contexts) -> None:
    ctx = context()
    assert examples.recurring({"name": "n", "rounds": 2, "every": "5s"}, ctx) == {"name": "n", "done": 1}
    ((kind, payload, options),) = ctx.enqueued
    assert (kind, options) == ("test", {"delay": "5s", "unique_key": "recurring:n"})
    assert examples.recurring(payload, ctx) == {"name": "n", "done": 2}
    assert len(ctx.enqueued) == 1
