"""When a failed or crashed job runs again, and when it has used its last attempt."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Literal

from supervisor.domain.errors import Retry

Backoff = Literal["exponential", "linear", "fixed"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How many attempts a job gets and how long it waits in between. `base` and `max` are seconds.

    `give_up_on` are names of exceptions after which another attempt is pointless.
    """

    max_attempts: int = 5
    backoff: Backoff = "exponential"
    base: float = 2.0
    max: float = 600.0
    jitter: float = 0.1
    give_up_on: tuple[str, ...] = ()

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after the given number of failures (1 = the first).

        `chance` in 0…1 places the delay within ± jitter, so that jobs that failed together do not run again
        together.
        """
        if self.backoff == "exponential":
            # 2 ** 64 s is beyond any max; the bound keeps huge counts from overflowing a float.
            delay = self.base * 2.0 ** min(failures - 1, 64)
        elif self.backoff == "linear":
            delay = self.base * failures
        else:
            delay = self.base
        return min(delay, self.max) * (1 + self.jitter * (2 * chance - 1))

    def gives_up_on(self, error: BaseException) -> bool:
        """Whether the exception or a class that it is derived from is listed: by name, with or without its module, or
        by the name under which another module exports it. Of a group of exceptions, each one must be; `Retry` never is.
        """
        if isinstance(error, Retry):
            return False
        if any(self._is(error, name) for name in self.give_up_on):
            return not (isinstance(error, BaseExceptionGroup) and error.subgroup(Retry))
        return isinstance(error, BaseExceptionGroup) and all(map(self.gives_up_on, error.exceptions))

    def _is(self, error: BaseException, name: str) -> bool:
        module, _, exported = name.rpartition(".")
        listed = getattr(sys.modules.get(module), exported, None)
        if isinstance(listed, type):
            return isinstance(error, listed)
        names = (
            {cls.__name__, cls.__qualname__, f"{cls.__module__}.{cls.__qualname__}"} for cls in type(error).__mro__
        )
        return any(name in each for each in names)

    def gives_up_after(self, message: str) -> bool:
        """The same for a program's error, which is known by a message that begins with its class."""
        name = message.partition(":")[0].strip()
        return any(listed in (name, name.rpartition(".")[2]) for listed in self.give_up_on)

    def limited(self, max_attempts: int | None) -> RetryPolicy:
        """For a job with this limit of its own, if it has one."""
        return replace(self, max_attempts=self.attempts_for(max_attempts))

    def attempts_for(self, max_attempts: int | None) -> int:
        """The limit of one job: its own if it has one, otherwise the pool's."""
        return self.max_attempts if max_attempts is None else max_attempts


def crash_delay(policy: RetryPolicy, crashes: int, chance: float) -> float:
    """Seconds until a job whose worker died runs again: at once the first time, then with backoff."""
    return 0.0 if crashes <= 1 else policy.delay(crashes - 1, chance)
