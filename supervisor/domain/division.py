"""How many workers each pool may have of the memory that all share, and who must leave.

`divide` gives memory in this order: first workers of pools with waiting jobs, the longest waiting first; more workers
for pools that have some; workers without a job; spares. A first worker may take the place of spares and of idle
workers, those idle for longest first, and once its pool has waited for `max_wait`, also that of workers with jobs. But
for spares, nobody is unloaded within `min_residency` of its load, so no pool is loaded more often than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.domain.budget import Budgets, Bytes, Step, name_of, size_text
from supervisor.domain.tenants import MACHINE, Grant, Patience, Template, Tenant
from supervisor.domain.text import human

Victims = Sequence[tuple[Tenant, int]]
"""Who may leave, in this order, and how many workers of each."""


def divide(
    tenants: Sequence[Tenant],
    sizes: Mapping[str, int],
    templates: Mapping[str, Template],
    patience: Patience,
    now: float,
) -> dict[str, Grant]:
    """What each pool gets of budgets of these sizes in bytes."""
    budgets = Budgets(sizes, tenants, templates)
    measuring = next((one.name for one in tenants if one.need is None and one.grant.kept), "")
    division = _Division(tenants, budgets, patience, now, measuring)
    division.shed()
    first = [one for one in tenants if one.needs_first]
    for tenant in sorted(first, key=lambda one: (not one.residency.resident, -one.waited(now))):
        division.load(tenant)
    due = sorted((one for one in tenants if one.work.due), key=lambda one: -one.work.oldest_wait)
    _in_turn((one for one in due if one.grant.most), division.grow)
    _in_turn((one for one in tenants if not one.work.due), division.fill)
    for tenant in tenants:
        division.replace(tenant)
    _in_turn((one for one in tenants if one.grant.most and not one.renewal.replacing), division.spare)
    return {tenant.name: tenant.grant for tenant in tenants}


def _in_turn(tenants: Iterable[Tenant], more: Callable[[Tenant], bool]) -> None:
    """One worker more for each, as long as it gets one."""
    lacking = list(tenants)
    while lacking:
        lacking = [one for one in lacking if more(one)]


@dataclass(slots=True)
class _Division:
    """One decision. `measuring` is a pool whose size is not known yet: others like it wait."""

    tenants: Sequence[Tenant]
    budgets: Budgets
    patience: Patience
    now: float
    measuring: str

    # Who leaves

    def shed(self) -> None:
        """Workers have grown over a budget: spares leave; idle ones; busy ones, of several pools the latest."""
        for name, budget in self.budgets.items():
            while budget.left < 0 and (step := self._to_shed(name)) is not None:
                self.budgets.leave(step, f"no {name_of(name)} is left: {self.budgets.users(name)}")

    def _to_shed(self, name: str) -> Step | None:
        """The last worker stays, however large it is: its successor would be no smaller."""
        kept = {one: one.grant.kept if name == MACHINE else one.grant.keep.get(name, 0) for one in self.tenants}
        spares = [one for one in self.tenants if one.surplus]
        idle = [one for one in self._least_recently_used() if one.idle]
        latest = sorted(self.tenants, key=lambda one: -(one.residency.loaded_at or 0.0))
        largest = sorted(latest, key=lambda one: (one.grant.kept == 1, -one.grant.kept))
        able = [one for one in (*spares, *idle, *largest) if not kept[one] or sum(kept.values()) > 1]
        return next((step for one in able for step in self.budgets.steps(one, [name])), None)

    def _least_recently_used(self) -> list[Tenant]:
        return sorted(self.tenants, key=lambda one: one.residency.idle_since or 0.0)

    def _victims(self, claimant: Tenant, *, starving: bool) -> Victims:
        """Spares; idle pools, the longest idle first; if it is starving, also others, the first loaded first."""
        others = [one for one in self._least_recently_used() if one is not claimant]
        may_leave = [one for one in others if not one.residency.starting and self.now >= self._stays_until(one)]
        busy = sorted((one for one in may_leave if not one.idle), key=lambda one: one.residency.loaded_at or 0.0)
        whole = [*(one for one in may_leave if one.idle), *(busy if starving else ())]
        return [*((one, one.surplus) for one in others if one.surplus), *((one, one.grant.kept + 1) for one in whole)]

    def _stays_until(self, tenant: Tenant) -> float:
        loaded_at = tenant.residency.loaded_at
        return -math.inf if loaded_at is None else loaded_at + self.patience.min_residency

    # Who gets

    def load(self, tenant: Tenant) -> None:
        """The first worker of a pool that has none."""
        starving = tenant.waited(self.now) >= self.patience.max_wait
        if not starving and self._waits_for_its_size(tenant):
            return
        resident = tenant.residency.resident
        may_claim = resident or self.now >= self._stays_until(tenant)
        victims = self._victims(tenant, starving=starving) if may_claim else []
        self._claim(tenant, victims, hold=starving or resident)

    def grow(self, tenant: Tenant) -> bool:
        """One more worker of a pool with waiting jobs."""
        return self._lacks(tenant) and self._claim(tenant, self._victims(tenant, starving=False))

    def fill(self, tenant: Tenant) -> bool:
        """One more worker without a job, where there is room."""
        return self._lacks(tenant) and self._claim(tenant, [])

    def replace(self, tenant: Tenant) -> None:
        """A successor starts before its predecessor leaves, if there is room for both."""
        grant, renewal = tenant.grant, tenant.renewal
        if renewal.replacing and grant.kept and grant.kept == grant.most:
            grant.crowded = not (self.budgets.start(tenant, *self._next(tenant)) or renewal.patient)

    def spare(self, tenant: Tenant) -> bool:
        """One more worker beyond those that run jobs, in what is left."""
        lacks = tenant.need is not None and tenant.grant.most < tenant.wanted + tenant.spares
        return lacks and self.budgets.start(tenant, *self._next(tenant))

    def _lacks(self, tenant: Tenant) -> bool:
        return tenant.grant.most < tenant.wanted and not self._waits_for_its_size(tenant)

    def _waits_for_its_size(self, tenant: Tenant) -> bool:
        waits = tenant.need is None and bool(self.measuring)
        if waits:
            tenant.grant.reason = tenant.grant.reason or f"waits until the size of {self.measuring} has been measured"
        return waits

    def _claim(self, tenant: Tenant, victims: Victims, *, hold: bool = False) -> bool:
        """Start a worker. If there is no room yet, let `victims` leave for it; nobody else gets what they free, nor, if
        it is to `hold` a place, anything else. Returns whether it can start now.
        """
        device, cost = self._next(tenant)
        if self.budgets.start(tenant, device, cost):
            self.measuring = tenant.name if tenant.need is None else self.measuring
            return True
        outdated = set() if tenant.grant.most else self.budgets.old_code_in_the_way(tenant, cost)
        room = self.budgets.make_room(tenant, cost, victims, outdated)
        tenant.grant.reason = tenant.grant.reason or self._why_waits(tenant, cost)
        if room or hold:
            self.budgets.hold(cost)
        return False

    def _next(self, tenant: Tenant) -> tuple[str, Bytes]:
        """The device for one more worker, and its bytes: where there is room, else where the first one can leave, and
        of those the least used.
        """
        costs = self.budgets.costs(tenant)
        if len(costs) == 1:
            return next(iter(costs.items()))
        victims = self._victims(tenant, starving=True)

        def rank(device: str) -> tuple[bool, int, int]:
            there = (place for place, (one, _) in enumerate(victims, 1) if one.grant.keep.get(device))
            first = next(there, len(victims) + 1) if self.budgets.short(costs[device]) else 0
            return bool(self.budgets.short_now(costs[device])), first, tenant.grant.most_on(device)

        device = min(costs, key=rank)
        return device, costs[device]

    def _why_waits(self, tenant: Tenant, cost: Bytes) -> str:
        name = min(self.budgets.short_now(cost), default=MACHINE)
        budget, users = self.budgets[name], self.budgets.users(name)
        needed = f"{size_text(budget.capped(cost[name]))} of {name_of(name)}: {users}"
        if not tenant.work.due:
            return f"needs {needed}"
        if budget.leaving:
            return f"waits for {needed}; a part of that is being freed"
        others = [one for one in self.tenants if one is not tenant and next(self.budgets.steps(one, [name]), None)]
        if not others or tenant.grant.most:
            return f"waits for {needed}"
        impatient = self.now + self.patience.max_wait - tenant.waited(self.now)
        first = min(max(self._stays_until(one), self.now if one.idle else impatient) for one in others)
        left = max(first, self._stays_until(tenant)) - self.now
        who = "" if sum(one.used(name) > 0 for one in self.tenants) == 1 else "one of them "
        return f"waits for {needed} and {who}may be stopped in {human(max(0, math.ceil(left)))}"
