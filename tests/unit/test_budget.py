"""How pools share memory: single decisions, and what holds in every course of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from supervisor.domain.division import divide
from supervisor.domain.tenants import (
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
    """A pool whose workers use `need` each; `leaving` of them have been told to leave."""
    leaving, image = more.pop("leaving", 0), more.pop("image", name)
    there = Workers(workers - leaving, leaving, workers * (more.pop("used", None) or need or 0))
    needs = Need(need or 0, more.pop("template", 0))
    return Tenant(name, wanted, None if need is None else needs, more.pop("held", {"": there}), image, **resident(more))


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


def sizes(grants: Mapping[str, Grant]) -> dict[str, int]:
    return {name: grant.most for name, grant in grants.items()}


def test_what_fits_is_granted_without_a_reason() -> None:
    found = decide(busy("caption", wanted=1), waiting("tag"))

    assert sizes(found) == {"caption": 1, "tag": 1}
    assert {grant.reason for grant in found.values()} == {""}


def test_the_pool_idle_for_longest_is_unloaded_and_nothing_starts_before_its_memory_is_free() -> None:
    found = decide(idle("caption", since=950.0), idle("embed", since=900.0), waiting("tag"))

    assert sizes(found) == {"caption": 1, "embed": 0, "tag": 0}
    assert found["embed"].unloaded
    assert found["embed"].reason == "makes room for tag"
    assert not found["caption"].unloaded


def test_while_it_leaves_nobody_else_is_unloaded() -> None:
    found = decide(idle("caption"), demand("embed", 1, leaving=1), waiting("tag"))

    assert sizes(found) == {"caption": 1, "embed": 0, "tag": 0}


def test_a_pool_that_was_loaded_just_now_stays_and_the_reason_says_who_uses_the_memory() -> None:
    gib = 1 << 30
    found = decide(
        idle("caption", loaded_at=NOW - 18, need=31 * gib // 10), waiting("tag", need=4 * gib), budget=6 * gib
    )

    assert sizes(found) == {"caption": 1, "tag": 0}
    assert found["tag"].reason == "waits for 4GiB of memory: caption uses 3.1GiB of 6GiB"


def test_a_loaded_pool_s_jobs_go_first_until_another_has_waited_for_max_wait() -> None:
    held = decide(busy("caption", 2, wanted=2), waiting("tag", 59.0))
    assert sizes(held) == {"caption": 2, "tag": 0}

    freed = decide(busy("caption", 2, wanted=2), waiting("tag", 60.0))
    assert sizes(freed) == {"caption": 1, "tag": 0}
    assert not freed["caption"].unloaded  # one worker fewer suffices


def test_a_pool_that_is_being_set_up_stays_until_it_has_worked() -> None:
    found = decide(busy("caption", 2, wanted=2, starting=True), waiting("tag", 500.0))

    assert sizes(found) == {"caption": 2, "tag": 0}


def test_only_as_much_leaves_as_is_needed() -> None:
    found = decide(idle("small", need=20, since=100.0), idle("large", need=100, since=200.0), waiting("tag", need=90))

    assert sizes(found) == {"small": 1, "large": 0, "tag": 0}


def test_a_pool_counts_from_when_it_lost_its_place() -> None:
    """Else a pool with an old backlog would always go before one with a young one."""
    found = decide(
        busy("caption", 2, wanted=2),
        waiting("old", 500.0, absent_since=NOW - 10),
        waiting("young", 70.0),
        budget=120,
    )

    assert found["caption"].reason == "makes room for young"


def test_a_pool_without_jobs_keeps_its_minimum_only_where_it_fits() -> None:
    found = decide(busy("caption", 2, wanted=2), demand("tag", wanted=1))

    assert sizes(found) == {"caption": 2, "tag": 0}
    assert found["tag"].reason.startswith("needs 60B of memory: caption uses")


def test_a_template_without_workers_leaves_first_if_it_is_idle_for_longest() -> None:
    found = decide(
        idle("caption", 0, wanted=0, since=10.0),
        idle("embed"),
        waiting("tag"),
        templates={"caption": Template(60)},
    )

    assert found["caption"].unloaded
    assert sizes(found) == {"caption": 0, "embed": 1, "tag": 0}


def test_a_template_that_others_use_frees_nothing() -> None:
    found = decide(
        idle("caption", need=1, image="both"),
        busy("embed", need=1, image="both"),
        waiting("tag", need=60),
        templates={"both": Template(100)},
    )

    assert sizes(found) == {"caption": 1, "embed": 1, "tag": 0}


def test_of_pools_that_share_a_template_all_leave_if_their_template_is_needed_too() -> None:
    shared = [idle(name, need=50, image="both", since=since) for name, since in (("caption", 100.0), ("embed", 200.0))]
    found = decide(*shared, waiting("tag", need=125), templates={"both": Template(20)})

    assert sizes(found) == {"caption": 0, "embed": 0, "tag": 0}
    assert found["caption"].unloaded
    assert found["embed"].unloaded


@pytest.mark.parametrize("need", [120, 125, 500])
def test_what_needs_all_that_its_template_leaves_runs_alone(need: int) -> None:
    """Others of that template leave, and the template stays."""
    shared = [idle(name, need=50, image="all", since=since) for name, since in (("caption", 100.0), ("embed", 200.0))]
    found = decide(*shared, waiting("tag", need=need, image="all"), templates={"all": Template(10)})
    assert sizes(found) == {"caption": 0, "embed": 0, "tag": 0}

    left = [idle(name, 0, wanted=0, need=50, image="all") for name in ("caption", "embed")]
    found = decide(*left, waiting("tag", need=need, image="all"), templates={"all": Template(10)})
    assert sizes(found) == {"caption": 0, "embed": 0, "tag": 1}


def test_workers_that_have_grown_leave_idle_ones_first_and_the_last_one_never() -> None:
    grown = decide(idle("caption"), busy("tag", used=100))
    assert sizes(grown) == {"caption": 0, "tag": 1}

    both = decide(busy("caption", used=100), busy("tag", used=100, loaded_at=500.0))
    assert sizes(both) == {"caption": 0, "tag": 1}

    alone = decide(busy("caption", used=200))
    assert sizes(alone) == {"caption": 1}


def test_what_needs_more_than_everything_runs_alone() -> None:
    assert sizes(decide(waiting("huge", need=500))) == {"huge": 1}
    assert sizes(decide(busy("tag", wanted=1), waiting("huge", need=500))) == {"tag": 1, "huge": 0}
    assert sizes(decide(idle("tag", wanted=0), waiting("huge", need=500))) == {"tag": 0, "huge": 0}


def test_sizes_that_are_not_known_are_measured_one_after_another() -> None:
    first = decide(waiting("caption", 2.0, need=None, wanted=2), waiting("tag", need=None))
    assert sizes(first) == {"caption": 1, "tag": 0}
    assert first["tag"].reason == "waits until the size of caption has been measured"

    assert sizes(decide(busy("caption", need=None, wanted=2), waiting("tag", need=None))) == {"caption": 1, "tag": 0}


def test_a_set_up_that_never_ends_holds_up_the_measuring_of_others_for_max_wait_only() -> None:
    hanging = busy("caption", need=None, starting=True)
    assert sizes(decide(hanging, waiting("tag", 59.0, need=None)))["tag"] == 0
    assert sizes(decide(hanging, waiting("tag", 60.0, need=None)))["tag"] == 1


def test_what_is_being_measured_counts_as_the_largest_of_the_others() -> None:
    found = decide(busy("caption"), busy("tag", need=None, due=0, busy=0), demand("embed"))

    assert sizes(found) == {"caption": 1, "tag": 1, "embed": 0}


def test_it_counts_as_the_largest_also_when_it_has_loaded_a_part_of_its_model() -> None:
    there = {"": Workers(1, 0, 5)}
    found = decide(busy("caption"), busy("tag", need=None, due=0, busy=0, held=there), demand("embed"))

    assert sizes(found) == {"caption": 1, "tag": 1, "embed": 0}


def test_a_dead_worker_s_place_is_kept() -> None:
    found = decide(
        demand("caption", 0, resident=True, loaded_at=990.0, due=1, oldest_wait=1.0),
        waiting("tag", 500.0),
        budget=100,
    )

    assert sizes(found) == {"caption": 1, "tag": 0}


def test_others_leave_before_old_code_that_is_kept_does() -> None:
    kept = {"tag": Template(20, kept=20)}

    found = decide(demand("tag", wanted=0), idle("caption"), waiting("embed"), templates=kept)

    assert [name for name, grant in found.items() if grant.unloaded] == ["caption"]
    assert not any(grant.without_old_code for grant in found.values())


def test_old_code_goes_for_a_pool_that_has_waited_for_max_wait_and_does_not_fit_beside_it() -> None:
    kept = {"tag": Template(20, kept=20), "embed": Template(10, kept=10)}
    pools = demand("tag", wanted=0), demand("embed", wanted=0)

    def gone(seconds: float, budget: int) -> list[str]:
        found = decide(*pools, waiting("caption", seconds, need=65), budget=budget, templates=kept)
        return [name for name, grant in found.items() if grant.without_old_code]

    assert (gone(60.0, 95), gone(59.0, 80), gone(60.0, 80)) == ([], [], ["tag"])


def test_old_code_with_workers_stays_and_that_of_the_pool_itself_too() -> None:
    kept = {"tag": Template(20, kept=20)}

    assert not any(
        one.without_old_code for one in decide(idle("tag"), waiting("caption", need=90), templates=kept).values()
    )
    [own] = decide(waiting("tag", need=90), budget=100, templates=kept).values()
    assert (own.most, own.without_old_code) == (1, False)


def test_a_worker_with_old_code_leaves_with_it() -> None:
    kept = {"embed": Template(100, kept=100), "tag": Template(13, kept=13)}
    pools = idle("embed", need=28), demand("tag", wanted=0), waiting("caption", 60.0, need=128)

    found = decide(*pools, budget=190, templates=kept)

    assert [name for name, grant in found.items() if grant.without_old_code] == ["embed"]
    assert found["embed"].unloaded


@pytest.mark.parametrize("need", [10, None])
def test_a_template_that_is_loading_counts_as_it_is_expected(need: int | None) -> None:
    """Not only in the decision that starts it. One that is not known is expected to be as large as the largest."""
    loading = {"tag": Template(loading=True)}
    known = idle("caption", 0, wanted=1, need=10, template=60)
    tag = waiting("tag", need=need, template=60, held={"": Workers(1)}, starting=True)

    found = decide(tag, known, budget=100, templates=loading)

    assert sizes(found) == {"tag": 1, "caption": 0}


def test_a_template_as_large_as_the_budget_lets_others_have_their_turn() -> None:
    for size in (130, 150):
        large = {"caption": Template(size)}
        found = decide(idle("caption", need=10, wanted=2), waiting("tag"), templates=large)
        assert found["caption"].unloaded
        assert sizes(found) == {"caption": 0, "tag": 0}


def test_a_successor_starts_first_if_there_is_room_and_else_after_its_predecessor() -> None:
    assert decide(busy("caption", wanted=1, replacing=True))["caption"].most == 2
    assert decide(busy("caption", wanted=1, replacing=True), budget=100)["caption"] == Grant({"": 1}, crowded=True)


def test_spares_start_where_everybody_else_has_a_place_and_take_nobody_s() -> None:
    both = (busy("caption", wanted=1, spares=1), waiting("tag"))

    assert sizes(decide(*both, budget=180)) == {"caption": 2, "tag": 1}
    assert sizes(decide(*both, budget=130)) == {"caption": 1, "tag": 1}
    assert sizes(decide(busy("caption", wanted=1, spares=1), idle("tag"), budget=130)) == {"caption": 1, "tag": 1}


def on_devices(name: str, workers: dict[str, Workers], **more: Any) -> Tenant:
    return Tenant(name, 1, Need(1, 0, 8), workers, name, **resident(more))


def test_each_worker_goes_to_a_device_with_room() -> None:
    crews = {"0": Workers(1, 0, 1, 8), "1": Workers()}
    tag = Tenant("tag", 3, Need(1, 0, 8), crews, **resident({"due": 9, "resident": True, "busy": 1}))

    found = decide(tag, devices={"0": 14, "1": 20}, budget=1000)["tag"]

    assert (found.keep, found.start) == ({"0": 1, "1": 0}, {"1": 2})


def test_only_workers_of_a_device_make_room_on_it() -> None:
    def on(device: str) -> dict[str, Workers]:
        return {name: Workers(int(name == device), 0, int(name == device), 8 * (name == device)) for name in ("0", "1")}

    more: dict[str, Any] = {"resident": True, "loaded_at": 0.0}
    first = on_devices("first", on("0"), idle_since=1.0, **more)
    second = on_devices("second", on("1"), idle_since=2.0, **more)
    tag = on_devices("tag", {"1": Workers()}, due=1, oldest_wait=1.0)

    found = decide(first, second, tag, devices={"0": 14, "1": 14}, budget=1000)

    assert sizes(found) == {"first": 1, "second": 0, "tag": 0}
    assert found["tag"].reason.startswith("waits for 8B of memory of device 1: second uses")


def test_of_two_full_devices_the_one_whose_pool_is_idle_for_longest_is_freed() -> None:
    def on(device: str) -> dict[str, Workers]:
        return {name: Workers(int(name == device), 0, int(name == device), 8 * (name == device)) for name in ("0", "1")}

    more: dict[str, Any] = {"resident": True, "loaded_at": 0.0}
    lately = on_devices("lately", on("0"), idle_since=2.0, **more)
    before = on_devices("before", on("1"), idle_since=1.0, **more)
    busy = on_devices("busy", on("1"), due=1, busy=1, **more)
    tag = on_devices("tag", on(""), due=1, oldest_wait=1.0)
    devices = {"0": 14, "1": 14}

    assert sizes(decide(lately, before, tag, devices=devices, budget=1000)) == {"lately": 1, "before": 0, "tag": 0}
    assert sizes(decide(lately, busy, tag, devices=devices, budget=1000)) == {"lately": 0, "busy": 1, "tag": 0}


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


def test_an_idle_worker_larger_than_the_budget_stays() -> None:
    assert sizes(decide(idle("caption", need=200), demand("tag", need=60))) == {"caption": 1, "tag": 0}
    assert sizes(decide(idle("caption", need=200), idle("tag", since=950.0))) == {"caption": 0, "tag": 1}
    large = {"caption": Template(150)}
    assert sizes(decide(idle("caption", need=5), templates=large)) == {"caption": 1}


def test_spares_start_last_and_only_where_they_fit() -> None:
    found = decide(idle("caption", spares=3), demand("tag", wanted=1), budget=200)

    assert sizes(found) == {"caption": 2, "tag": 1}


def test_a_spare_leaves_for_a_pool_that_waits_however_young_its_own_is() -> None:
    found = decide(busy("caption", 2, spares=1, loaded_at=NOW - 1), waiting("tag"))

    assert sizes(found) == {"caption": 1, "tag": 0}
    assert not found["caption"].unloaded


def test_a_spare_leaves_before_an_idle_pool() -> None:
    found = decide(idle("embed", since=1.0), busy("caption", 2, spares=1), waiting("tag"), budget=190)

    assert sizes(found) == {"embed": 1, "caption": 1, "tag": 0}


def test_what_has_grown_over_the_budget_loses_its_spare_first() -> None:
    found = decide(busy("caption", 2, spares=1, used=70), idle("tag"), budget=190)

    assert sizes(found) == {"caption": 1, "tag": 1}


def test_no_worker_leaves_for_a_successor_whose_code_has_failed() -> None:
    crowded = decide(idle("tag", replacing=True), budget=100)
    assert crowded["tag"].crowded

    patient = decide(idle("tag", replacing=True, patient=True), budget=100)
    assert not patient["tag"].crowded
    assert sizes(patient) == {"tag": 1}
