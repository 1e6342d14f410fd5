"""What futures of asyncio cannot hold."""

from __future__ import annotations


def holdable(error: BaseException) -> BaseException:
    """The error itself, or another one in place of a StopIteration, for which who awaits it would wait for ever, and of
    a GeneratorExit, which would close the coroutines that await it.
    """
    if not isinstance(error, (StopIteration, GeneratorExit)):
        return error
    stopped = RuntimeError(f"the call raised {type(error).__name__}")
    stopped.__cause__ = error
    return stopped
