"""How many workers each pool may have of the memory that all share, and who must leave.

`divide` gives memory in this order: first workers of pools with waiting jobs, the longest waiting first; more workers
for pools that have some; workers without a job; spares. A first worker may take the place of spares and of idle
workers, those idle for longest first, and once its pool has waited for `max_wait`, also that of workers with jobs. But
for spares, nobody is unloaded within `min_residency` of its load, so no pool is loaded more often than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from supervisor.domain.budget import (
    MACHINE,
    Budget,
    Budgets,
    Bytes,
    CodeTrial,
    Grant,
    Need,
    Patience,
    Template,
    Tenant,
    by_budget,
    name_of,
    of_one,
    share_text,
    size_text,
)
from supervisor.domain.text import human


def divide(
    tenants: Sequence[Tenant],
    sizes: Mapping[str, int],
    templates: Mapping[str, Template],
    patience: Patience,
    now: float,
    *,
    pressed: bool = False,
    relieve: bool = False,
) -> dict[str, Grant]:
    """What each pool gets of budgets of these sizes in bytes.

    `pressed`: the kernel is short of memory, so only pools without workers get some; `relieve`: one idle worker leaves.
    """
    division = _Division(tenants, sizes, templates, patience, now)
    if relieve:
        division.relieve()
    division.shed()
    for tenant in sorted((one for one in tenants if one.needs_first), key=division.urgency):
        division.load(tenant)
    if not pressed:
        due = sorted((one for one in tenants if one.work.due), key=lambda one: -one.work.oldest_wait)
        _in_turn((one for one in due if one.grant.most), division.grow)
        _in_turn((one for one in tenants if not one.work.due), division.fill)
        for tenant in tenants:
            division.replace(tenant)
        _in_turn((one for one in tenants if one.grant.most and not one.renewal.replacing), division.spare)
    division.try_out()
    return {tenant.name: tenant.grant for tenant in tenants}


def _in_turn(tenants: Iterable[Tenant], more: Callable[[Tenant], bool]) -> None:
    """One worker more for each, as long as it gets one."""
    lacking = list(tenants)
    while lacking:
        lacking = [one for one in lacking if more(one)]


class _Step(NamedTuple):
    """One worker fewer of a pool on a device, or a template without workers (None), and the bytes that this frees."""

    tenant: Tenant
    device: str | None
    frees: Bytes
    ends_template: bool


class _Division:
    """One decision: it fills the tenants' grants."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        sizes: Mapping[str, int],
        templates: Mapping[str, Template],
        patience: Patience,
        now: float,
    ) -> None:
        known = [one.need for one in tenants if one.need is not None]
        self._guess = Need(*(max((need[part] for need in known), default=0) for part in range(len(Need._fields))))
        self._tenants, self._patience, self._now = tenants, patience, now
        self._sharing: dict[str, list[Tenant]] = {}  # a template, by image
        self._budgets = Budgets({name: Budget(size) for name, size in sizes.items()})
        for tenant in tenants:
            tenant.grant = Grant({device: there.staying for device, there in tenant.workers.items()})
            self._sharing.setdefault(tenant.image, []).append(tenant)
            if tenant.need is None:  # it counts as the largest of the others
                tenant.workers = {name: there.at_least(self._guess) for name, there in tenant.workers.items()}
            for device, there in tenant.workers.items():
                self._budgets.take(by_budget(device, there.used, there.on_device))
                self._budgets.expect(of_one(device, there), there.leaving)
        self._templates = {image: self._expected(image, one) for image, one in templates.items()}
        for template in self._templates.values():
            self._budgets.take({MACHINE: template.used})
            self._budgets.expect({MACHINE: template.used}, int(template.ending))
        self._measuring = next((one.name for one in tenants if one.need is None and one.grant.kept), "")
        self._ended: set[str] = set()  # images whose templates end with workers that have been told to leave
        self._claimed = ""  # the image of the pool for which room is made: its template stays
        self._outdated: set[str] = set()  # images whose old code may end for that pool

    def _expected(self, image: str, template: Template) -> Template:
        """With what one that is loading will use."""
        if not template.loading:
            return template
        needs = [self._need(one).template for one in self._sharing.get(image, ())]
        return template._replace(used=template.used + max(needs, default=0))

    def _need(self, tenant: Tenant) -> Need:
        return tenant.need or self._guess

    def _template(self, tenant: Tenant) -> Template:
        return self._templates.get(tenant.image, Template())

    # Who gives

    def relieve(self) -> None:
        """The youngest idle worker leaves."""
        found = [one for one in self._tenants if one.work.youngest_idle is not None and one.grant.kept]
        if found:
            tenant = max(found, key=lambda one: one.work.youngest_idle or 0.0)
            device = max(tenant.grant.keep, key=lambda name: tenant.grant.keep[name])
            self._apply(self._step(tenant, device), "this machine is short of memory")

    def shed(self) -> None:
        """Workers have grown over the budget: spares leave; idle ones; busy ones, of several pools the latest. The last
        worker stays, however large it is: its successor would be no smaller.
        """
        for name, budget in self._budgets.items():
            while budget.left < 0 and (step := next(self._sheddable(name), None)) is not None:
                self._apply(step, f"no {name_of(name)} is left: {self._users(name)}")

    def _sheddable(self, name: str) -> Iterator[_Step]:
        kept = {one.name: one.grant.kept if name == MACHINE else one.grant.keep.get(name, 0) for one in self._tenants}
        busy = sorted(
            self._tenants, key=lambda one: (one.grant.kept == 1, -one.grant.kept, -(one.residency.loaded_at or 0.0))
        )
        spares = [one for one in self._tenants if one.surplus]
        for tenant in (*spares, *filter(lambda one: one.idle, self._least_recently_used()), *busy):
            if not kept[tenant.name] or sum(kept.values()) > 1:
                yield from self._steps(tenant, [name])

    def _least_recently_used(self) -> list[Tenant]:
        return sorted(self._tenants, key=lambda one: one.residency.idle_since or 0.0)

    def _victims(self, claimant: Tenant, *, starving: bool) -> list[tuple[Tenant, int]]:
        """Who may leave for it, in this order, and how many workers: spares; idle pools, the longest idle first; if it
        is starving, also others, the first loaded first.
        """
        others = [one for one in self._least_recently_used() if one is not claimant]
        may_leave = [one for one in others if not one.residency.starting and self._now >= self._stays_until(one)]
        busy = sorted((one for one in may_leave if not one.idle), key=lambda one: one.residency.loaded_at or 0.0)
        whole = [*(one for one in may_leave if one.idle), *(busy if starving else ())]
        return [*((one, one.surplus) for one in others if one.surplus), *((one, one.grant.kept + 1) for one in whole)]

    def _stays_until(self, tenant: Tenant) -> float:
        loaded_at = tenant.residency.loaded_at
        return -math.inf if loaded_at is None else loaded_at + self._patience.min_residency

    def _make_room(self, claimant: Tenant, cost: Bytes, victims: Iterable[tuple[Tenant, int]]) -> bool:
        """Let victims leave until there will be room. Returns False if that is not possible now; then nobody leaves."""
        taken: dict[Tenant, list[_Step]] = {}
        why = f"makes room for {claimant.name}"
        for victim, most in victims:
            for _ in range(most):
                short = self._budgets.short(cost)
                step = next(self._steps(victim, short), None) if short else None
                if step is None:
                    break
                taken.setdefault(victim, []).append(self._apply(step, why))
        enough = not self._budgets.short(cost)
        for steps in taken.values():  # the first ones need not leave if a later one suffices
            for step in reversed(steps):
                self._undo(step)
            if enough and self._budgets.short(cost):
                for step in steps:
                    self._apply(step, why)
        return enough

    def _steps(self, tenant: Tenant, budgets: Iterable[str]) -> Iterator[_Step]:
        """What the pool can give up next of these budgets."""
        devices: Iterable[str | None] = [name for name, count in tenant.grant.keep.items() if count] or [None]
        for device in devices:
            step = self._step(tenant, device)
            if any(step.frees.get(name, 0.0) > 0 for name in budgets):
                yield step

    def _step(self, tenant: Tenant, device: str | None) -> _Step:
        frees = {MACHINE: 0.0} if device is None else of_one(device, tenant.workers[device])
        template = self._template_bytes(tenant) if tenant.grant.kept <= 1 else 0
        return _Step(tenant, device, {**frees, MACHINE: frees[MACHINE] + template}, template > 0)

    def _template_bytes(self, tenant: Tenant) -> int:
        """What ends with the pool's last worker: nothing if others use its template or it has been told to end. Old
        code that is kept ends only for a pool that would not fit beside it.
        """
        image, template = tenant.image, self._template(tenant)
        in_use = bool(tenant.grant.start) or any(one.grant.most for one in self._sharing[image] if one is not tenant)
        if in_use or template.ending or image in (self._claimed, *self._ended):
            return 0
        return template.used - (0 if image in self._outdated else template.kept)

    def _apply(self, step: _Step, why: str) -> _Step:
        grant = step.tenant.grant
        if step.device is not None:
            grant.keep[step.device] -= 1
        grant.gives_up, grant.reason = grant.gives_up + 1, why
        if step.ends_template:
            self._ended.add(step.tenant.image)
            grant.without_old_code = step.tenant.image in self._outdated
        self._budgets.expect(step.frees)
        return step

    def _undo(self, step: _Step) -> None:
        grant = step.tenant.grant
        if step.device is not None:
            grant.keep[step.device] += 1
        grant.gives_up, grant.reason, grant.without_old_code = grant.gives_up - 1, "", False
        if step.ends_template:
            self._ended.discard(step.tenant.image)
        self._budgets.expect(step.frees, -1)

    # Who gets

    def urgency(self, tenant: Tenant) -> tuple[bool, float]:
        return not tenant.residency.resident, -tenant.waited(self._now)

    def load(self, tenant: Tenant) -> None:
        """The first worker of a pool that has none."""
        starving = tenant.waited(self._now) >= self._patience.max_wait
        if not starving and self._waits_for_asize_text(tenant):
            return
        resident = tenant.residency.resident
        may_claim = resident or self._now >= self._stays_until(tenant)
        victims = self._victims(tenant, starving=starving) if may_claim else []
        self._claim(tenant, victims, hold=starving or resident)

    def grow(self, tenant: Tenant) -> bool:
        """One more worker of a pool with waiting jobs."""
        return self._lacks(tenant) and self._claim(tenant, self._victims(tenant, starving=False))

    def fill(self, tenant: Tenant) -> bool:
        """One more worker without a job, where there is room."""
        return self._lacks(tenant) and self._claim(tenant, [])

    def _lacks(self, tenant: Tenant) -> bool:
        return tenant.grant.most < tenant.wanted and not self._waits_for_asize_text(tenant)

    def replace(self, tenant: Tenant) -> None:
        """A successor starts before its predecessor leaves, if there is room for both."""
        grant, renewal = tenant.grant, tenant.renewal
        if renewal.replacing and grant.kept and grant.kept == grant.most:
            grant.crowded = not (self._start(tenant, *self._next(tenant)) or renewal.patient)

    def spare(self, tenant: Tenant) -> bool:
        """One more worker beyond those that run jobs, in what is left."""
        lacks = tenant.need is not None and tenant.grant.most < tenant.wanted + tenant.spares
        return lacks and self._start(tenant, *self._next(tenant))

    def _waits_for_asize_text(self, tenant: Tenant) -> bool:
        waits = tenant.need is None and bool(self._measuring)
        if waits:
            tenant.grant.reason = tenant.grant.reason or f"waits until the size of {self._measuring} has been measured"
        return waits

    def _claim(self, tenant: Tenant, victims: Sequence[tuple[Tenant, int]], *, hold: bool = False) -> bool:
        """Start a worker. If there is no room yet, let `victims` leave for it; nobody else gets what they free, nor, if
        it is to `hold` a place, anything else. Returns whether it can start now.
        """
        device, cost = self._next(tenant)
        if self._start(tenant, device, cost):
            return True
        if not tenant.grant.most:
            self._outdated = self._old_code_beside_which_it_cannot_run(tenant, cost)
        self._claimed = tenant.image
        room = self._make_room(tenant, cost, victims)
        self._outdated, self._claimed = set(), ""
        tenant.grant.reason = tenant.grant.reason or self._why_waits(tenant, cost)
        if room or hold:
            self._budgets.take({name: budget.capped(cost.get(name, 0)) for name, budget in self._budgets.items()})
        return False

    def _start(self, tenant: Tenant, device: str, cost: Bytes) -> bool:
        if self._budgets.short_now(cost):
            return False
        if tenant.need is None:
            self._measuring = tenant.name
        tenant.grant.start[device] = tenant.grant.start.get(device, 0) + 1
        self._budgets.take(cost)
        return True

    def _next(self, tenant: Tenant) -> tuple[str, Bytes]:
        """The device for one more worker of the pool, and the bytes that it costs."""
        need, template, grant = self._need(tenant), self._template(tenant), tenant.grant
        loaded = 0 if template.ending else template.used
        started = any(one.grant.start for one in self._sharing[tenant.image])
        machine = need.worker if loaded or started else need.worker + need.template
        machine = min(machine, self._budgets[MACHINE].size - loaded)  # its own template stays beside it
        costs = {device: by_budget(device, machine, need.device) for device in tenant.workers}
        if len(costs) == 1:
            return next(iter(costs.items()))

        def rank(device: str) -> tuple[bool, int, int]:
            """Where there is room, else where the first worker leaves, and of those the least used one."""
            first = 0
            if self._budgets.short(costs[device]):
                victims = self._victims(tenant, starving=True)
                there = (place for place, (one, _) in enumerate(victims, 1) if one.grant.keep.get(device))
                first = next(there, len(victims) + 1)
            return bool(self._budgets.short_now(costs[device])), first, grant.most_on(device)

        device = min(costs, key=rank)
        return device, costs[device]

    def _old_code_beside_which_it_cannot_run(self, tenant: Tenant, cost: Bytes) -> set[str]:
        """The images whose old code must end, even if everything else has left: as few as possible, the smallest."""
        kept = {image: one.kept for image, one in self._templates.items() if one.kept and image != tenant.image}
        machine = self._budgets[MACHINE]
        lacking = max(0, machine.capped(cost[MACHINE])) + self._template(tenant).used + sum(kept.values())
        lacking -= machine.size
        found: set[str] = set()
        while kept and lacking > 0:
            image = min(kept, key=lambda one: (kept[one] < lacking, abs(kept[one] - lacking)))
            lacking -= kept.pop(image)
            found.add(image)
        return found

    def try_out(self) -> None:
        """New code without a worker, of one pool after another, in what is left. For that, templates that nobody uses
        may end: without it, few of the pools that take turns in the memory could be tried.
        """
        untried = [one for one in self._tenants if one.renewal.untried]
        taken = any(template.loading for template in self._templates.values())
        for tenant in untried:
            tenant.grant.trial = CodeTrial.LATER if taken else self._trial(tenant)
            taken = taken or tenant.grant.trial is not CodeTrial.NEVER
        for tenant in untried:
            if taken and tenant.grant.trial is CodeTrial.NEVER:
                tenant.grant.trial = CodeTrial.LATER

    def _trial(self, tenant: Tenant) -> CodeTrial:
        """Its own old code ends for it if nothing else suffices."""
        cost, image = {MACHINE: float(self._need(tenant).template)}, tenant.image
        if not self._budgets.short_now(cost):
            return CodeTrial.NOW
        if self._budgets[MACHINE].leaving:
            return CodeTrial.LATER
        unused = [one for one in self._least_recently_used() if not (one.grant.most or one.wanted)]
        others = [(one, 1) for one in unused if one.image != image and not self._template(one).loading]
        if self._make_room(tenant, cost, others):
            return CodeTrial.LATER
        if self._template(tenant).kept and not any(one.wanted for one in self._sharing[image]):
            self._outdated = {image}
            room = self._make_room(tenant, cost, [*others, (tenant, 1)])
            self._outdated = set()
            return CodeTrial.LATER if room else CodeTrial.NEVER
        return CodeTrial.NEVER

    # Reasons

    def _why_waits(self, tenant: Tenant, cost: Bytes) -> str:
        name = min(self._budgets.short_now(cost), default=MACHINE)
        needed = f"{size_text(self._budgets[name].capped(cost[name]))} of {name_of(name)}"
        if not tenant.work.due:
            return f"needs {needed}: {self._users(name)}"
        why = f"waits for {needed}: {self._users(name)}"
        if self._budgets[name].leaving:
            return f"{why}; a part of that is being freed"
        impatient = self._now + self._patience.max_wait - tenant.waited(self._now)
        times = [
            max(self._stays_until(one), self._stays_until(tenant), self._now if one.idle else impatient)
            for one in self._tenants
            if one is not tenant and any(True for _ in self._steps(one, [name]))
        ]
        if not times or tenant.grant.most:
            return why
        who = "" if sum(one.used(name) > 0 for one in self._tenants) == 1 else "one of them "
        return f"{why} and {who}may be stopped in {human(max(0, math.ceil(min(times) - self._now)))}"

    def _users(self, budget: str) -> str:
        used = {one.name: float(one.used(budget)) for one in self._tenants}
        templates = sum(one.used for one in self._templates.values()) if budget == MACHINE else 0
        return share_text(used, templates, self._budgets[budget].size)
