"""Whatever a handler raises or returns becomes an outcome of its own job, of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor import Fail, Retry
from supervisor.domain.job import Claim, Status
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.settlement import MAX_MESSAGE, MAX_TEXT, RetryPolicy, Settlement
from supervisor.worker.context import Board
from supervisor.worker.executor import Executor
from supervisor.worker.handler import Handler


def outcome(raised: Callable[[], BaseException]) -> Settlement:
    def handle(payload: object, ctx: object) -> None:
        raise raised()

    executor = Executor(Handler(handle, "handle"), Board(), JobPolicy(RetryPolicy(jitter=0)), options={})
    return executor.run(Claim(1, 1, "tag", "{}", 1, None, 0))


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class SilentFail(Fail):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Text(str):
    __slots__ = ()

    def encode(self, *args: Any) -> bytes:
        raise RuntimeError("no text")


class OddText(Retry):
    def __str__(self) -> str:
        return Text("words")


class Lying(Exception):
    @property
    def __class__(self) -> Any:
        raise OSError("who am I?")


def nameless() -> BaseException:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise ValueError("no name")

    class Nameless(Exception, metaclass=Meta):
        pass

    return Nameless()


class OddCause(Exception):
    @property
    def __cause__(self) -> Any:
        raise MemoryError


def endless() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    return first


def deep() -> BaseException:
    error: BaseException = ValueError("the first")
    for number in range(3000):
        later = ValueError(str(number))
        later.__cause__, error = error, later
    return error


def nan_wish() -> BaseException:
    retry = Retry("later")
    retry.after = float("nan")
    return retry


RAISED: list[Callable[[], BaseException]] = [
    Unspeakable,
    SilentFail,
    OddText,
    Lying,
    nameless,
    OddCause,
    endless,
    deep,
    nan_wish,
    lambda: ValueError("x" * 50_000_000),
    lambda: Fail("x" * 50_000_000),
    lambda: SystemExit(Unspeakable()),
    lambda: SystemExit("x" * 1_000_000),
    KeyboardInterrupt,
    lambda: GeneratorExit("gone"),
    lambda: BaseExceptionGroup("many", [KeyboardInterrupt(), ValueError("\ud800")]),
    lambda: StopIteration(7),
    RecursionError,
]


@pytest.mark.fault(52)
@pytest.mark.parametrize("raised", RAISED)
def test_any_exception_becomes_a_failure_of_a_bounded_size(raised: Callable[[], BaseException]) -> None:
    settlement = outcome(raised)
    failure = settlement.failure
    assert failure is not None
    assert settlement.status in (Status.PENDING, Status.FAILED)
    assert type(failure.message) is str
    assert 0 < len(failure.message) <= MAX_MESSAGE
    assert len(failure.traceback or "") <= MAX_TEXT
    assert settlement.delay >= 0


@pytest.mark.fault(52)
def test_a_text_that_is_cut_keeps_the_class_of_the_exception() -> None:
    failure = outcome(lambda: ValueError("x" * 5_000_000 + "the end")).failure
    assert failure is not None
    assert failure.message.startswith("ValueError: x")
    assert failure.message.endswith("the end")
    assert "ValueError: x" in (failure.traceback or "")


class Odd(dict[str, int]):
    def items(self) -> Any:
        raise SystemExit("no items")


class Growing(dict[str, int]):
    def items(self) -> Any:
        def pairs() -> Iterator[tuple[str, str]]:
            for number in range(300_000):
                yield str(number), "x" * 10

        return list(pairs())


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.fault(52)
@pytest.mark.parametrize(
    "result", [Odd(a=1), Growing(a=1), circle(), nested(), "\ud800", float("nan"), {1, 2}, "x" * (2 << 20)]
)
def test_any_result_that_is_none_is_a_failure_of_its_job(result: Any) -> None:
    executor = Executor(
        Handler(lambda payload, ctx: result, "handle"), Board(), JobPolicy(RetryPolicy(jitter=0)), options={}
    )
    settlement = executor.run(Claim(1, 1, "tag", "{}", 1, None, 0))
    assert settlement.failure is not None
    assert len(settlement.failure.message) <= MAX_MESSAGE
    assert "supervisor.domain" not in settlement.failure.message
    if not isinstance(result, Odd):  # which raises, and may not the next time
        assert (settlement.status, settlement.failure.kind) == (Status.FAILED, "result")


@pytest.mark.parametrize("chunk", ["x" * 20_000, {1, 2}, float("nan"), "\ud800"])
def test_a_chunk_that_nobody_can_get_fails_its_job_for_good(chunk: Any) -> None:
    executor = Executor(
        Handler(lambda payload, ctx: ctx.emit(chunk), "handle"), Board(), JobPolicy(RetryPolicy(jitter=0)), options={}
    )
    settlement = executor.run(Claim(1, 1, "tag", "{}", 1, None, 0))

    assert settlement.failure is not None
    assert (settlement.status, settlement.failure.kind) == (Status.FAILED, "result")
    assert settlement.failure.message.startswith("supervisor.InvalidJob: chunk: it ")
