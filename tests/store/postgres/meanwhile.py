"""A call that waits for what another transaction has locked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from tests.store.kit import until

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Meanwhile:
    """A call in a thread; `waiting` is how many wait by then."""

    def __init__(self, watch: psycopg.Connection, call: Callable[[], Any], waiting: int = 1) -> None:
        self._answer: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._answer.append(call()))
        self._thread.start()
        until(lambda: watch.execute(_WAITING).fetchone() == (waiting,))

    def result(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self._answer[0]
