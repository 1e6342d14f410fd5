"""Whether the image has the handlers of its pools: nobody else finds that out for a pool without workers."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.config.settings import PoolSettings
from supervisor.domain.text import shortened
from supervisor.worker.loader import Handler, HandlerError, find, load


def lacking(pools: Mapping[str, PoolSettings]) -> dict[str, str]:
    """The pools whose handler a worker would not find, with the reason. Their modules have been imported."""
    found = {}
    for name, pool in pools.items():
        try:
            if pool.preloads:
                _look_up(pool)
        except Exception as error:  # a module may define what happens when an attribute is looked up
            why = str(error) if isinstance(error, HandlerError) else f"{pool.handler}: {error!r}"
            found[name] = shortened(why)
    return found


def _look_up(pool: PoolSettings) -> None:
    """No instance of a class is made: what that opens or starts belongs in the worker alone."""
    if ":" not in pool.handler:
        load(pool.handler).insist_on(pool.types)
        return
    target = find(pool.handler)
    if not isinstance(target, type):
        Handler(target, pool.handler)
