"""What every engine's producer shares: looking at jobs, and putting one alone."""

from __future__ import annotations

import json
from collections.abc import Collection

from supervisor.domain.job import Job, JobEvent, NewJob
from supervisor.store.sql.connection import Opened
from supervisor.store.sql.rows import event_of, job_of


class SqlProducer:
    """Implements a part of `store.base.Producer`."""

    def __init__(self, connection: Opened) -> None:
        self._connection = connection

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

    def close(self) -> None:
        self._connection.close()
