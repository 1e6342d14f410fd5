"""What exceptions of handlers say about memory, without the libraries that raise them."""

from __future__ import annotations

from supervisor.worker.context import JobInterrupted
from supervisor.worker.outcomes import Reported

_DEEPEST = 8  # causes of an error


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
