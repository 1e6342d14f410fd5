"""A commit whose answer was lost: the server knows what became of the transaction, by its number.

After a crash or a failover another transaction may have that number, so a job that was inserted must be there, too."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisor.domain.errors import EnqueueUncertain, StoreError
from supervisor.store.postgres.driver_errors import translated

if TYPE_CHECKING:
    from supervisor.store.postgres.connection import Connection
    from supervisor.store.postgres.inserting import Inserted

_PATIENCE = 5.0  # seconds until the server can be asked


def resolve(connection: Connection, inserted: Inserted | None, error: BaseException) -> None:
    """Returns if the transaction has committed.

    Raises StoreError if it has not, or if it inserted nothing that must not be inserted twice; EnqueueUncertain if
    nobody can tell.
    """
    failed = translated(error, connection.address.shown)
    if inserted is None:
        raise failed from None
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            row = connection.row(connection.queries.transaction_status, inserted._asdict())
        except StoreError:
            time.sleep(0.1)
            continue
        status = row[0] if row else None
        if row and status == "committed":
            if row[1]:
                return
            break
        if status == "aborted":
            raise failed from None
        if status is None:
            break
        time.sleep(0.05)  # in progress: its session has not noticed yet
    raise EnqueueUncertain(
        f"{connection.address.shown}: the connection was lost during the commit, so it is unknown whether the jobs "
        "were stored; look before you enqueue them again, or use a unique_key"
    ) from None
