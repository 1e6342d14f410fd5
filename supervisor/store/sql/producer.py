"""What every engine's producer shares: looking at jobs, and putting one alone."""

from __future__ import annotations

import json
import time
from collections.abc import Collection

from supervisor.domain.job import Job, JobEvent, NewJob
from supervisor.store.moving import MOVED_TO
from supervisor.store.sql.connection import Opened
from supervisor.store.sql.rows import event_of, job_of

_LOOK_EVERY = 0.5  # seconds


class SqlProducer:
    """Implements a part of `store.base.Producer`."""

    def __init__(self, connection: Opened) -> None:
        self._connection = connection
        self._look_at = time.monotonic() + _LOOK_EVERY

    def put(self, job: NewJob) -> tuple[int, bool]:
        raise NotImplementedError

    def _put_alone(self, job: NewJob) -> tuple[int, bool] | Exception:
        try:
            return self.put(job)
        except Exception as error:
            return error

    def job(self, job_id: int) -> Job | None:
        row = self._connection.row(self._connection.queries.job, {"id": job_id})
        return None if row is None else job_of(row)

    def events(self, ids: Collection[int]) -> dict[int, JobEvent]:
        rows = self._connection.rows(self._connection.queries.job_events, {"ids": json.dumps(list(ids))})
        return {row[0]: event_of(row) for row in rows}

    def moved_to(self) -> str:
        row = self._connection.row(self._connection.queries.meta, {"key": MOVED_TO})
        return "" if row is None else str(row[0])

    def gone(self) -> bool:
        """Looked up twice a second: inserts are refused at once, and looks may be late."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_EVERY
        return bool(self.moved_to())

    def close(self) -> None:
        self._connection.close()
