"""How a run can end besides the exceptions of a handler: what the executor settles in a way of its own."""

from __future__ import annotations

from supervisor.domain.settlement import Failure
from supervisor.worker.context import JobInterrupted

_DEEPEST = 8  # causes of an error


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this, or what caused it, is a lack of memory: of this machine, or of a device.

    torch raises `torch.cuda.OutOfMemoryError`, earlier a RuntimeError "CUDA out of memory"; other libraries have
    classes of that name, too.
    """
    cause: BaseException | None = error
    for _ in range(_DEEPEST):
        if cause is None:
            break
        if _says_so(cause):
            return True
        cause = cause.__cause__
    return False


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, Reported):  # a program's exceptions come as text
        text = str(error).lower()
        return error.kind == "memory" or "out of memory" in text or "outofmemoryerror" in text
    if any(base.__name__ == "OutOfMemoryError" for base in type(error).__mro__):
        return True
    try:
        return isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    except JobInterrupted:
        raise
    except BaseException:  # its text is the handler's code
        return False
