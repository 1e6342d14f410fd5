"""A worker woken by a post claims at once, without a look at the table first."""

from __future__ import annotations

import pytest

from supervisor.store.base import JobSelector
from tests.store.kit import LOCK, NOW, Desk


@pytest.mark.parametrize("posted", [False, True])
def test_a_post_is_believed_and_a_job_without_one_is_found(desk: Desk, posted: bool) -> None:
    looks: list[str] = []
    desk.claims._connection.raw.set_trace_callback(looks.append)
    job_id = desk.put()

    found = desk.claims.settle_and_claim("w1", [], JobSelector(("tag",)), 1, LOCK, NOW, posted=posted)

    assert [claim.job_id for claim in found.claims] == [job_id]
    locked = next(n for n, statement in enumerate(looks) if statement.startswith("BEGIN"))
    assert locked == (0 if posted else 1)
