"""How many workers each pool may have of the memory that all share, and who must leave.

`divide` gives memory in this order, as far as there is any:

1. pools that were loaded within `min_residency`, and those whose last worker has died;
2. first workers of pools whose jobs have waited for `max_wait`, the longest first;
3. templates with old code that nothing newer has replaced;
4. pools with jobs, the latest loaded first;
5. first workers of other pools with waiting jobs, and more workers of those that have some;
6. idle pools, the latest idle first, and templates without workers;
7. spares that are there; then what is wanted without jobs, successors of workers to be replaced, more spares.

Whoever is there and gets nothing leaves. A worker whose memory is not free yet starts later. So what is new takes the
place only of what comes after it here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from supervisor.domain.memory_shares import MACHINE, Grant, Patience, Template, Tenant, own_budget
from supervisor.domain.text import human_size, shortened

Bytes = Mapping[str, int]
"""By budget: MACHINE, or a device."""


def divide(
    tenants: Sequence[Tenant],
    sizes: Mapping[str, int],
    templates: Mapping[str, Template],
    patience: Patience,
    now: float,
) -> dict[str, Grant]:
    """What each pool gets of budgets of these sizes in bytes."""
    division = _Division(tenants, sizes, templates)
    lately = [one for one in tenants if now < one.residency.loaded_at + patience.min_residency]
    young = [one for one in tenants if one in lately or one.residency.starting]
    others = [one for one in tenants if one not in young]
    first = sorted((one for one in tenants if one.needs_first), key=lambda one: -one.waited(now))
    replaced = [one for one in first if one.residency.resident]
    absent = [one for one in first if one not in lately and one not in replaced]
    due = sorted((one for one in tenants if one.due), key=lambda one: -one.oldest_wait)
    for one in young:
        division.keep(one)
    for one in (*replaced, *(one for one in absent if one.waited(now) >= patience.max_wait)):
        division.start(one, hold=True)
    division.keep_old_code()
    for one in sorted((one for one in others if not one.idle), key=lambda one: -one.residency.loaded_at):
        division.keep(one)
    for one in absent:
        division.start(one)
    _in_turn((one for one in due if division.grants[one.name].most), division.fill)
    for one in sorted((one for one in others if one.idle), key=lambda one: -(one.residency.idle_since or 0.0)):
        division.keep(one)
    for one in tenants:
        division.keep(one, spares=True)
    _in_turn((one for one in tenants if not one.due or one in first), division.fill)
    for one in tenants:
        division.start_successor(one)
    _in_turn((one for one in tenants if not one.replacing), division.start_spare)
    return division.decided()


def _in_turn(tenants: Iterable[Tenant], more: Callable[[Tenant], bool]) -> None:
    """One worker more for each, as long as it gets one."""
    lacking = list(tenants)
    while lacking:
        lacking = [one for one in lacking if more(one)]


class _Division:
    """One decision. What has no budget is not counted. A worker that needs more than a whole budget may have all of
    it, alone.

    `_left` are the bytes for whoever stays or comes and has not had its turn; `_free` those that nobody uses now, and
    that nobody who came before waits for; `_held` those that only who is there may keep.
    """

    def __init__(self, tenants: Sequence[Tenant], sizes: Mapping[str, int], templates: Mapping[str, Template]) -> None:
        self.grants = {one.name: Grant(dict.fromkeys(one.workers, 0)) for one in tenants}
        self._tenants, self._sizes = tenants, sizes
        self._left, self._free, self._held = dict(sizes), dict(sizes), Counter[str]()
        self._closed: set[str] = set()  # for which no more workers start
        self._claimant = ""  # for which others may have to leave
        self._measuring = {_group(one): one.name for one in tenants if one.staying and not one.measured}
        for one in tenants:
            for device, there in one.workers.items():
                _take(self._free, _by_budget(one, device, there.used, there.on_device))
        self._templates = sum(template.used for template in templates.values())
        self._free[MACHINE] -= self._templates
        self._loaded = {image: 0 if template.ending else template.used for image, template in templates.items()}
        # Of the templates, what nobody has taken yet.
        self._old = {image: template.kept for image, template in templates.items() if not template.ending}
        self._owed = {image: used - self._old.get(image, 0) for image, used in self._loaded.items()}
        self._taken = Counter[str]()
        self._started: set[str] = set()  # images with workers that start now

    # Who stays

    def keep(self, one: Tenant, *, spares: bool = False) -> None:
        """Let its workers stay as far as they fit: those besides its spares, and later these, too. Without any, its
        template.
        """
        grant, most = self.grants[one.name], one.staying - (0 if spares else one.surplus)
        for device, there in one.workers.items():
            each = max(1, there.staying + there.leaving)
            cost = _by_budget(one, device, there.used // each, there.on_device // each)
            while grant.kept < most and grant.keep[device] < there.staying and self._place(one, cost, self._left):
                grant.keep[device] += 1
        template = self._owed.get(one.image, 0)
        nothing = not one.staying and not (
            template <= self._left[MACHINE] and self._place(one, {MACHINE: 0}, self._left)
        )
        if grant.kept < most or nothing:
            self._closed.add(one.name)
            name = min(self._left, key=lambda budget: self._left[budget] if one.used(budget) else inf)
            why = f"no {_name_of(name)} is left: {self._users(name)}"
            grant.reason = f"makes room for {self._claimant}" if self._claimant else why

    def keep_old_code(self) -> None:
        """Let templates with old code that nothing newer has replaced stay."""
        for image, used in self._old.items():
            if used <= self._left[MACHINE]:
                self._left[MACHINE] -= used
                self._taken[image] += used
                self._old[image] = 0

    def _place(self, one: Tenant, cost: Bytes, open_to_it: Bytes) -> bool:
        """Take this much of what is left, with its template, if nobody has taken that. Returns whether it fits."""
        image = one.image
        template = self._owed.get(image, 0) + self._old.get(image, 0)
        most = self._sizes[MACHINE] - self._taken[image]  # its own template stays beside it
        whole = {**cost, MACHINE: min(cost[MACHINE] + template, most)}
        if self._short(whole, open_to_it):
            return False
        _take(self._left, self._capped(whole))
        self._taken[image] += template
        self._owed[image] = self._old[image] = 0
        return True

    def _capped(self, cost: Bytes) -> dict[str, int]:
        return {name: min(used, self._sizes[name]) for name, used in cost.items() if name in self._sizes}

    def _short(self, cost: Bytes, budgets: Bytes) -> list[str]:
        """The budgets in which it does not fit. Whatever uses a device says so, but everything uses the machine."""
        capped = self._capped(cost).items()
        return [name for name, used in capped if used > budgets[name] and (used > 0 or name == MACHINE)]

    # Who comes

    def start(self, one: Tenant, *, hold: bool = False) -> bool:
        """Grant one more worker, if there is room. Returns whether it starts now. With `hold`, nobody else starts
        before there is room for it.
        """
        grant = self.grants[one.name]
        if one.name in self._closed:
            return False
        if not one.measured and _group(one) in self._measuring and not hold:
            grant.reason = f"waits until the size of {self._measuring[_group(one)]} has been measured"
            return False
        device, cost = self._next(one)
        if not self._place(one, cost, self._open):
            self._held.update(self._capped(cost) if hold else {})
        elif not self._short(cost, self._free):
            grant.start[device] = grant.start.get(device, 0) + 1
            self._started.add(one.image)
            _take(self._free, self._capped(cost))
            self._measuring |= {} if one.measured else {_group(one): one.name}
            return True
        else:
            self._claimant = one.name
            _take(self._free, self._capped(cost))
        self._closed.add(one.name)
        name = min([*self._short(cost, self._free), *self._short(cost, self._open)], default=MACHINE)
        needed = human_size(min(cost[name], self._sizes[name]))
        grant.reason = f"{'waits for' if one.due else 'needs'} {needed} of {_name_of(name)}: {self._users(name)}"
        return False

    @property
    def _open(self) -> Bytes:
        return {name: left - self._held[name] for name, left in self._left.items()}

    def _next(self, one: Tenant) -> tuple[str, Bytes]:
        """The device for one more worker, and its bytes, with its template if there is none: where there is room, else
        where who is idle for longest can leave, and of those the least used.
        """
        need, grant, loaded = one.need, self.grants[one.name], self._loaded.get(one.image, 0)
        machine = need.worker if loaded or one.image in self._started else need.worker + need.template

        def cost(device: str) -> Bytes:
            found = _by_budget(one, device, need.worker, need.device)
            return found | {MACHINE: min(machine, self._sizes[MACHINE] - loaded)}

        def rank(device: str) -> tuple[bool, bool, float, int]:
            full = bool(self._short(cost(device), self._free))
            there = (other for other in self._tenants if device in other.workers and other.workers[device].staying)
            since = max((other.residency.idle_since or 0.0 if other.idle else inf for other in there), default=0.0)
            return full, bool(self._short(cost(device), self._open)), since if full else 0.0, grant.most_on(device)

        device = min(one.workers, key=rank)
        return device, cost(device)

    def fill(self, one: Tenant) -> bool:
        """One more of the workers that are wanted."""
        return self.grants[one.name].most < one.wanted and self.start(one)

    def start_successor(self, one: Tenant) -> None:
        """A successor starts before its predecessor leaves, if there is room for both."""
        grant = self.grants[one.name]
        if one.replacing and grant.kept and grant.kept == grant.most:
            grant.crowded = not (self.start(one) or one.patient)
            grant.reason = ""

    def start_spare(self, one: Tenant) -> bool:
        """One more worker beyond those that run jobs."""
        grant = self.grants[one.name]
        before = grant.reason
        starts = one.measured and 0 < grant.most < one.wanted + one.spares and self.start(one)
        grant.reason = before
        return starts

    # What comes of it

    def decided(self) -> dict[str, Grant]:
        for one in self._tenants:
            grant, image = self.grants[one.name], one.image
            grant.gives_up = one.staying - grant.kept + (not one.staying and self._owed.get(image, 0) > 0)
            grant.without_old_code = self._old.get(image, 0) > 0
        return self.grants

    def _users(self, name: str) -> str:
        """`caption uses 3.1GiB of 6GiB`."""
        used = {one.name: one.used(name) for one in self._tenants}
        names = [one for one, value in sorted(used.items(), key=lambda pair: -pair[1]) if value]
        total = sum(used.values()) + (self._templates if name == MACHINE else 0)
        who = shortened(", ".join(names), 100) + (" uses" if len(names) == 1 else " use")
        who = who if names else "templates use" if name == MACHINE else "nobody uses"
        return f"{who} {human_size(total)} of {human_size(self._sizes[name])}"


def _by_budget(one: Tenant, device: str, worker: int, on_device: int) -> dict[str, int]:
    return {MACHINE: worker, one.own: worker} | ({device: on_device} if device != MACHINE else {})


def _group(one: Tenant) -> str:
    """Of those in one group that have not been measured, one is at a time."""
    return one.name if one.alone else ""


def _take(budgets: dict[str, int], cost: Bytes) -> None:
    for name in cost.keys() & budgets.keys():
        budgets[name] -= max(0, cost[name])


def _name_of(budget: str) -> str:
    if budget.startswith(own_budget("")):
        return "memory_budget"
    return "memory" if budget == MACHINE else f"memory of device {budget}"
