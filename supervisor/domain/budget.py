"""Budgets of memory and their tenants: what is used, what one more worker costs, and who can leave for it.

That of the machine, that of each device and a pool's `memory_budget` are each a `Budget`. `Budgets` are those that
pools share: `division` decides who gets what of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.domain.tenants import MACHINE, Grant, Need, Template, Tenant, Workers
from supervisor.domain.text import shortened

Bytes = Mapping[str, float]
"""By budget: MACHINE, or a device."""


@dataclass(slots=True)
class Budget:
    """`size` bytes, how many of them are used or promised, and how many of these will be free when everybody has left
    who has been told to.
    """

    size: int
    used: float = 0.0
    leaving: float = 0.0

    @property
    def free(self) -> float:
        return self.size - self.used

    @property
    def left(self) -> float:
        return self.free + self.leaving

    def capped(self, cost: float) -> float:
        """What needs more than all of it may have all of it, alone."""
        return min(cost, self.size)

    def holds(self, each: int) -> int:
        """How many workers of this size may be there."""
        return max(1, self.size // each)


class Step(NamedTuple):
    """One worker fewer of a pool on a device, or a template without workers (None), and the bytes that this frees."""

    tenant: Tenant
    device: str | None
    frees: Bytes
    ends_template: bool


class Budgets(dict[str, Budget]):
    """Those of the machine and of devices, with their tenants, whose grants change here. What has no budget is not
    counted. Pools with the same image share a template.

    Whatever uses a device says so, but everything uses the machine. A worker whose template alone is as large as the
    budget costs nothing, or less: it fits where nobody else is.
    """

    def __init__(self, sizes: Mapping[str, int], tenants: Sequence[Tenant], templates: Mapping[str, Template]) -> None:
        super().__init__({name: Budget(size) for name, size in sizes.items()})
        known = [one.need for one in tenants if one.need is not None]
        self._unknown = Need(*(max((need[part] for need in known), default=0) for part in range(len(Need._fields))))
        self._tenants: dict[str, list[Tenant]] = {}  # by image
        for tenant in tenants:
            tenant.grant = Grant({device: there.staying for device, there in tenant.workers.items()})
            self._tenants.setdefault(tenant.image, []).append(tenant)
            if tenant.need is None:
                tenant.workers = {device: there.at_least(self._unknown) for device, there in tenant.workers.items()}
            for device, there in tenant.workers.items():
                self._take(_by_budget(device, there.used, there.on_device))
                self._expect(_of_one(device, there), there.leaving)
        self._templates = {image: self._loaded(image, one) for image, one in templates.items()}
        for template in self._templates.values():
            self._take({MACHINE: template.used})
            self._expect({MACHINE: template.used}, int(template.ending))
        self._ended: set[str] = set()  # images whose templates end with workers that have been told to leave
        self._stays = ""  # the image of the pool for which room is made
        self._outdated: Collection[str] = ()  # images whose old code may end for that pool

    # What is used, and what is needed

    def short_now(self, cost: Bytes) -> list[str]:
        """The budgets in which it does not fit yet."""
        return [name for name in self._counted(cost) if self[name].capped(cost[name]) > self[name].free]

    def short(self, cost: Bytes) -> list[str]:
        """The budgets in which it does not fit even later."""
        return [name for name in self._counted(cost) if self[name].capped(cost[name]) > self[name].left]

    def _counted(self, cost: Bytes) -> list[str]:
        return [name for name in self if name == MACHINE or cost.get(name, 0) > 0]

    def need(self, tenant: Tenant) -> Need:
        """What has not been measured counts as the largest of the others."""
        return tenant.need or self._unknown

    def _loaded(self, image: str, template: Template) -> Template:
        """With what one that is loading will use."""
        needs = [self.need(one).template for one in self._tenants.get(image, ()) if template.loading]
        return template._replace(used=template.used + max(needs, default=0))

    def sharing(self, tenant: Tenant) -> list[Tenant]:
        """The pools that share its template, itself included."""
        return self._tenants[tenant.image]

    def template(self, tenant: Tenant) -> Template:
        return self._templates.get(tenant.image, Template())

    def costs(self, tenant: Tenant) -> dict[str, Bytes]:
        """The bytes of one more worker, for each of the pool's devices."""
        need, template = self.need(tenant), self.template(tenant)
        loaded = 0 if template.ending else template.used
        started = any(one.grant.start for one in self.sharing(tenant))
        machine = need.worker if loaded or started else need.worker + need.template
        machine = min(machine, self[MACHINE].size - loaded)  # its own template stays beside it
        return {device: _by_budget(device, machine, need.device) for device in tenant.workers}

    def users(self, name: str) -> str:
        """`caption uses 3.1 of 6 GiB`."""
        size = self[name].size
        used = {one.name: one.used(name) for some in self._tenants.values() for one in some}
        templates = sum(one.used for one in self._templates.values()) if name == MACHINE else 0
        names = [one for one, value in sorted(used.items(), key=lambda pair: -pair[1]) if value]
        unit = size_text(size).rpartition(" ")[2]
        total = size_text(sum(used.values()) + templates, like=size).removesuffix(unit)
        who = shortened(", ".join(names), 100) or "templates"
        return f"{who} {'uses' if len(names) == 1 else 'use'} {total}of {size_text(size)}"

    # Who gets

    def _take(self, cost: Bytes) -> None:
        for name in cost.keys() & self.keys():
            self[name].used += max(0.0, cost[name])

    def hold(self, cost: Bytes) -> None:
        """Nobody else gets this much meanwhile."""
        self._take({name: budget.capped(cost.get(name, 0)) for name, budget in self.items()})

    def start(self, tenant: Tenant, device: str, cost: Bytes) -> bool:
        """Grant one more worker. Returns whether there is room for it now."""
        if self.short_now(cost):
            return False
        tenant.grant.start[device] = tenant.grant.start.get(device, 0) + 1
        self._take(cost)
        return True

    # Who leaves

    def make_room(
        self,
        claimant: Tenant,
        cost: Bytes,
        victims: Iterable[tuple[Tenant, int]],
        outdated: Collection[str] = (),
    ) -> bool:
        """Let victims leave, of each so many workers at most, until there will be room. Returns False if that is not
        possible now; then nobody leaves. Old code of `outdated` images may end.
        """
        self._stays, self._outdated = claimant.image, outdated
        taken: dict[Tenant, list[Step]] = {}
        why = f"makes room for {claimant.name}"
        for victim, most in victims:
            for _ in range(most):
                short = self.short(cost)
                step = next(self.steps(victim, short), None) if short else None
                if step is None:
                    break
                taken.setdefault(victim, []).append(self.leave(step, why))
        enough = not self.short(cost)
        for steps in taken.values():  # the first ones need not leave if a later one suffices
            for step in reversed(steps):
                self._stay(step)
            if enough and self.short(cost):
                for step in steps:
                    self.leave(step, why)
        self._stays, self._outdated = "", ()
        return enough

    def steps(self, tenant: Tenant, budgets: Collection[str]) -> Iterator[Step]:
        """What the pool can give up next of these budgets."""
        devices: Iterable[str | None] = [name for name, count in tenant.grant.keep.items() if count] or [None]
        for step in (self._step(tenant, device) for device in devices):
            if any(step.frees.get(name, 0.0) > 0 for name in budgets):
                yield step

    def _step(self, tenant: Tenant, device: str | None) -> Step:
        frees = {MACHINE: 0.0} if device is None else _of_one(device, tenant.workers[device])
        template = self._template_bytes(tenant) if tenant.grant.kept <= 1 else 0
        return Step(tenant, device, {**frees, MACHINE: frees[MACHINE] + template}, template > 0)

    def _template_bytes(self, tenant: Tenant) -> int:
        """What ends with the pool's last worker: nothing if others use its template or it has been told to end."""
        image, template = tenant.image, self.template(tenant)
        in_use = bool(tenant.grant.start) or any(one.grant.most for one in self.sharing(tenant) if one is not tenant)
        if in_use or template.ending or image in self._ended:
            return 0
        if image in self._outdated:
            return template.used
        return 0 if image == self._stays else template.used - template.kept

    def leave(self, step: Step, why: str) -> Step:
        grant, image = step.tenant.grant, step.tenant.image
        if step.device is not None:
            grant.keep[step.device] -= 1
        grant.gives_up, grant.reason = grant.gives_up + 1, why
        if step.ends_template:
            self._ended.add(image)
            grant.without_old_code = image in self._outdated
        self._expect(step.frees)
        return step

    def _stay(self, step: Step) -> None:
        grant = step.tenant.grant
        if step.device is not None:
            grant.keep[step.device] += 1
        grant.gives_up, grant.reason, grant.without_old_code = grant.gives_up - 1, "", False
        if step.ends_template:
            self._ended.discard(step.tenant.image)
        self._expect(step.frees, -1)

    def _expect(self, frees: Bytes, times: int = 1) -> None:
        for name in frees.keys() & self.keys():
            self[name].leaving += frees[name] * times

    def old_code_in_the_way(self, tenant: Tenant, cost: Bytes) -> set[str]:
        """The images whose old code must end for a worker even if everything else has left: as few as possible, the
        smallest.
        """
        kept = {image: one.kept for image, one in self._templates.items() if one.kept and image != tenant.image}
        machine = self[MACHINE]
        lacking = max(0, machine.capped(cost[MACHINE])) + self.template(tenant).used + sum(kept.values()) - machine.size
        found: set[str] = set()
        while kept and lacking > 0:
            image = min(kept, key=lambda one: (kept[one] < lacking, abs(kept[one] - lacking)))
            lacking -= kept.pop(image)
            found.add(image)
        return found


def _by_budget(device: str, machine: float, on_device: float) -> Bytes:
    return {MACHINE: machine} | ({device: on_device} if device != MACHINE else {})


def _of_one(device: str, there: Workers) -> Bytes:
    """What the end of one worker frees, as if all were alike."""
    count = max(1, there.staying + there.leaving)
    return _by_budget(device, there.used / count, there.on_device / count)


def name_of(budget: str) -> str:
    return "memory" if budget == MACHINE else f"memory of device {budget}"


def size_text(value: float, like: float | None = None) -> str:
    """`3.1 GiB`; in the same unit as another number of bytes."""
    unit, scale = ("GiB", 1 << 30) if (value if like is None else like) >= 1 << 30 else ("MiB", 1 << 20)
    return f"{value / scale:.1f}".removesuffix(".0") + f" {unit}"
