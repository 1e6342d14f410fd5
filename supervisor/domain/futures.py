"""What futures of asyncio cannot hold."""

from __future__ import annotations


def holdable(error: BaseException) -> BaseException:
    """The error itself, or in place of a StopIteration, for which who awaits it would wait for ever, another one."""
    if not isinstance(error, StopIteration):
        return error
    stopped = RuntimeError(f"the call raised {type(error).__name__}")
    stopped.__cause__ = error
    return stopped
