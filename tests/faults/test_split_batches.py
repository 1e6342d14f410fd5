"""A batch that is split to find the job that kills: what has succeeded is committed before the next part runs."""

from __future__ import annotations

from collections import Counter

import pytest

from supervisor import Status
from tests.ledger import Ledger
from tests.processes.test_batches import HANDLERS, POOL
from tests.site_under_test import MakeSite


@pytest.mark.fault(53)
@pytest.mark.parametrize("places", [[15], [7], [3, 12]])
def test_no_job_that_has_succeeded_runs_again_for_another_parts_crash(make_site: MakeSite, places: list[int]) -> None:
    site = make_site(POOL, HANDLERS)
    ids = site.queue.enqueue_many("batch", [{"do": "segfault"} if n in places else {} for n in range(16)])
    killers = [ids[place] for place in places]
    site.start()
    for job in ids:
        ended = site.queue.wait(job, timeout=40)
        assert ended.status is (Status.QUARANTINED if job in killers else Status.DONE)
    ends = Counter(line.job for line in Ledger(site.ledger, site.database).lines() if line.what == "end")
    assert ends == Counter(job for job in ids if job not in killers)
    assert [site.job(job).crashes for job in ids if job not in killers] == [0] * (16 - len(killers))


@pytest.mark.fault(53)
def test_no_job_that_has_succeeded_runs_again_for_another_parts_time_limit(make_site: MakeSite) -> None:
    site = make_site(POOL.replace("batch_size", 'timeout = "300ms"\nbatch_size'), HANDLERS)
    ids = site.queue.enqueue_many("batch", [{"do": "hang"} if n == 11 else {} for n in range(16)])
    site.start()
    for job in ids:
        site.queue.wait(job, timeout=40)
    ends = Counter(line.job for line in Ledger(site.ledger, site.database).lines() if line.what == "end")
    assert ends == Counter(job for job in ids if job != ids[11])
    assert site.job(ids[11]).status is Status.FAILED
