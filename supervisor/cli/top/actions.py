"""Changes to the database that keys can request. The rules are those of the other commands, in `ops.commands`."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.domain.text import counted, pending_again
from supervisor.ops import commands
from supervisor.store.base import Filter, Operations


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause all of these types, or resume them."""

    types: tuple[str, ...]
    paused: bool

    def perform(self, operations: Operations, now: float) -> str:
        for type_ in self.types:
            if self.paused:
                operations.controls.pause(type_, now)
            else:
                operations.controls.resume(type_)
        names = ", ".join(self.types)
        return f"{names}: {'paused' if self.paused else 'resumed'}"


@dataclass(frozen=True, slots=True)
class Scale:
    """Fix a pool's size; None returns it to automatic scaling."""

    pool: str
    workers: int | None

    def perform(self, operations: Operations, now: float) -> str:
        commands.scale(operations, self.pool, self.workers, (), now)
        return f"pool {self.pool} " + (
            "scales automatically" if self.workers is None else f"now has {counted(self.workers, 'worker')}"
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry the unsuccessful jobs of these types, unless there are more now than the user agreed to."""

    types: tuple[str, ...]
    agreed: int

    def perform(self, operations: Operations, now: float) -> str:
        ids = operations.jobs.ids(Filter(commands.UNSUCCESSFUL, self.types))
        if len(ids) > self.agreed:
            return f"nothing was changed: now {len(ids)} jobs have failed"
        retried = operations.actions.retry(ids, now)
        duplicates = len(retried.duplicates)
        return pending_again(retried.changed, len(ids) - retried.changed - duplicates, duplicates)


@dataclass(frozen=True, slots=True)
class Cancel:
    job: int

    def perform(self, operations: Operations, now: float) -> str:
        commands.check(operations, "cancel", [self.job])
        finished = operations.actions.cancel(self.job, now).finished
        return f"job {self.job} " + ("cancelled" if finished else "was asked to stop")


Action = Pause | Scale | Retry | Cancel
