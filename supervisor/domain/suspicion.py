"""A worker died after a job had ended and before its outcome was committed: one of its jobs may have ruined it."""

from __future__ import annotations

from typing import NamedTuple

_MOST = 64  # jobs that are remembered


class Suspicion(NamedTuple):
    """What a pool remembers of such deaths. Nobody is charged the first time; `jobs` ended last before one.

    As long as `needed` is not 0, its next workers are cautious: they commit after each job. One of them that has
    committed as many as were suspected ends that.
    """

    jobs: tuple[int, ...] = ()
    needed: int = 0

    @property
    def cautious(self) -> bool:
        return self.needed > 0

    def died(self, uncommitted: int, last_job: int) -> Suspicion:
        """A worker has taken so many outcomes with it."""
        if not uncommitted:
            return self
        jobs = (*(job for job in self.jobs if job != last_job), last_job)[-_MOST:]
        return self._replace(jobs=jobs, needed=max(self.needed, uncommitted))

    def accused(self, job: int) -> Suspicion:
        """It was charged, and will be back: whoever meets it then should be cautious, too."""
        return self._replace(jobs=(*(j for j in self.jobs if j != job), job)[-_MOST:], needed=max(self.needed, 1))

    def committed(self, jobs: int) -> Suspicion:
        """A cautious worker has committed so many."""
        return self._replace(needed=0) if jobs > self.needed else self
