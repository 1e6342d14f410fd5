"""Lists of jobs by any filter, in pages, and failures put together by what they have in common."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.domain.job import Job, Status
from supervisor.domain.settlement import Failure, failed
from supervisor.store.base import Filter
from tests.store.kit import NOW, POLICY, Desk

ALL = 1000
TYPES = ("a", "b", "c")
ERRORS = {Status.FAILED: "no such picture", Status.QUARANTINED: "Worker DIED of it"}


def pages(desk: Desk, which: Filter, limit: int) -> list[int]:
    """What page after page shows, one turning over as long as there is a next."""
    found: list[int] = []
    before = None
    while True:
        page = desk.operations.page(which, before=before, limit=limit)
        assert len(page.jobs) <= limit
        found += [job.id for job in page.jobs]
        before = page.next
        if before is None:
            return found


def stock(desk: Desk, count: int = 120) -> list[Job]:
    """Jobs of every state, type, priority, with and without keys and requirements."""
    chance = random.Random(1)
    ids = []
    for number in range(count):
        fields = {
            "priority": chance.choice((0, 0, 5)),
            "unique_key": chance.choice((None, f"k{number % 7}-{number}")),
            "requires": chance.choice(("", "cpu", "cpu gpu")),
        }
        ids.append(desk.put(chance.choice(TYPES), **fields))
    for number, job_id in enumerate(ids):
        end(desk, job_id, chance.choice(list(Status)), NOW + number)
    return [desk.job(job_id) for job_id in ids]


def end(desk: Desk, job_id: int, status: Status, at: float) -> None:
    """Bring a pending job into this state."""
    if status is Status.PENDING:
        return
    if status is Status.CANCELLED:
        desk.operations.cancel(job_id, at)
        return
    type_ = desk.job(job_id).type
    claims = desk.claim([type_], ALL, owner="finisher", now=at, capabilities="cpu gpu")
    [claim] = [claim for claim in claims if claim.job_id == job_id]
    message = ERRORS.get(status, "")
    ending = failed(claim, Failure("exception", message), POLICY, chance=0.5, permanent=True)
    if status is Status.RUNNING:
        desk.claims.register  # noqa: B018
    else:
        ending = replace(ending, status=status, failure=ending.failure if message else None)
        assert desk.settle(ending, owner="finisher", now=at) == []
    keep = {job_id} if status is Status.RUNNING else set()
    rest = [c for c in desk.chores.held_by("finisher") if c.job_id not in keep]
    assert rest is not None
