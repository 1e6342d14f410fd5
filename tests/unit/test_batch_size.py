"""`batch_size = "auto"`: simulated handlers of different shapes, on a noisy machine."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.batching import AutoBatchSize
from tests.samples import sampled

Shape = Callable[[int], float]  # jobs to seconds


SHAPES: dict[str, Shape] = {
    "fixed": lambda n: 0.05 + 0.0002 * n,
    "linear": lambda n: 0.01 * n,
    "saturated": lambda n: max(0.03, 0.002 * n),  # a device that takes 15 at once
    "tight": lambda n: 0.15 + 0.002 * n,  # 25 fit into the target
    "steps": lambda n: 0.01 * -(-n // 8),  # padded to multiples of 8
    "quadratic": lambda n: 0.01 + 0.0005 * n * n,
}
fixed, linear, saturated, tight = (SHAPES[name] for name in ("fixed", "linear", "saturated", "tight"))


def small_memory(n: int) -> float:
    return 0.02 + 0.002 * n


TARGET = 0.2
MOST = 64
BETWEEN = 0.0002  # seconds between two batches


class Machine:
    """Runs batches of a shape, with noise, and notes what it was asked for."""

    def __init__(self, shape: Shape, seed: int, *, most: int = MOST, memory: int = 10_000, noise: float = 0.2) -> None:
        self.auto = AutoBatchSize(most, TARGET)
        self.shape = shape
        self.memory = memory
        self.noise = noise
        self.sizes: list[int] = []
        self.failures = 0
        self._random = random.Random(seed)

    def run(self, batches: int) -> None:
        for _ in range(batches):
            size = self.auto.size
            self.sizes.append(size)
            if size >= self.memory:
                self.failures += 1
                self.auto.out_of_memory(size)
                continue
            seconds = self.shape(size) * self._random.uniform(1 - self.noise, 1 + self.noise)
            if self._random.random() < 0.02:
                seconds *= 5  # the machine did something else
            self.auto.observe(size, seconds, BETWEEN)

    def rate(self, latest: int) -> float:
        """Jobs a second in the latest batches, without the noise."""
        sizes = [size for size in self.sizes[-latest:] if size < self.memory]
        return sum(sizes) / sum(self.shape(size) + BETWEEN for size in sizes)


def best(shape: Shape, most: int = MOST) -> float:
    """The throughput of the best fixed size within the target."""
    return max(n / (shape(n) + BETWEEN) for n in range(1, most + 1) if shape(n) <= TARGET)


@pytest.mark.parametrize("seed", sampled(range(8), quick=3))
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "tight"])
def test_it_comes_within_a_tenth_of_the_best_fixed_size(shape: str, seed: int) -> None:
    machine = Machine(SHAPES[shape], seed)
    machine.run(800)

    assert machine.rate(500) >= (0.85 if shape == "quadratic" else 0.9) * best(SHAPES[shape])


@pytest.mark.parametrize("seed", sampled(range(8), quick=3))
def test_where_a_call_alone_nearly_takes_the_target_a_little_noise_means_many_jobs(seed: int) -> None:
    machine = Machine(tight, seed)
    machine.run(800)

    assert machine.rate(500) >= 0.6 * best(tight)


@pytest.mark.parametrize("seed", sampled(range(8), quick=3))
@pytest.mark.parametrize("shape", SHAPES)
def test_batches_stay_within_the_target(shape: str, seed: int) -> None:
    machine = Machine(SHAPES[shape], seed)
    machine.run(800)

    times = [SHAPES[shape](size) for size in machine.sizes[-500:]]
    assert median(times) <= TARGET * 1.05
    assert max(times) <= TARGET * 1.5


@pytest.mark.parametrize("seed", sampled(range(8), quick=3))
def test_what_gains_nothing_from_batches_gets_small_ones(seed: int) -> None:
    machine = Machine(linear, seed)
    machine.run(800)

    assert median(machine.sizes[-500:]) <= 8


@pytest.mark.parametrize("seed", sampled(range(8), quick=3))
def test_memory_that_is_too_small_is_found_once_and_remembered(seed: int) -> None:
    machine = Machine(small_memory, seed, memory=12)
    machine.run(800)

    assert machine.failures <= 5
    assert all(size < 12 for size in machine.sizes[200:])
    assert machine.rate(500) >= 0.9 * best(small_memory, 11)


def test_memory_that_is_free_again_is_used_again() -> None:
    machine = Machine(small_memory, 1, memory=12, most=32)
    machine.run(300)
    machine.memory = 10_000
    machine.run(20_000)

    assert median(machine.sizes[-200:]) >= 24


def test_memory_that_becomes_less_costs_few_batches() -> None:
    machine = Machine(small_memory, 1)
    machine.run(500)
    machine.memory = 5
    machine.run(200)

    assert machine.failures <= 12
    assert all(size < 5 for size in machine.sizes[-100:])


def test_one_large_payload_costs_little_of_the_size() -> None:
    machine = Machine(small_memory, 1)
    machine.run(500)
    size = machine.auto.size
    machine.auto.out_of_memory(size)

    assert machine.auto.size >= size * 0.8


def test_a_batch_that_was_not_full_and_ran_out_of_memory_bounds_the_size_all_the_same() -> None:
    machine = Machine(small_memory, 1)
    machine.run(500)
    assert machine.auto.size > 20
    machine.auto.out_of_memory(10)

    assert machine.auto.size < 10


@pytest.mark.parametrize("seed", range(4))
def test_it_follows_a_handler_whose_times_change(seed: int) -> None:
    machine = Machine(fixed, seed)
    machine.run(500)
    machine.shape = linear
    machine.run(1500)
    assert machine.rate(500) >= 0.9 * best(linear)
    assert median(machine.sizes[-500:]) <= 6

    machine.shape = fixed
    machine.run(1500)
    assert machine.rate(500) >= 0.9 * best(fixed)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_becomes_slower_or_faster_does_not_confuse_it(factor: float) -> None:
    machine = Machine(saturated, 3)
    machine.run(500)

    machine.shape = lambda n: saturated(n) * factor
    machine.run(400)

    assert machine.rate(300) >= 0.9 * best(machine.shape)


def test_a_handler_that_takes_longer_than_the_target_gets_one_job_at_a_time() -> None:
    machine = Machine(lambda n: 0.5 * n, 1)
    machine.run(300)

    assert set(machine.sizes) <= {1, 2}
    assert machine.sizes.count(2) <= 30


def test_what_was_not_full_says_nothing() -> None:
    auto = AutoBatchSize(MOST, TARGET)
    for _ in range(4):
        auto.observe(1, 0.05)
    size = auto.size
    assert size > 1
    for _ in range(100):
        auto.observe(1, 10.0)

    assert auto.size == size


@given(
    st.integers(1, 256),
    st.lists(st.tuples(st.integers(1, 300), st.floats(0, 1e6), st.booleans()), max_size=60),
)
def test_whatever_happens_the_size_is_within_its_bounds(most: int, events: list[tuple[int, float, bool]]) -> None:
    auto = AutoBatchSize(most, TARGET)
    for size, seconds, failed in events:
        if failed:
            auto.out_of_memory(size)
        else:
            auto.observe(min(size, most), seconds, seconds)
        assert 1 <= auto.size <= most
