"""Recovery on a real store: what a dead supervisor's workers held goes back, and what they still claim as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.domain.job import Status
from supervisor.domain.settlement import done
from supervisor.maintenance.recovery import Recovery
from tests.store.kit import NOW, T0, Desk, supervisor_record, worker_record


def recovered(recovery: Recovery) -> tuple[int, int]:
    """Supervisors and jobs."""
    recovery.recovered.clear()
    recovery.run(NOW)
    return recovery.recovered["supervisors"], recovery.recovered["jobs"]


@pytest.fixture
def dead(desk: Desk, tmp_path: Path) -> None:
    """A supervisor whose lock is gone, with one worker."""
    desk.claims.register(worker_record("w1", "s1"))
    desk.maintenance.registry.register(
        supervisor_record("s1", desk.engine, "/nowhere", scoreboard=str(tmp_path / "gone"))
    )


@pytest.mark.usefixtures("dead")
def test_what_a_worker_claims_after_its_burial_goes_back_uncharged_as_well(desk: Desk) -> None:
    """Its supervisor died a moment ago, and it will; until then it goes on with its work."""
    first, second = desk.put(), desk.put(priority=-1)
    late = desk.one()
    recovery = Recovery(desk.maintenance.registry, desk.maintenance.locks, "s2")
    assert recovered(recovery) == (1, 1)
    assert desk.claims.held_by("w1") == []  # a server has ended its session; now it has another one
    assert desk.settle(done(late, None)) == [first]
    if desk.engine.ownership.lease_time:  # a server lets it claim nothing any more
        assert desk.claim(want=2) == []
        return
    assert [claim.job_id for claim in desk.claim(want=2)] == [first, second]

    assert recovered(recovery) == (0, 2)

    assert [desk.status(job_id) for job_id in (first, second)] == [Status.PENDING] * 2
    assert [(desk.job(job_id).crashes, desk.job(job_id).attempts) for job_id in (first, second)] == [(1, 0), (0, 0)]
    assert desk.job(second).scheduled_at == T0
    assert recovered(recovery) == (0, 0)


@pytest.mark.usefixtures("dead")
def test_another_supervisors_jobs_are_never_touched(desk: Desk) -> None:
    desk.put()
    other = desk.one(owner="w2")
    recovery = Recovery(desk.maintenance.registry, desk.maintenance.locks, "s2")

    assert [recovered(recovery) for _ in range(6)] == [(1, 0), *[(0, 0)] * 5]
    assert desk.claims.held_by("w1") == []  # a server has ended the session, which both workers of this test use
    assert desk.settle(done(other, None), owner="w2") == []
