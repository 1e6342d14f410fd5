"""The longest that one of 12 saturated workers waits for its next job while all of them fight for the
write lock: from the end of one handler to the first line of the next in the same process. Where the workers
are threads, that is no worker's wait, so such a peer is left out.
"""

from __future__ import annotations

from functools import partial

from bench import ours
from bench.contestant import Contestant
from bench.drain import drain
from bench.trial import AS_SAID, Reading, Session, Trial

TITLE = "The longest claim wait of 12 saturated workers"
UNITS = {"claim wait": "ms"}
ROUNDS = AS_SAID
WORKERS = 12


def trials(session: Session) -> list[Trial]:
    on_sqlite = [peer for peer in session.peers if peer.store.startswith("SQLite") and not peer.threads]
    contestants: list[Contestant] = [ours.AUTO, ours.ONE, *on_sqlite]
    return [Trial(one.name, str(WORKERS), partial(_measure, session, one)) for one in contestants]


def _measure(session: Session, contestant: Contestant) -> Reading:
    with session.scratch() as folder:
        count, _ = drain(folder, contestant, WORKERS, contestant.size * 2, session.pick(4.0, 2.0))
    return {"claim wait": [count.longest * 1000]}
