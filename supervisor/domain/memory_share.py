"""What one pool has been given so far while memory is divided, and what it can give up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from supervisor.domain.memory import MACHINE, CodeTrial, Crew, Demand, Grant, Need, Template
from supervisor.domain.memory_ledger import Bytes


@dataclass(eq=False)
class Share:
    """What one pool has been given so far."""

    demand: Demand
    keep: dict[str, int]
    start: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    unloaded: bool = False
    crowded: bool = False
    without_old_code: bool = False
    trial: CodeTrial = CodeTrial.NOW

    @property
    def kept(self) -> int:
        return sum(self.keep.values())

    def kept_on(self, resource: str) -> int:
        """Its workers that use the machine's memory, which all do, or that of this device."""
        return self.kept if resource == MACHINE else self.keep.get(resource, 0)

    @property
    def size(self) -> int:
        return self.kept + sum(self.start.values())

    @property
    def needs_its_first(self) -> bool:
        """A pool whose last worker has died keeps its place for the next one."""
        d = self.demand
        return d.wanted > 0 and not self.size and not self.unloaded and (d.due > 0 or d.resident)

    @property
    def idle(self) -> bool:
        return not (self.demand.due or self.demand.busy)

    @property
    def surplus(self) -> int:
        """How many spares it keeps. Nobody has to wait for them."""
        d = self.demand
        return 0 if d.replacing else min(d.spares, self.kept - d.wanted)

    def waited(self, now: float) -> float:
        """For how long its oldest job waits, but only since the pool lost its place: before, it had its turn."""
        d = self.demand
        return d.oldest_wait if d.absent_since is None else min(d.oldest_wait, now - d.absent_since)

    def urgency(self, now: float) -> tuple[bool, float]:
        return not self.demand.resident, -self.waited(now)

    def used(self, resource: str) -> int:
        crews = self.demand.crews
        if resource == MACHINE:
            return sum(crew.used for crew in crews.values())
        return crews[resource].on_device if resource in crews else 0

    def grant(self) -> Grant:
        return Grant(self.keep, self.start, self.reason, self.unloaded, self.crowded, self.without_old_code, self.trial)


class Step(NamedTuple):
    """One worker fewer of a pool on a device, or a template without workers (None), and the bytes that this frees."""

    share: Share
    device: str | None
    frees: Bytes
    ends_template: bool = False


def estimated(demand: Demand, guess: Need) -> Demand:
    """Workers that have not been measured count as the largest of the others: in their set-up they are still small."""
    if demand.need is not None:
        return demand

    def estimated(crew: Crew) -> Crew:
        workers = crew.staying + crew.leaving
        return crew._replace(
            used=max(crew.used, workers * guess.worker), on_device=max(crew.on_device, workers * guess.device)
        )

    return demand._replace(crews={device: estimated(crew) for device, crew in demand.crews.items()})


def expected(template: Template, image: str, demands: Sequence[Demand], guess: Need) -> Template:
    """With what one that is loading will use."""
    if not template.loading:
        return template
    needs = [demand.need or guess for demand in demands if demand.image == image]
    return template._replace(used=template.used + max((need.template for need in needs), default=0))


def least_recently_used(share: Share) -> float:
    return share.demand.idle_since or 0.0
