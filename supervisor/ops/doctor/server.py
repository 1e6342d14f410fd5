"""A database server and the hosts that use it: clocks, leases, connections, rights."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import closing

from supervisor.domain.errors import StoreError, StoreOutdated
from supervisor.domain.text import counted, text_of
from supervisor.maintenance.lease import read_published
from supervisor.ops.diagnosis import Finding, fault, good, note, warning
from supervisor.ops.posted import Seen, seen
from supervisor.store.base import Engine, ServerState

_WRONG = 2.0  # seconds that a clock may differ
_OF_A_SUPERVISOR, _OF_A_WORKER = 3, 2  # connections at most
_HEARD = 3.0  # seconds for a notification
_POOLER = "a pooler, such as PgBouncer in transaction mode, stands before the server"


def examine(engine: Engine, *, listening: bool = False) -> Iterator[Finding]:
    """Nothing for a database that has no tables yet. `listening`: there is a `listen_database`."""
    try:
        operations = engine.operations()
    except StoreOutdated as error:
        yield fault("database", str(error), "see the error; nothing was changed")
        return
    except StoreError as error:
        yield note("database", str(error), "`supervisor migrate` or `supervisor run` makes them")
        return
    with closing(operations):
        began = time.time()
        server = operations.statistics.server()
        if server is None:
            return
        if server.standby:
            yield fault("server", "it is a standby, or read-only", "name the primary in the URL")
        yield from pooling(engine, server, listening=listening)
        found = list(seen(operations))
        yield from _clocks((began + time.time()) / 2 - server.time, found)
        yield from _leases(found)
        yield from _connections(server, found)
        yield from _rights(server)


def pooling(engine: Engine, server: ServerState, *, listening: bool) -> Iterator[Finding]:
    """Whether notifications are heard, where a pooler does not pass them on."""
    if not server.pooled:
        if listening:
            yield note("pooler", "no pooler stands before the server", "leave out listen_database")
        return
    if not listening:
        yield warning(
            "pooler",
            f"{_POOLER}: without a direct connection for notifications, a new job waits up to a second",
            "set listen_database to the URL of the server itself",
        )
        return
    deaf = _deaf(engine)
    if deaf:
        yield warning("pooler", f"{_POOLER}, and listen_database does not help: {deaf}", "name the server itself there")
    else:
        yield good("pooler", f"{_POOLER}; notifications come by the connection of listen_database")


def _deaf(engine: Engine) -> str:
    """Why a notification is not heard; empty if it is."""
    with closing(engine.changes()) as feed, closing(engine.maintenance()) as store:
        feed.version()
        if feed.problem:
            return feed.problem
        feed.resume()
        store.locks.writable()  # a transaction, which is announced
        waiting = select.poll()
        if (descriptor := feed.fileno()) is not None:
            waiting.register(descriptor, select.POLLIN)
        return "" if waiting.poll(_HEARD * 1000) and feed.drain() else "it leads to another database"


def _clocks(here: float, found: list[Seen]) -> Iterator[Finding]:
    """How far this host's clock, and those of the hosts with supervisors, are ahead of the server's."""
    advice = "synchronize it; jobs run by the server's clock, but logs and handlers show this one"
    posted = {
        text_of(one.record.host): float(read_published(one.lease.posted).clock)
        for one in found
        if one.lease is not None
    }
    wrong = {"this host": here, **posted}
    late = {host: ahead for host, ahead in wrong.items() if abs(ahead) >= _WRONG}
    for host, ahead in late.items():
        way = "ahead of" if ahead > 0 else "behind"
        yield warning("clocks", f"the clock of {host} is {abs(ahead):.0f} s {way} the server's", advice)
    if not late:
        count = counted(len(posted), "other supervisor", "supervisors") if posted else ""
        yield good("clocks", f"this host's agrees with the server's{f', and so do those of {count}' if count else ''}")


def _leases(found: list[Seen]) -> Iterator[Finding]:
    for one in found:
        if one.lease is not None and one.lease.left <= 0:
            yield warning(
                "leases",
                f"the lease of supervisor {one.record.pid} on {text_of(one.record.host)} has ended "
                f"{-one.lease.left:.0f} s ago",
                "another supervisor recovers its jobs, if one is running",
            )


def _connections(server: ServerState, found: list[Seen]) -> Iterator[Finding]:
    """Programs that enqueue come on top."""
    pools = [pool for one in found if one.alive is not False for pool in (one.status or {}).get("pools", {}).values()]
    sizes = [pool.get(key) for pool in pools for key in ("max_workers", "spares_wanted")]
    workers = sum(size for size in sizes if isinstance(size, int))
    most = _OF_A_SUPERVISOR * len(found) + _OF_A_WORKER * workers
    fact = f"{server.connections} of {server.max_connections} in use; the running supervisors need {most} at most"
    if server.pooled:
        yield good("connections", f"{fact}, of the pooler")
    elif max(most, server.connections) > server.max_connections * 0.9:
        yield warning("connections", fact, "raise max_connections of the server, or run fewer workers")
    else:
        yield good("connections", fact)


def _rights(server: ServerState) -> Iterator[Finding]:
    """What has become of dead rows is told with everything that is wrong with the running system."""
    if not server.sees_all:
        fact = "the transactions of other users are not visible to this user: one that slows down claims is named late"
        yield note("transactions", fact, "let a superuser GRANT pg_read_all_stats to this user")
    foreign = [table.name for table in server.tables if not table.may]
    if foreign:
        fact = f"this user does not own {text_of(foreign[0])} and {len(foreign) - 1} more: VACUUM is left to autovacuum"
        yield note("vacuum", fact, "no action needed, as long as autovacuum is on")
