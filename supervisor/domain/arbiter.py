"""Which pools may have how many workers, when all of them share the memory of one machine and of its devices.

One pure function, `arbitrate`, over all pools. It gives memory in this order: first workers of pools with waiting
jobs, the longest waiting first; more workers for pools that have some; workers without a job; spares. A first worker
may take the place of spares and of idle workers, those idle for longest first, and once its pool has waited for
`max_wait`, also that of workers with jobs. But for spares, nobody is unloaded within `min_residency` of its load, so
no pool is loaded more often than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from supervisor.domain.memory import (
    MACHINE,
    CodeTrial,
    Demand,
    Grant,
    Need,
    Patience,
    Template,
    by_resource,
    name_of,
    of_bytes,
    per_worker,
    size,
)
from supervisor.domain.memory_ledger import Bytes, Ledger
from supervisor.domain.memory_share import Share, Step, estimated, expected, least_recently_used
from supervisor.domain.text import human, shortened


def arbitrate(
    demands: Sequence[Demand],
    budgets: Mapping[str, int],
    templates: Mapping[str, Template],
    patience: Patience,
    now: float,
    *,
    pressed: bool = False,
    relieve: bool = False,
) -> dict[str, Grant]:
    """What each pool gets of the `budgets` in bytes: MACHINE's and those of devices.

    `pressed`: the kernel is short of memory, so only pools without workers get some; `relieve`: one idle worker leaves.
    """
    division = _Division(demands, budgets, templates, patience, now)
    if relieve:
        division.relieve()
    division.shed()
    shares = division.shares
    for share in sorted((one for one in shares if one.needs_its_first), key=lambda one: one.urgency(now)):
        division.load(share)
    if not pressed:
        busy = [one for one in shares if one.demand.due and one.size]
        division.grow(sorted(busy, key=lambda one: -one.demand.oldest_wait))
        division.fill([one for one in shares if not one.demand.due])
        division.replace()
        division.spare()
    division.try_out()
    return {share.demand.name: share.grant() for share in shares}


class _Division:
    """Who gives and who gets. What others have been given so far is in the ledger."""

    def __init__(
        self,
        demands: Sequence[Demand],
        budgets: Mapping[str, int],
        templates: Mapping[str, Template],
        patience: Patience,
        now: float,
    ) -> None:
        known = [d.need for d in demands if d.need is not None]
        largest = [max((need[part] for need in known), default=0) for part in range(len(Need._fields))]
        self._guess = Need(*largest)  # of what has not been measured
        self._templates = {image: expected(one, image, demands, self._guess) for image, one in templates.items()}
        demands = [estimated(d, self._guess) for d in demands]
        self.shares = [Share(d, {device: crew.staying for device, crew in d.crews.items()}) for d in demands]
        self._ledger = Ledger(demands, budgets, self._templates)
        self._patience = patience
        self._now = now
        unmeasured = (one.demand.name for one in self.shares if one.demand.need is None and one.kept)
        self._measuring = next(unmeasured, "")
        self._ended: set[str] = set()  # images whose templates end with workers that have been told to leave
        self._claimed = ""  # the image of the pool for which room is made: its template stays
        self._outdated: set[str] = set()  # images whose old code may end for that pool
        self._mates: dict[str, list[Share]] = {}
        for share in self.shares:
            self._mates.setdefault(share.demand.image, []).append(share)

    # Who gives

    def relieve(self) -> None:
        """The youngest idle worker leaves."""
        found = [one for one in self.shares if one.demand.youngest_idle is not None and one.kept]
        if found:
            share = max(found, key=lambda one: one.demand.youngest_idle or 0.0)
            device = max(share.keep, key=lambda name: share.keep[name])
            self._apply(self._worker_step(share, device), "this machine is short of memory")

    def shed(self) -> None:
        """Workers have grown over the budget: spares leave; idle ones; busy ones, of several pools the latest. The last
        worker stays, however large it is: its successor would be no smaller.
        """
        while over := self._ledger.over():
            step = next(self._sheddable(over[0]), None)
            if step is None:
                return
            self._apply(step, f"no {name_of(over[0])} is left: {self._users(over[0])}")

    def _sheddable(self, resource: str) -> Iterator[Step]:
        spares = [one for one in self.shares if one.surplus > 0]
        idle = sorted((one for one in self.shares if one.idle), key=least_recently_used)
        rest = sorted(self.shares, key=lambda one: (one.kept == 1, -one.kept, -(one.demand.loaded_at or 0.0)))
        is_last = sum(one.kept_on(resource) for one in self.shares) == 1
        for share in (*spares, *idle, *rest):
            if not (is_last and share.kept_on(resource)):
                yield from self._steps(share, {resource})

    def _make_room(self, claimant: Share, cost: Bytes, *, starving: bool) -> bool:
        """Let others leave until there will be room. Returns False if that is not possible now; then nobody leaves."""
        taken: list[Step] = []
        self._claimed = claimant.demand.image
        why = f"makes room for {claimant.demand.name}"
        spares = [(one, True) for one in self.shares if one is not claimant and one.surplus > 0]
        others = [(one, False) for one in self._victims(claimant, starving=starving)]
        for victim, spares_only in [*spares, *others]:
            while (not spares_only or victim.surplus > 0) and (lacking := self._ledger.lacking(cost)):
                step = next(self._steps(victim, lacking), None)
                if step is None:
                    break
                taken.append(self._apply(step, why))
        enough = self._ledger.will_fit(cost)
        victims = dict.fromkeys(step.share for step in taken)
        for victim in victims:  # the first ones need not leave if a later one suffices
            own = [step for step in taken if step.share is victim]
            for step in reversed(own):
                self._undo(step)
            if enough and not self._ledger.will_fit(cost):
                for step in own:
                    self._apply(step, why)
        self._claimed = ""
        return enough

    def _victims(self, claimant: Share, *, starving: bool) -> list[Share]:
        """Idle pools, the longest idle first; for a starving claimant also the others, the first loaded first."""
        others = [one for one in self.shares if one is not claimant and self._may_leave(one)]
        busy = [one for one in others if not one.idle] if starving else []
        return [
            *sorted((one for one in others if one.idle), key=least_recently_used),
            *sorted(busy, key=lambda one: one.demand.loaded_at or 0.0),
        ]

    def _first_to_leave(self, claimant: Share, device: str) -> int:
        """Among all that could leave, the place of the first one that has workers on this device."""
        victims = self._victims(claimant, starving=True)
        return next((place for place, one in enumerate(victims) if one.keep.get(device)), len(victims))

    def _may_leave(self, share: Share) -> bool:
        """Not while it is being set up: pools whose set-up takes longer than `min_residency` would never work."""
        return not share.demand.starting and self._now >= self._stays_until(share)

    def _stays_until(self, share: Share) -> float:
        demand = share.demand
        if demand.loaded_at is None:
            return -math.inf
        return demand.loaded_at + self._patience.min_residency

    def _steps(self, share: Share, resources: Iterable[str]) -> Iterator[Step]:
        """What the pool can give up next of these resources."""
        if share.kept:
            for device, workers in share.keep.items():
                step = self._worker_step(share, device)
                if workers and any(step.frees.get(name, 0.0) > 0 for name in resources):
                    yield step
        elif MACHINE in resources and (freed := self._template_bytes(share)):
            yield Step(share, None, {MACHINE: freed}, ends_template=True)

    def _worker_step(self, share: Share, device: str) -> Step:
        frees = per_worker(device, share.demand.crews[device])
        freed = self._template_bytes(share) if share.kept == 1 else 0
        return Step(share, device, frees | {MACHINE: frees[MACHINE] + freed}, ends_template=freed > 0)

    def _template_bytes(self, share: Share) -> int:
        """What ends with the pool's last worker: nothing if others use its template or it has been told to end. Old
        code that is kept ends only for a pool that would not fit beside it.
        """
        image, template = share.demand.image, self._template(share)
        in_use = bool(share.start) or any(one.size for one in self._mates[image] if one is not share)
        if in_use or template.ending or image in (self._claimed, *self._ended):
            return 0
        return template.used - (0 if image in self._outdated else template.kept)

    def _apply(self, step: Step, why: str) -> Step:
        share = step.share
        if step.device is not None:
            share.keep[step.device] -= 1
        share.unloaded, share.reason = not share.size, why
        if step.ends_template:
            self._ended.add(share.demand.image)
            share.without_old_code = share.demand.image in self._outdated
        self._ledger.expect(step.frees)
        return step

    def _undo(self, step: Step) -> None:
        share = step.share
        if step.device is not None:
            share.keep[step.device] += 1
        share.unloaded, share.reason, share.without_old_code = False, "", False
        if step.ends_template:
            self._ended.discard(share.demand.image)
        self._ledger.expect(step.frees, -1)

    # Who gets

    def load(self, share: Share) -> None:
        """The first worker of a pool that has none."""
        starving = share.waited(self._now) >= self._patience.max_wait
        if share.demand.need is None and self._measuring and not starving:
            share.reason = f"waits until the size of {self._measuring} has been measured"
            return
        device, cost = self._next(share)
        if self._ledger.fits_now(cost):
            self._start(share, device, cost)
            return
        self._outdated = self._old_code_beside_which_it_cannot_run(share, cost)
        may_claim = share.demand.resident or self._now >= self._stays_until(share)
        room = self._ledger.will_fit(cost) or (may_claim and self._make_room(share, cost, starving=starving))
        self._outdated = set()
        share.reason = self._why_waits(share, cost)
        if room or starving or share.demand.resident:
            self._ledger.take(self._ledger.capped(cost))  # nobody else gets it meanwhile

    def _old_code_beside_which_it_cannot_run(self, share: Share, cost: Bytes) -> set[str]:
        """The images whose old code must end, even if everything else has left: as few as possible, the smallest."""
        own = self._template(share)
        kept = {image: one.kept for image, one in self._templates.items() if one.kept and image != share.demand.image}
        lacking = max(0, self._ledger.capped(cost)[MACHINE]) + own.used + sum(kept.values())
        lacking -= self._ledger.budgets[MACHINE]
        found: set[str] = set()
        while kept and lacking > 0:
            image = min(kept, key=lambda one: (kept[one] < lacking, abs(kept[one] - lacking)))
            lacking -= kept.pop(image)
            found.add(image)
        return found

    def grow(self, shares: Sequence[Share]) -> None:
        """More workers for pools with waiting jobs, one each in turn."""
        hungry = list(shares)
        while hungry:
            hungry = [one for one in hungry if one.size < one.demand.wanted and self._add(one, evict=True)]

    def fill(self, shares: Sequence[Share]) -> None:
        """Workers without a job, where there is room."""
        for share in shares:
            while share.size < share.demand.wanted and self._add(share, evict=False):
                pass

    def replace(self) -> None:
        """A successor starts before its predecessor leaves, if there is room for both."""
        for share in self.shares:
            if share.demand.replacing and share.kept and share.kept == share.size:
                device, cost = self._next(share)
                if self._ledger.fits_now(cost):
                    self._start(share, device, cost)
                else:
                    share.crowded = not share.demand.patient

    def spare(self) -> None:
        """Workers beyond those that run jobs, one each in turn, in what is left."""
        lacking = [one for one in self.shares if one.size and not one.demand.replacing]
        while lacking:
            lacking = [
                one for one in lacking if one.size < one.demand.wanted + one.demand.spares and self._add_spare(one)
            ]

    def _add_spare(self, share: Share) -> bool:
        device, cost = self._next(share)
        if share.demand.need is None or not self._ledger.fits_now(cost):
            return False
        self._start(share, device, cost)
        return True

    def _add(self, share: Share, *, evict: bool) -> bool:
        """One more worker. Returns False if it cannot start now."""
        if share.demand.need is None and (share.size or self._measuring):
            share.reason = share.reason or f"memory: measuring the first worker of {self._measuring}"
            return False
        device, cost = self._next(share)
        if self._ledger.fits_now(cost):
            self._start(share, device, cost)
            return True
        room = self._ledger.will_fit(cost) or (evict and self._make_room(share, cost, starving=False))
        share.reason = share.reason or self._why_waits(share, cost)
        if room:
            self._ledger.take(self._ledger.capped(cost))
        return False

    def _start(self, share: Share, device: str, cost: Bytes) -> None:
        if share.demand.need is None:
            self._measuring = share.demand.name
        share.start[device] = share.start.get(device, 0) + 1
        self._ledger.take(cost)

    def _next(self, share: Share) -> tuple[str, dict[str, float]]:
        """The device for one more worker of the pool, and the bytes that it costs."""
        need, template = self._need(share), self._template(share)
        loaded = 0 if template.ending else template.used
        started = any(one.start for one in self._mates[share.demand.image])
        machine = need.worker if loaded or started else need.worker + need.template
        machine = min(machine, self._ledger.budgets[MACHINE] - loaded)  # its own template stays beside it

        def rank(device: str) -> tuple[bool, int, int]:
            cost, workers = by_resource(device, machine, need.device), share.keep[device] + share.start.get(device, 0)
            first = 0 if self._ledger.will_fit(cost) else 1 + self._first_to_leave(share, device)
            return not self._ledger.fits_now(cost), first, workers

        device = min(share.demand.crews, key=rank)
        return device, by_resource(device, machine, need.device)

    def try_out(self) -> None:
        """New code without a worker, of one pool after another, in what is left. For that, templates that nobody uses
        may end: without it, few of the pools that take turns in the memory could be tried.
        """
        untried = [one for one in self.shares if one.demand.untried]
        for share in untried:
            share.trial = self._trial(share)
        turn = next((one for one in untried if one.trial is not CodeTrial.NEVER), None)
        freed = turn is None and any(self._end_unused_templates(one) for one in untried)
        if turn or freed or any(one.loading for one in self._templates.values()):
            for share in untried:
                share.trial = share.trial if share is turn else CodeTrial.LATER

    def _trial(self, share: Share) -> CodeTrial:
        needed, left = self._need(share).template, self._ledger.free[MACHINE]
        if needed <= left:
            return CodeTrial.NOW
        if self._ledger.coming[MACHINE]:
            return CodeTrial.LATER
        kept = self._template(share).kept
        if kept and needed <= left + kept and not any(one.demand.wanted for one in self._mates[share.demand.image]):
            return CodeTrial.INSTEAD
        return CodeTrial.NEVER

    def _end_unused_templates(self, share: Share) -> bool:
        """Returns whether there will be room for the new code; if not, none ends."""
        cost, why = {MACHINE: self._need(share).template}, f"makes room for {share.demand.name}"
        steps: list[Step] = []
        for other in sorted(self.shares, key=least_recently_used):
            needed = other.size or other.demand.wanted or other.demand.image == share.demand.image
            if not (needed or self._template(other).loading or self._ledger.will_fit(cost)):
                steps += [self._apply(step, why) for step in self._steps(other, {MACHINE})]
        if self._ledger.will_fit(cost):
            return True
        for step in reversed(steps):
            self._undo(step)
        return False

    def _need(self, share: Share) -> Need:
        return share.demand.need or self._guess

    def _template(self, share: Share) -> Template:
        return self._templates.get(share.demand.image, Template())

    # Reasons

    def _why_waits(self, share: Share, cost: Bytes) -> str:
        resource = min(self._ledger.missing_now(cost), default=MACHINE)
        needed = f"{size(self._ledger.capped(cost)[resource])} of {name_of(resource)}"
        if not share.demand.due:
            return f"needs {needed}: {self._users(resource)}"
        told = f"waits for {needed}: {self._users(resource)}"
        if self._ledger.coming[resource]:
            return f"{told}; a part of that is being freed"
        impatient = self._now + self._patience.max_wait - share.waited(self._now)
        times = [
            max(self._stays_until(one), self._stays_until(share), self._now if one.idle else impatient)
            for one in self.shares
            if one is not share and any(True for _ in self._steps(one, {resource}))
        ]
        if not times or share.size:
            return told
        who = "" if sum(one.used(resource) > 0 for one in self.shares) == 1 else "one of them "
        return f"{told} and {who}may be stopped in {human(max(0, math.ceil(min(times) - self._now)))}"

    def _users(self, resource: str) -> str:
        """`caption uses 3.1 of 6 GiB`."""
        used = {one.demand.name: one.used(resource) for one in self.shares}
        names = [name for name, value in sorted(used.items(), key=lambda pair: -pair[1]) if value]
        total = sum(used.values()) + (sum(one.used for one in self._templates.values()) if resource == MACHINE else 0)
        who = shortened(", ".join(names), 100) or "templates"
        return f"{who} {'uses' if len(names) == 1 else 'use'} {of_bytes(total, self._ledger.budgets[resource])}"
