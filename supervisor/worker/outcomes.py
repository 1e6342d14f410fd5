"""How a run can end besides the exceptions of a handler: what the executor settles in a way of its own."""

from __future__ import annotations

from supervisor.domain.settlement import Failure


class Reported(Exception):
    """An ordinary failure, as the program reported it; the kinds "permanent" and "payload" are never retried.

    `after` is the delay in seconds before the next attempt, if the program asks for one; `stderr` is the end of what
    it printed in this run.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        after: float | None = None,
        traceback: str | None = None,
        stderr: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.after = after
        self.traceback = traceback
        self.stderr = stderr


class Crashed(Exception):
    """The program died with the job, or had to be killed for a violation: a crash, like a worker's death."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class BadPayload(Exception):
    """The row holds what no run can use, for example invalid JSON: another attempt cannot help."""


class NotBegun(Exception):
    """The program had died before it was given the job; the attempt does not count."""
