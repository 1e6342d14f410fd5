"""How pools share memory: single decisions, and what holds in every course of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from supervisor.domain.memory_division import divide
from supervisor.domain.memory_shares import (
    MACHINE,
    Grant,
    Need,
    Patience,
    Residency,
    Template,
    Tenant,
    Workers,
)

PATIENCE = Patience(min_residency=30.0, max_wait=60.0)
NOW = 1000.0


def demand(name: str, workers: int = 0, *, wanted: int = 1, need: int | None = 60, **more: Any) -> Tenant:
    """A pool whose workers use `need` each; `leaving` of them have been told to leave. None: as the others, perhaps."""
    leaving, image = more.pop("leaving", 0), more.pop("image", name)
    more |= {"measured": need is not None}
    need = 60 if need is None else need
    there = Workers(workers - leaving, leaving, workers * (more.pop("used", None) or need))
    needs = Need(need, more.pop("template", 0))
    return Tenant(name, wanted, needs, more.pop("held", {"": there}), image, **resident(more))


def resident(more: dict[str, Any]) -> dict[str, Any]:
    """These fields of a tenant, with those of its residency in one."""
    return more | {"residency": Residency(**{key: more.pop(key) for key in Residency._fields if key in more})}


def idle(name: str, workers: int = 1, *, since: float = 900.0, **more: Any) -> Tenant:
    return demand(name, workers, idle_since=since, loaded_at=more.pop("loaded_at", 100.0), resident=True, **more)


def busy(name: str, workers: int = 1, **more: Any) -> Tenant:
    more = {"loaded_at": 100.0, "resident": True, "due": 5, "busy": workers, "oldest_wait": 2.0} | more
    return demand(name, workers, **more)


def waiting(name: str, seconds: float = 1.0, **more: Any) -> Tenant:
    return demand(name, **({"due": 3, "oldest_wait": seconds} | more))


def decide(*demands: Tenant, budget: int = 130, **more: Any) -> dict[str, Grant]:
    templates: Mapping[str, Template] = more.pop("templates", {})
    return divide(demands, {MACHINE: budget} | more.pop("devices", {}), templates, PATIENCE, NOW, **more)


def on_device(name: str, device: str, **more: Any) -> Tenant:
    """A pool that may use both devices, and has a worker of 8 bytes on this one."""
    held = {one: Workers(1, 0, 1, 8) if one == device else Workers() for one in ("0", "1")}
    return Tenant(name, 1, Need(1, 0, 8), held, name, **resident({"resident": True, "loaded_at": 0.0} | more))


def shared(image: str, **more: Any) -> list[Tenant]:
    """Two idle pools with one template."""
    return [idle(name, image=image, since=at, need=50, **more) for name, at in (("caption", 100.0), ("embed", 200.0))]


DEVICES = {"devices": {"0": 14, "1": 14}, "budget": 1000}


OWN = {"devices": {"pool a": 130}, "budget": 1000}


@pytest.mark.fault(55)
@pytest.mark.parametrize(
    ("tenants", "more", "expected"),
    [
        pytest.param([busy("a"), waiting("b")], {}, (1, 1), id="what fits is granted"),
        pytest.param([idle("a", since=950.0), idle("b", since=900.0), waiting("c")], {}, (1, 0, 0), id="least lately"),
        pytest.param([idle("a"), demand("b", 1, leaving=1), waiting("c")], {}, (1, 0, 0), id="while one leaves"),
        pytest.param([idle("a", 2, loaded_at=NOW - 18), waiting("b", 59.0)], {}, (2, 0), id="loaded just now"),
        pytest.param([busy("a", 2, wanted=2), waiting("b", 59.0)], {}, (2, 0), id="the loaded ones first"),
        pytest.param([busy("a", 2, wanted=2), waiting("b", 60.0)], {}, (1, 0), id="until max_wait, and one suffices"),
        pytest.param([busy("a", 2, wanted=2, starting=True), waiting("b", 500.0)], {}, (2, 0), id="being set up"),
        pytest.param(
            [idle("a", need=20, since=100.0), idle("b", need=100, since=200.0), waiting("c", need=90)],
            {},
            (1, 0, 0),
            id="no more than needed",
        ),
        pytest.param([busy("a", 2, wanted=2), demand("b", wanted=1)], {}, (2, 0), id="min_workers only where it fits"),
        pytest.param(
            [idle("a", need=1, image="x"), busy("b", need=1, image="x"), waiting("c")],
            {"templates": {"x": Template(100)}},
            (1, 1, 0),
            id="a template that others use",
        ),
        pytest.param(
            [*shared("x"), waiting("c", need=125)],
            {"templates": {"x": Template(20)}},
            (0, 0, 0),
            id="all leave for a shared template",
        ),
        *(
            pytest.param(
                [*shared("x", **left), waiting("c", need=need, image="x")],
                {"templates": {"x": Template(10)}},
                (0, 0, now),
                id=f"alone with its template, {need}",
            )
            for need in (120, 500)
            for left, now in (({}, 0), ({"workers": 0, "wanted": 0}, 1))
        ),
        pytest.param([idle("a"), busy("b", used=100)], {}, (0, 1), id="grown: idle ones first"),
        pytest.param([busy("a", used=100), busy("b", used=100, loaded_at=500.0)], {}, (0, 1), id="grown: the eldest"),
        pytest.param([busy("a", used=200)], {}, (1,), id="grown: never the last"),
        pytest.param([idle("a", need=200), demand("b")], {}, (1, 0), id="larger than all, and idle"),
        pytest.param([idle("a", need=200), idle("b", since=950.0)], {}, (0, 1), id="larger than all, beside another"),
        pytest.param([idle("a", need=5)], {"templates": {"a": Template(150)}}, (1,), id="a template larger than all"),
        pytest.param([waiting("a", need=500)], {}, (1,), id="huge, alone"),
        pytest.param([busy("a"), waiting("b", need=500)], {}, (1, 0), id="huge, beside a busy one"),
        pytest.param([idle("a", wanted=0), waiting("b", need=500)], {}, (0, 0), id="huge, beside an idle one"),
        *(
            pytest.param(
                [idle("a", need=10, wanted=2), waiting("b")],
                {"templates": {"a": Template(size)}},
                (0, 0),
                id=f"a template of {size} gives way",
            )
            for size in (130, 150)
        ),
        pytest.param(
            [busy("a", need=None, starting=True), waiting("b", 59.0, need=None)], {}, (1, 0), id="one is measured"
        ),
        pytest.param(
            [busy("a", need=None, starting=True), waiting("b", 60.0, need=None)], {}, (1, 1), id="for max_wait only"
        ),
        pytest.param(
            [demand("a", resident=True, loaded_at=990.0, due=1, oldest_wait=1.0), waiting("b", 500.0)],
            {"budget": 100},
            (1, 0),
            id="a dead worker's place",
        ),
        pytest.param([busy("a", wanted=1, replacing=True)], {}, (2,), id="a successor"),
        pytest.param([busy("a", wanted=9), waiting("b", wanted=2)], OWN, (2, 2), id="a pool's own budget"),
        pytest.param([busy("a", 3, wanted=9), waiting("b")], OWN, (2, 1), id="a pool's own budget, grown"),
        pytest.param([busy("a", used=500)], OWN, (1,), id="a pool's own budget, and the last worker"),
        pytest.param(
            [waiting("a", need=None, alone=True, wanted=3), waiting("b", need=None, alone=True, wanted=3)],
            OWN,
            (1, 1),
            id="each pool's first worker is measured",
        ),
        pytest.param([busy("a", spares=1), waiting("b")], {"budget": 180}, (2, 1), id="spares where they fit"),
        pytest.param([busy("a", spares=1), waiting("b")], {}, (1, 1), id="no spares where not"),
        pytest.param([idle("a", spares=3), demand("b")], {"budget": 200}, (2, 1), id="spares start last"),
        pytest.param([busy("a", 2, spares=1, loaded_at=NOW - 1), waiting("b")], {}, (1, 0), id="young spares leave"),
        pytest.param(
            [idle("a", since=1.0), busy("b", 2, spares=1), waiting("c")], {"budget": 190}, (1, 1, 0), id="spares first"
        ),
        pytest.param(
            [busy("a", 2, spares=1, used=70), idle("b")], {"budget": 190}, (1, 1), id="grown: spares before idle ones"
        ),
        pytest.param(
            [on_device("a", "0", idle_since=2.0), on_device("b", "1", idle_since=1.0), on_device("c", "", due=1)],
            DEVICES,
            (1, 0, 0),
            id="of two devices the one idle for longest",
        ),
        pytest.param(
            [on_device("a", "0", idle_since=2.0), on_device("b", "1", due=1, busy=1), on_device("c", "", due=1)],
            DEVICES,
            (0, 1, 0),
            id="of two devices the one that is idle",
        ),
    ],
)
def test_how_many_workers_each_pool_may_have(
    tenants: list[Tenant], more: dict[str, Any], expected: tuple[int, ...]
) -> None:
    found = decide(*tenants, **more)
    assert tuple(found[one.name].most for one in tenants) == expected
    for one in tenants:
        assert found[one.name].unloaded == (one.staying > 0 and not found[one.name].most)


def test_the_reasons_say_for_whom_one_leaves_and_who_uses_the_memory() -> None:
    gib = 1 << 30
    assert decide(idle("caption", 2), waiting("tag"))["caption"].reason == "makes room for tag"
    found = decide(
        idle("caption", loaded_at=NOW - 18, need=31 * gib // 10), waiting("tag", need=4 * gib), budget=6 * gib
    )
    assert found["tag"].reason == "waits for 4GiB of memory: caption uses 3.1GiB of 6GiB"
    found = decide(busy("caption", 2, wanted=2), demand("tag"))
    assert found["tag"].reason == "needs 60B of memory: caption uses 120B of 130B"
    found = decide(on_device("caption", "1", due=1), on_device("tag", "0", due=1), on_device("embed", ""), **DEVICES)
    assert found["embed"].reason.startswith("needs 8B of memory of device 0: tag uses 8B of 14B")
    found = decide(waiting("caption", 2.0, need=None), waiting("tag", need=None))
    assert found["tag"].reason == "waits until the size of caption has been measured"


def test_a_pool_counts_from_when_it_lost_its_place() -> None:
    """Else a pool with an old backlog would always go before one with a young one."""
    old, young = waiting("old", 500.0, absent_since=NOW - 10), waiting("young", 70.0)
    found = decide(busy("caption", 2, wanted=2), old, young, budget=120)
    assert found["caption"].reason == "makes room for young"


def test_a_template_without_workers_leaves_first_if_it_is_idle_for_longest() -> None:
    pools = idle("caption", 0, wanted=0, since=10.0), idle("embed"), waiting("tag")
    found = decide(*pools, templates={"caption": Template(60)})
    assert [name for name, grant in found.items() if grant.unloaded] == ["caption"]
    [alone] = decide(idle("caption", 0, wanted=0), templates={"caption": Template(150)}).values()
    assert alone.unloaded  # it is larger than the budget


@pytest.mark.parametrize(
    ("pools", "kept", "budget", "unloaded", "without_old_code"),
    [
        # Others leave before old code that is kept does.
        ([demand("tag", wanted=0), idle("caption"), waiting("embed")], {"tag": 20}, 130, ["caption"], []),
        # It goes for a pool that has waited for max_wait and does not fit beside it.
        ([demand("tag", wanted=0), waiting("caption", 60.0, need=65)], {"tag": 20, "embed": 10}, 95, [], []),
        ([demand("tag", wanted=0), waiting("caption", 59.0, need=65)], {"tag": 20, "embed": 10}, 80, [], []),
        ([demand("tag", wanted=0), waiting("caption", 60.0, need=65)], {"tag": 20, "embed": 10}, 80, [], ["tag"]),
        # Also with its worker, but not from its own pool.
        ([idle("tag", need=28), waiting("caption", 60.0, need=128)], {"tag": 100}, 190, ["tag"], ["tag"]),
        ([waiting("tag", 60.0, need=90)], {"tag": 20}, 100, [], []),
    ],
)
def test_old_code_that_is_kept_goes_last(
    pools: list[Tenant], kept: dict[str, int], budget: int, unloaded: list[str], without_old_code: list[str]
) -> None:
    found = decide(*pools, budget=budget, templates={name: Template(used, kept=used) for name, used in kept.items()})
    assert [name for name, grant in found.items() if grant.unloaded] == unloaded
    assert [name for name, grant in found.items() if grant.without_old_code] == without_old_code


@pytest.mark.parametrize("patient", [False, True])
def test_a_predecessor_leaves_first_if_there_is_no_room_but_not_for_code_that_has_failed(patient: bool) -> None:
    found = decide(busy("caption", replacing=True, patient=patient), budget=100)
    assert found["caption"] == Grant({"": 1}, crowded=not patient)


def test_each_worker_goes_to_a_device_with_room() -> None:
    crews = {"0": Workers(1, 0, 1, 8), "1": Workers()}
    tag = Tenant("tag", 3, Need(1, 0, 8), crews, **resident({"due": 9, "resident": True, "busy": 1}))

    found = decide(tag, devices={"0": 14, "1": 20}, budget=1000)["tag"]

    assert (found.keep, found.start) == ({"0": 1, "1": 0}, {"1": 2})


# Courses of events


@dataclass
class Worker:
    ready_at: float
    size: int
    job_until: float = 0.0
    leaving: bool = False
    born: float = 0.0


@dataclass
class Sim:
    """One pool in a simulation of whole seconds."""

    name: str
    need: int
    template: int
    low: int
    high: int
    seconds: int  # of a job
    arrivals: list[int]
    growth: int = 0  # of a worker by its first job; what is measured is expected of the next ones
    workers: list[Worker] = field(default_factory=list)
    due: list[float] = field(default_factory=list)
    residency: Residency = field(default_factory=Residency)
    template_loaded: bool = False
    unloaded: bool = False
    loads: list[float] = field(default_factory=list)
    hungry_since: float | None = None  # jobs wait, and it has no worker
    hunger: float = 0.0

    def busy(self, now: float) -> int:
        return sum(worker.job_until > now for worker in self.workers)

    def wanted(self, now: float) -> int:
        return min(self.high, max(self.low, self.busy(now) + len(self.due)))

    def live(self, now: float) -> None:
        """What happens in this second without a decision."""
        self.due += [now] * self.arrivals.count(int(now))
        self.workers = [w for w in self.workers if not (w.leaving and w.job_until <= now)]
        for worker in self.workers:
            if self.due and not worker.leaving and worker.ready_at <= now and worker.job_until <= now:
                self.due.pop(0)
                worker.job_until = now + self.seconds
                self.need, self.growth = self.need + self.growth, 0
                worker.size = self.need
        if self.unloaded and not self.workers:
            self.template_loaded = False
        hungry = self.due and all(worker.leaving for worker in self.workers)
        self.hungry_since = (now if self.hungry_since is None else self.hungry_since) if hungry else None
        self.hunger = max(self.hunger, now - (now if self.hungry_since is None else self.hungry_since))

    @property
    def used(self) -> int:
        """A worker that has run no job counts as it is expected."""
        return sum(max(worker.size, self.need) for worker in self.workers)

    def demand(self, now: float) -> Tenant:
        leaving = sum(worker.leaving for worker in self.workers)
        is_idle = not (self.due or self.busy(now))
        ready = any(worker.ready_at <= now and not worker.leaving for worker in self.workers)
        self.residency = self.residency.seen(
            now, wanted=self.wanted(now), staying=len(self.workers) - leaving, ready=ready, idle=is_idle
        )
        return Tenant(
            self.name,
            self.wanted(now),
            Need(self.need, self.template),
            {"": Workers(len(self.workers) - leaving, leaving, self.used)},
            self.name,
            due=len(self.due),
            busy=self.busy(now),
            oldest_wait=now - self.due[0] if self.due else 0.0,
            residency=self.residency,
        )

    def obey(self, grant: Grant, now: float) -> None:
        before = self.residency
        self.residency = before.decided(now, grant)
        self.unloaded = grant.unloaded
        most = min(self.wanted(now), grant.most) if self.wanted(now) else 0
        staying = sorted((w for w in self.workers if not w.leaving), key=lambda w: (w.job_until > now, -w.born))
        forced = len(staying) - grant.keep[""]
        for place, worker in enumerate(staying):
            if place < forced or (worker.job_until <= now and place < len(staying) - most):
                worker.leaving = True
        starts = min(sum(grant.start.values()), max(0, most - sum(not w.leaving for w in self.workers)))
        if starts and not self.workers and not (self.template_loaded and not self.unloaded):
            self.loads.append(now)
        for _ in range(starts):
            self.template_loaded = True
            self.workers.append(Worker(now + 2, self.need, born=now))


def used(pools: list[Sim]) -> int:
    return sum(one.used + one.template * one.template_loaded for one in pools)


@some.composite
def worlds(draw: some.DrawFn, *, tight: bool = False) -> tuple[list[Sim], int, Patience]:
    """In a `tight` one, workers may grow, and some may need more than the whole budget."""
    count = draw(some.integers(1 if tight else 2, 4))
    pools = []
    for number in range(count):
        low = draw(some.integers(0, 1))
        burst = draw(some.lists(some.tuples(some.integers(0, 100), some.integers(1, 12)), max_size=4))
        pools.append(
            Sim(
                name=f"p{number}",
                need=draw(some.integers(10, 100)),
                template=draw(some.sampled_from([0, 0, 30])),
                low=low,
                high=draw(some.integers(1, 3)),
                seconds=draw(some.integers(1, 8)),
                arrivals=[at for at, jobs in burst for _ in range(jobs)],
                growth=draw(some.sampled_from([0, 5, 60])) if tight else 0,
            )
        )
    most = max(one.need + one.template for one in pools)
    least = most // 3 if tight else most
    patience = Patience(draw(some.sampled_from([1.0, 10.0, 30.0])), draw(some.sampled_from([5.0, 40.0])))
    return pools, draw(some.integers(least, 2 * most)), patience


def run(pools: list[Sim], budget: int, patience: Patience, *, tight: bool = False) -> None:
    """Until nothing has changed for long. Nobody may starve, and nobody is loaded twice within its residency, unless
    somebody has grown, which happens once.
    """
    quiet_since, before, growing = 0, {}, sum(one.growth > 0 for one in pools)
    for second in range(1500):
        now = float(second)
        for pool in pools:
            pool.live(now)
        templates = {one.name: Template(one.template * one.template_loaded) for one in pools}
        grants = divide([one.demand(now) for one in pools], {MACHINE: budget}, templates, patience, now)
        for pool in pools:
            pool.obey(grants[pool.name], now)
        assert tight or used(pools) <= budget
        state = {one.name: len(one.workers) for one in pools}
        active = any(one.due or one.busy(now) or any(at >= second for at in one.arrivals) for one in pools)
        if active or state != before:
            quiet_since = second
        before = state
        if not active and second - quiet_since > 2 * patience.min_residency + 20:
            break
    else:
        pytest.fail("it never becomes quiet")
    assert used(pools) <= budget or sum(len(one.workers) for one in pools) == 1
    turn = patience.min_residency + max(one.seconds for one in pools) + 12  # with the start and the end of a worker
    for pool in pools:
        assert not pool.due
        assert pool.hunger <= max(patience) + (len(pools) - 1) * turn
        gaps = [later - earlier for earlier, later in pairwise(pool.loads)]
        if pool.low:  # one with min_workers = 0 leaves by itself
            assert sum(gap < patience.min_residency for gap in gaps) <= growing


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_never_over_budget_nobody_starves_and_nobody_is_loaded_twice_within_its_residency(
    world: tuple[list[Sim], int, Patience],
) -> None:
    run(*world)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(tight=True))
def test_what_does_not_fit_into_the_budget_is_not_loaded_again_and_again(
    world: tuple[list[Sim], int, Patience],
) -> None:
    run(*world, tight=True)
