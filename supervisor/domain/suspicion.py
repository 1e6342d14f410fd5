"""A worker died after a job had ended and before its outcome was committed: one of its jobs may have caused that."""

from __future__ import annotations

from typing import NamedTuple

_MOST = 64  # jobs that are remembered


class Suspicion(NamedTuple):
    """What a pool remembers of such deaths. No job is charged the first time; `jobs` were the last to end before one.

    While `needed` is not 0, its next workers are cautious: they commit after each job. This ends when one of them has
    committed as many jobs as were suspected.
    """

    jobs: tuple[int, ...] = ()
    needed: int = 0

    @property
    def cautious(self) -> bool:
        return self.needed > 0

    def died(self, uncommitted: int, last_job: int) -> Suspicion:
        """A worker died with this many outcomes uncommitted."""
        if not uncommitted:
            return self
        jobs = (*(job for job in self.jobs if job != last_job), last_job)[-_MOST:]
        return self._replace(jobs=jobs, needed=max(self.needed, uncommitted))

    def accused(self, job: int) -> Suspicion:
        """It was charged, and will run again: its next worker should be cautious, too."""
        return self._replace(jobs=(*(j for j in self.jobs if j != job), job)[-_MOST:], needed=max(self.needed, 1))

    def committed(self, jobs: int) -> Suspicion:
        """A cautious worker has committed this many."""
        return self._replace(needed=0) if jobs > self.needed else self
