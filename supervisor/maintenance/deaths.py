"""Settle the jobs of workers that the supervisor has reported dead."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from supervisor.domain.policy import Charge, JobPolicy, settle_held, with_log
from supervisor.domain.settlement import Failure
from supervisor.maintenance.counting import Counter
from supervisor.store.base import Chores
from supervisor.system import tape


@dataclass(frozen=True, slots=True)
class DeathReport:
    """What the supervisor knows of a death. `job` 0 means that nothing had begun; `batch` is how many jobs had,
    together. The `slot` is still its own.
    """

    incarnation: str
    worker: str
    charge: Charge
    job: int = 0
    token: int = 0
    policy: str = ""
    failure: dict[str, Any] = field(default_factory=dict)
    slot: int = 0
    batch: int = 1

    def as_message(self) -> dict[str, Any]:
        return asdict(self)


class Deaths:
    """Settling a report twice is harmless: the second finds nothing held.

    `tapes` is where workers leave what their runs had said.
    """

    def __init__(self, chores: Chores, tapes: Path | None = None, counter: Counter | None = None) -> None:
        self._chores = chores
        self._tapes = tapes
        self._counter = counter or Counter()

    def settle(self, report: DeathReport, now: float) -> int:
        """One transaction; returns how many claims went back or ended. `now` is Unix seconds."""
        begun = (report.job, report.token) if report.job else None
        settlements = settle_held(
            self._chores.held_by(report.incarnation),
            begun,
            report.charge,
            Failure(**report.failure) if report.failure else Failure("crash", "the worker died"),
            JobPolicy.decode(report.policy),
            random.random(),
            report.batch,
        )
        if begun is not None and self._tapes is not None:
            settlements = with_log(settlements, begun, tape.said(self._tapes, report.slot, *begun))
        count = self._chores.settle_dead(report.incarnation, settlements, now, worker=report.worker)
        self._counter.settled(settlements, count, now)
        return count
