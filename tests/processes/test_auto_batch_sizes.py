"""`batch_size = "auto"` beside fixed sizes, with handlers in real processes that sleep as long as models would take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]
HANDLERS = """
import time

SECONDS = {
    "fixed cost": lambda n: 0.05 + 0.0002 * n,
    "linear": lambda n: 0.01 * n,
    "memory for 11": lambda n: 0.02 + 0.002 * n,
    "near the target": lambda n: 0.15 + 0.002 * n,
}

class Model:
    def setup(self, ctx):
        self.shape, self.pool = ctx.options["shape"], ctx.options["pool"]

    def handle_batch(self, payloads, ctx):
        began, count = time.monotonic(), len(payloads)
        if self.shape == "memory for 11" and count > 11:
            raise MemoryError
        time.sleep(SECONDS[self.shape](count))
        with open(f"batches-{self.pool}", "a") as file:
            file.write(f"{count} {began} {time.monotonic()}\\n")
        return [None] * count
"""
POOL = """
[pools.{name}]
handler = "jobs:Model"
workers = 1
batch_size = {size}
options = {{ shape = "{shape}", pool = "{name}" }}
"""
AUTO = '"auto"\nmax_batch_size = 64\nlatency_target = "200ms"'
ROUND = 2.0  # seconds of work for each size
LEARNING = 12.0


class Shape(NamedTuple):
    """Fixed sizes, and the jobs a second of the best one, roughly; it is measured."""

    name: str
    sizes: Sequence[int]
    rate: float


SHAPES = (
    Shape("fixed cost", (16, 32, 64), 900),
    Shape("linear", (1, 5, 10, 20), 95),
    Shape("memory for 11", (4, 8, 11), 240),
    Shape("near the target", (12, 18, 25), 120),
)


def rate(site: Site, pool: str, jobs: int) -> float:
    """Jobs a second, from the first of these jobs to the last."""
    path = site.folder / f"batches-{pool}"
    skipped = len(path.read_text().splitlines()) if path.exists() else 0
    last = site.queue.enqueue_many(pool, [{}] * jobs)[-1]
    wait_for(lambda: site.job(last).status == "done", pool, 60)
    wait_for(lambda: site.rows("SELECT count(*) FROM jobs WHERE status IN ('pending', 'running')") == [(1,)], pool)
    batches = [line.split() for line in path.read_text().splitlines()[skipped:]]
    return sum(int(count) for count, _, _ in batches) / (float(batches[-1][2]) - float(batches[0][1]))


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name.replace(" ", "-"))
def test_its_throughput_is_close_to_that_of_the_best_fixed_size(
    make_site: MakeSite, request: pytest.FixtureRequest, shape: Shape
) -> None:
    sizes = {"auto": AUTO} | {f"fixed-{size}": str(size) for size in shape.sizes}
    pools = (POOL.format(name=name, size=size, shape=shape.name) for name, size in sizes.items())
    site = make_site("".join(pools), HANDLERS)
    site.start()
    rate(site, "auto", int(LEARNING * shape.rate))

    found: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(3):
        for name in sizes:
            found[name].append(rate(site, name, int(ROUND * shape.rate / 64 + 1) * 64))
    middle = {name: sorted(rates)[1] for name, rates in found.items()}

    best = max(value for name, value in middle.items() if name != "auto")
    figures = {name: round(value, 1) for name, value in middle.items()}
    request.node.user_properties.append((shape.name, f"{middle['auto'] / best:.3f} of the best; {figures}"))
    assert middle["auto"] >= 0.75 * best, figures
    assert not site.rows("SELECT id FROM jobs WHERE attempts > 1 OR crashes > 0")
    assert not site.event("worker_died")
