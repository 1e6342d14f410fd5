"""An old backup takes the database's place: whoever is named in it as an owner is dead."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.surroundings import GATED, command
from tests.site_under_test import MakeSite, Site

POOL = """
[pools.work]
types = ["work"]
handler = "jobs:gated"
workers = 2
lock_time = "10m"
"""


@pytest.mark.sqlite
@pytest.mark.fault(25)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_jobs_of_an_old_backup_run_again_at_once(make_site: MakeSite, end: signal.Signals) -> None:
    """The owners in it have ended long ago; their locks, which hold for ten minutes, are not waited for."""
    site = make_site(POOL, GATED)
    gate = site.folder / "gate"
    supervisor = site.start()
    before = site.queue.enqueue("work")
    site.done(before)
    running = site.queue.enqueue_many("work", [{"gate": str(gate)}] * 2)
    waiting = site.queue.enqueue_many("work", [{}] * 3)
    for job in running:
        site.running_pid(job)
    command(site, "backup", str(site.folder / "copy.db"))
    known = site.ledger.read_text()
    gate.touch()
    for job in running + waiting:
        site.done(job)
    after = site.queue.enqueue("work")
    site.done(after)
    site.stop(supervisor, end)
    restore(site, site.folder / "copy.db")
    site.ledger.write_text(known)  # what has happened since is forgotten with the file, its claims' tokens too
    site.start()
    for job in running + waiting:
        site.done(job)
    site.verdict(hit=running, gone=[after])
    assert [len(site.runs("start", job)) for job in running + waiting] == [2, 2, 1, 1, 1]
    new = site.queue.enqueue("work")
    site.done(new)


def restore(site: Site, copy: Path) -> None:
    """As deploy/README.md tells it."""
    site.database.rename(site.database.with_suffix(".newer"))
    for end in ("-wal", "-shm"):
        Path(f"{site.database}{end}").unlink(missing_ok=True)
    shutil.copy(copy, site.database)
