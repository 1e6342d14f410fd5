"""The PostgreSQL engine: a server, and supervisors on any number of hosts. It needs the extra `postgres`."""

from __future__ import annotations

from supervisor.store.base import Engine
from supervisor.store.moving import MoveEnd
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.changes import PostgresChanges
from supervisor.store.postgres.claims import PostgresClaims
from supervisor.store.postgres.connection import LOCK_TIMEOUT, Connection
from supervisor.store.postgres.maintenance import PostgresMaintenance, PostgresOwnership
from supervisor.store.postgres.maintenance import operations as operations_on
from supervisor.store.postgres.producer import PostgresProducer, PostgresTransactionalInsert
from supervisor.store.postgres.schema import PostgresDatabase
from supervisor.store.sql.stores import Operations

__all__ = ["PostgresEngine"]

_PATIENCE_TO_LISTEN = {"connect_timeout": 2}  # seconds: whoever listens does other things, too


class PostgresEngine(Engine):
    """For `postgresql://user@host/database`.

    `listening` is a URL of the same database that leads to the server itself, where `url` is a pooler's.
    """

    def __init__(self, url: str, listening: str | None = None) -> None:
        self._address = Address(url)
        self._listening = None if listening is None else Address(listening, _PATIENCE_TO_LISTEN)
        self.url = url
        self.database = PostgresDatabase(self._address)
        self.ownership = PostgresOwnership(self._address)
        self.transactional = PostgresTransactionalInsert(self._address, self.database.migrate)

    def producer(self, patience: float | None = None, *, create: bool = True) -> PostgresProducer:
        limit = LOCK_TIMEOUT if patience is None else max(patience, 0.001)  # 0 would be none for the server
        return PostgresProducer(_checked(Connection(self._address, patience=limit), create=create))

    def claims(self, *, keep_done: bool = True) -> PostgresClaims:
        connection = Connection(self._address, durable=False, announce=True)
        connection.check()
        return PostgresClaims(connection, keep_done=keep_done)

    def maintenance(self) -> PostgresMaintenance:
        return PostgresMaintenance(self._address)

    def operations(self) -> Operations:
        return operations_on(_checked(Connection(self._address, announce=True)))

    def move_end(self) -> MoveEnd:
        from supervisor.store.postgres.move import PostgresMoveEnd  # rarely needed

        return PostgresMoveEnd(self._address)

    def changes(self, *, ends: bool = False) -> PostgresChanges:
        listening = None if self._listening is None else Connection(self._listening)
        return PostgresChanges(Connection(self._address), listening, ends=ends)


def _checked(connection: Connection, *, create: bool = False) -> Connection:
    """Closed if it has no tables of ours that can be used. Raises StoreError."""
    try:
        if create:
            schema.migrate(connection)
        else:
            schema.require_version(connection).require_usable()
    except BaseException:
        connection.close()
        raise
    return connection
