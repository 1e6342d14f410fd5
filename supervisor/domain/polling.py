"""When something that has failed is tried again, and when somebody who waits for changes looks again."""

from __future__ import annotations


def backoff(first: float, failures: int, longest: float) -> float:
    """Seconds to wait after so many failures in a row: `first` after one, twice as long after each further one."""
    return min(first * 2.0 ** min(failures - 1, 64), longest)


_SHARE = 20  # resting takes so many times as long as looking
_LEAST = 0.005  # seconds of a rest: beside a busy database, few more looks find something
_MOST = 1.0  # seconds of a rest, however long a look took
_SAVED = 0.002  # seconds of looking that can be saved up: what is rarely done is done at once


class Pace:
    """A look costs the CPU time that it takes: on a busy machine it may take long and cost little."""

    def __init__(self) -> None:
        self._saved = _SAVED
        self._ended = 0.0

    def rest_after(self, ended: float, cost: float) -> float:
        """The seconds to rest after a look that ended at this monotonic second and cost so many seconds."""
        saved = self._saved + (ended - self._ended - cost) / _SHARE
        # Whoever begins to wait looks at once: what is left of the rest before that is not made up for.
        self._saved, self._ended = min(_SAVED, max(0.0, saved)) - cost, ended
        return 0.0 if self._saved >= 0 else min(_MOST, max(_LEAST, -self._saved * _SHARE))
