"""Templates that die after they were ready: some job kills them, and with them all their workers.

No job is charged for the first such death: it may be an accident, and it is unknown which job it was. From the
second death within a time window, the pools of that template are isolated: each gets a template of its own and one
worker at a time, so that the next death identifies one job.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

ISOLATED_FROM = 2  # deaths
_MEMORY = 900.0  # seconds after which a death is forgotten
_QUIET = 30.0  # seconds without a death that end an isolation, doubled with each further death
_LONGEST_QUIET = 600.0
_FIRST = 0.1  # seconds until the next template, doubled with each further death
_LONGEST = 30.0


@dataclass(frozen=True, slots=True)
class TemplateDeaths:
    """The deaths of a pool's templates. Times are monotonic seconds, oldest first; `charged` counts a job's crashes."""

    at: tuple[float, ...] = ()
    charged: dict[int, int] = field(default_factory=dict)

    def died(self, now: float) -> TemplateDeaths:
        return replace(self, at=(*(t for t in self.at if now - t < _MEMORY), now)[-32:])

    def charge(self, job: int, max_crashes: int) -> TemplateDeaths:
        """One job was charged; when it is permanently out of the queue, the record is cleared."""
        crashes = self.charged.get(job, 0) + 1
        return TemplateDeaths() if crashes >= max_crashes else replace(self, charged={**self.charged, job: crashes})

    @property
    def not_before(self) -> float:
        """The earliest time for the next template to start."""
        if len(self.at) < ISOLATED_FROM:
            return 0.0
        return self.at[-1] + min(_FIRST * 2.0 ** (len(self.at) - ISOLATED_FROM), _LONGEST)

    def isolated(self, now: float) -> bool:
        return now < self.isolated_until

    @property
    def isolated_until(self) -> float:
        further = len(self.at) - ISOLATED_FROM
        return 0.0 if further < 0 else self.at[-1] + min(_QUIET * 2.0**further, _LONGEST_QUIET)
