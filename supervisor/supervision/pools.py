"""All pools, as the configuration and the operators want them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from supervisor.config.settings import PoolSettings
from supervisor.maintenance.maintainer import PoolInfo
from supervisor.maintenance.renewer import LockTimes
from supervisor.supervision.pool import Pool, Waiting


class Pools(dict[str, Pool]):
    """By name. One that is no longer in the configuration stays, `closing`, until its last worker has left."""

    def configure(self, wanted: Mapping[str, PoolSettings]) -> list[str]:
        """Make what is missing; those that are there go on. Returns the names of the closing ones.

        Raises OSError where no descriptor can be had, and then nothing has changed.
        """
        wakes = _eventfds([name for name in wanted if name not in self])
        reloading = bool(self)
        for name, settings in wanted.items():
            if name in self:
                self[name].reconfigure(settings)
            else:
                self[name] = Pool(settings, wakes[name], untried=reloading)
        for name, pool in self.items():
            pool.closing = name not in wanted
        return [name for name, pool in self.items() if pool.closing]

    def pool_infos(self) -> dict[str, PoolInfo]:
        """What the maintainer must know of those that take jobs."""
        return {name: pool.info() for name, pool in self.items() if not pool.closing}

    def leaving(self) -> dict[str, LockTimes]:
        """And of those whose workers finish theirs."""
        return {name: pool.info().locks for name, pool in self.items() if pool.closing}

    def sharing(self, pool: Pool) -> dict[str, Pool]:
        """The pools that share this one's template."""
        return {name: other for name, other in self.items() if not other.closing and other.image == pool.image}

    def take_depths(self, depths: Mapping[str, Any]) -> None:
        """What the maintainer has measured."""
        for name, depth in depths.items():
            if name in self:
                self[name].waiting = Waiting(depth["due"], depth["oldest_age"], depth["at"])

    def take_sizes(self, sizes: Mapping[str, int]) -> None:
        """What operators have set."""
        for name, pool in self.items():
            pool.fixed = sizes.get(name)

    def remove(self, pool: Pool) -> None:
        """Its last worker has left."""
        del self[pool.name]
        pool.close()


def _eventfds(names: Iterable[str]) -> dict[str, int]:
    """One for each name. Raises OSError, and then keeps none open."""
    made: dict[str, int] = {}
    try:
        for name in names:
            made[name] = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
    except OSError as error:
        for descriptor in made.values():
            os.close(descriptor)
        raise OSError(f"no pool can be added: {error.strerror}") from error
    return made
