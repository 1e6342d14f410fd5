"""What keys may ask of the database. The rules are those of the other commands, in `operating`."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.ops import commands
from supervisor.store.base import Filter, Operations


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause all of these types, or let them go on."""

    types: tuple[str, ...]
    paused: bool

    def perform(self, operations: Operations, now: float) -> str:
        for type_ in self.types:
            if self.paused:
                operations.controls.pause(type_, now)
            else:
                operations.controls.resume(type_)
        names = ", ".join(self.types)
        return f"{names} {_are(self.types)} paused" if self.paused else f"{names} {_go(self.types)} on"


@dataclass(frozen=True, slots=True)
class Scale:
    """Fix a pool's size; None gives it back to the supervisor."""

    pool: str
    workers: int | None

    def perform(self, operations: Operations, now: float) -> str:
        commands.scale(operations, self.pool, self.workers, (), now)
        return f"{self.pool} scales by itself" if self.workers is None else f"{self.pool} is set to {self.workers}"


@dataclass(frozen=True, slots=True)
class Retry:
    """Put the unsuccessful jobs of these types back, unless there are more than somebody has agreed to."""

    types: tuple[str, ...]
    agreed: int

    def perform(self, operations: Operations, now: float) -> str:
        ids = operations.jobs.ids(Filter(commands.UNSUCCESSFUL, self.types))
        if len(ids) > self.agreed:
            return f"nothing was changed: {len(ids)} jobs have failed by now"
        retried = operations.actions.retry(ids, now)
        skipped = len(ids) - retried
        return counted(retried, "pending again") + (f", {skipped} skipped" if skipped else "")


@dataclass(frozen=True, slots=True)
class Cancel:
    job: int

    def perform(self, operations: Operations, now: float) -> str:
        commands.check_cancel(operations, [self.job])
        finished = operations.actions.cancel(self.job, now).finished
        return f"job {self.job} " + ("is cancelled" if finished else "was asked to stop")


Action = Pause | Scale | Retry | Cancel


def counted(number: int, what: str) -> str:
    return f"{number} {'job' if number == 1 else 'jobs'} {what}".rstrip()


def _are(names: tuple[str, ...]) -> str:
    return "is" if len(names) == 1 else "are"


def _go(names: tuple[str, ...]) -> str:
    return "goes" if len(names) == 1 else "go"
