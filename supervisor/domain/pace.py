"""How long somebody who looks after each commit rests, so that looking costs a bounded share of a core."""

from __future__ import annotations

_SHARE = 20  # resting takes so many times as long as looking
_LEAST = 0.005  # seconds of a rest: beside a busy database, few more looks find something
_SAVED = 0.002  # seconds of looking that can be saved up: what is rarely done is done at once


class Pace:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._saved = _SAVED
        self._ended = 0.0

    def rest_after(self, began: float, ended: float) -> float:
        """The seconds to rest after a look."""
        self._saved = min(_SAVED, self._saved + (began - self._ended) / _SHARE) - (ended - began)
        self._ended = ended
        return 0.0 if self._saved >= 0 else max(_LEAST, -self._saved * _SHARE)
