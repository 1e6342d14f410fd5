"""The PostgreSQL engine: a server, and supervisors on any number of hosts. It needs the extra `postgres`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from supervisor.domain.job import decoded
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.callers import PostgresTransactionalInsert
from supervisor.store.postgres.changes import PostgresChanges
from supervisor.store.postgres.claims import PostgresClaims
from supervisor.store.postgres.connection import LOCK_TIMEOUT, Connection
from supervisor.store.postgres.database import PostgresDatabase
from supervisor.store.postgres.maintenance import PostgresMaintenance
from supervisor.store.postgres.operations import operations as operations_on
from supervisor.store.postgres.ownership import ownership as ownership_at
from supervisor.store.postgres.producer import PostgresProducer
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.operations import SqlOperations

if TYPE_CHECKING:
    from supervisor.store.postgres.move import PostgresMoveEnd

__all__ = ["PostgresEngine"]

_PATIENCE_TO_LISTEN = {"connect_timeout": 2}  # seconds: whoever listens does other things, too


class PostgresEngine:
    """Implements `store.base.Engine` for `postgresql://user@host/database`.

    `listening` is a URL of the same database that leads to the server itself, where `url` is a pooler's.
    """

    def __init__(self, url: str, listening: str | None = None) -> None:
        self._address = Address(url)
        self._listening = None if listening is None else Address(listening, _PATIENCE_TO_LISTEN)
        self.url = url
        self.database = PostgresDatabase(self._address)
        self.ownership = ownership_at(self._address)
        self.transactional = PostgresTransactionalInsert(self._address, self.database.migrate)

    def meta(self, job_id: int) -> Any:
        with closing(Connection(self._address)) as connection:
            row = connection.row(QUERIES.job_meta, {"id": job_id})
            return None if row is None else decoded(row[0])

    def producer(self, *, create: bool = True) -> PostgresProducer:
        connection = Connection(self._address)
        try:
            if create:
                schema.migrate(connection)
            else:
                schema.require_current(connection)
        except BaseException:
            connection.close()
            raise
        return PostgresProducer(connection)

    def claims(self, patience: float | None = None, *, keep_done: bool = True) -> PostgresClaims:
        connection = Connection(
            self._address,
            durable=False,
            announce=True,
            patience=LOCK_TIMEOUT if patience is None else max(patience, 0.001),
        )
        connection.check()
        return PostgresClaims(connection, keep_done=keep_done)

    def maintenance(self) -> PostgresMaintenance:
        return PostgresMaintenance(self._address, self._listening or self._address)

    def operations(self) -> SqlOperations:
        connection = Connection(self._address, announce=True)
        try:
            schema.require_current(connection)
        except BaseException:
            connection.close()
            raise
        return operations_on(connection)

    def move_end(self, *, planned: bool = False) -> PostgresMoveEnd:
        from supervisor.store.postgres.move import move_end  # rarely needed

        return move_end(self._address, planned=planned)

    def changes(self, *, ends: bool = False) -> PostgresChanges:
        listening = None if self._listening is None else Connection(self._listening)
        return PostgresChanges(Connection(self._address), listening, ends=ends)
