"""Running jobs that somebody wants stopped: asked, interrupted, killed; whatever comes of it, they do not run again."""

from __future__ import annotations

from collections.abc import Callable

from supervisor import Status
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]


def test_a_running_job_can_be_cancelled(make_site: MakeSite) -> None:
    site = make_site(
        """
        [pools.patient]
        handler = "jobs:patient"
        workers = 1
        """,
        "import time\ndef patient(payload, ctx):\n    while not ctx.cancelled:\n        time.sleep(0.01)\n"
        "    time.sleep(30)\n",
    )
    site.start()
    job = site.queue.enqueue("patient")
    wait_for(lambda: site.job(job).status is Status.RUNNING, "it to run")
    site.rows("UPDATE jobs SET cancel_requested_at = 1 WHERE id = ?", job)
    ended = site.queue.wait(job, timeout=20)
    assert ended.status is Status.CANCELLED


def test_a_cancelled_job_never_runs_again_whatever_its_run_ended_with(make_site: MakeSite) -> None:
    site = make_site(
        """
        [pools.cleanly]
        handler = "jobs:cleanly"
        workers = 1
        [pools.hard]
        handler = "jobs:hard"
        workers = 1
        """,
        "import os, time\n"
        "def cleanly(payload, ctx):\n    while not ctx.cancelled:\n        time.sleep(0.01)\n"
        "    raise RuntimeError('stopped as asked')\n"
        "def hard(payload, ctx):\n    while not ctx.cancelled:\n        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), 9)\n",
    )
    site.start()
    for kind in ("cleanly", "hard"):
        job = site.queue.enqueue(kind)
        wait_for(lambda job=job: site.job(job).status is Status.RUNNING, "it to run")
        site.rows("UPDATE jobs SET cancel_requested_at = 1 WHERE id = ?", job)
        assert site.queue.wait(job, timeout=20).status is Status.CANCELLED, kind
