"""What every fault must leave behind: nothing lost, nothing unexpected, one outcome a job, a whole file.

The oracle is the ledger, which handlers write outside the database, and a count of the outcomes recorded,
which a trigger of the test's own keeps inside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from supervisor import Status
from tests.site_under_test import Site

_FINISHED = "'done', 'failed', 'cancelled', 'quarantined'"


def audit(site: Site) -> None:
    """Have every outcome counted from now on."""
    site.rows("CREATE TABLE outcomes (job INTEGER, status TEXT)")
    site.rows(
        f"CREATE TRIGGER audit AFTER UPDATE OF status ON jobs"
        f" WHEN NEW.status IN ({_FINISHED}) AND OLD.status NOT IN ({_FINISHED})"
        f" BEGIN INSERT INTO outcomes VALUES (NEW.id, NEW.status); END"
    )


def judge(
    site: Site,
    jobs: Collection[int],
    *,
    hit: Collection[int] = (),
    status: Status = Status.DONE,
    others: Collection[int] = (),
) -> None:
    """All of `jobs` have ended so, each with one recorded outcome, and only those that a fault `hit` ran twice.

    Of `others` the test has its own opinion.
    """
    ended = dict(site.rows("SELECT id, status FROM jobs WHERE type <> 'never'"))
    lost = [job for job in jobs if ended.get(job) != status.value]
    assert not lost, f"lost: {[site.job(job) for job in lost]}\n{site.log.read_text()[-4000:]}"
    unexpected = (set(ended) | set(_runs(site))) - {*jobs, *others}
    assert not unexpected, f"nobody enqueued {unexpected}"
    outcomes = Counter(job for (job,) in site.rows("SELECT job FROM outcomes"))
    assert all(outcomes[job] == 1 for job in jobs), f"not one outcome each: {outcomes}"
    repeated = {job for job, count in _runs(site).items() if count > 1} - {*hit, *others}
    assert not repeated, f"ran again without a fault: {repeated}"
    assert site.rows("PRAGMA integrity_check") == [("ok",)]


def _runs(site: Site) -> Counter[int]:
    """How often each job's handler has begun."""
    if not site.ledger.exists():
        return Counter()
    lines = [line.split() for line in site.ledger.read_text().splitlines()]
    return Counter(int(fields[1]) for fields in lines if fields[0] == "start")
