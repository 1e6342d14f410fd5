"""Running jobs that somebody wants stopped: asked, interrupted, killed; whatever comes of it, they do not run again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from supervisor import Status
from supervisor.engine import open_engine
from tests.faults.programs import RECORD, program_site
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]


def cancel(site: Site, *jobs: int) -> None:
    """What `supervisor jobs cancel` does."""
    with contextlib.closing(open_engine(site.url).operations()) as operations:
        for job in jobs:
            assert operations.actions.cancel(job, time.time()) is Status.RUNNING


def last_run(site: Site, job: int) -> tuple[str, str | None]:
    """(outcome, log) of the one run of a job."""
    [row] = site.rows("SELECT outcome, log FROM job_runs WHERE job_id = ?", job)
    return row


STUBBORN = """
import sys, time
from ledger import record

def attentive(payload, ctx):
    print("working")
    record("start", ctx)
    while not ctx.cancelled:
        time.sleep(0.01)
    record("end", ctx)
    ctx.log.info("cleaned up")
    return "cleaned up"

def careless(payload, ctx):
    print("working")
    record("start", ctx)
    try:
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass
    finally:
        print("letting go")
        record("end", ctx)

def stubborn(payload, ctx):
    print("working", file=sys.stderr, flush=True)
    record("start", ctx)
    while True:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:
            record("end", ctx)
"""


def test_a_cancelled_handler_is_asked_then_interrupted_then_killed(make_site: MakeSite) -> None:
    names = ("attentive", "careless", "stubborn")
    pools = "".join(f"[pools.{name}]\nhandler = 'jobs:{name}'\nworkers = 1\n" for name in names)
    site = make_site("[defaults]\ncancel_grace = '2s'\nkill_grace = '2s'\n" + pools, STUBBORN)
    site.start()
    attentive, careless, stubborn = jobs = [site.queue.enqueue(name, {}) for name in names]
    pids = [site.running_pid(job) for job in jobs]
    asked = time.time()
    cancel(site, *jobs)

    ends = [site.queue.wait(job, timeout=30) for job in jobs]

    assert [job.status for job in ends] == [Status.DONE, Status.CANCELLED, Status.CANCELLED]
    assert [job.attempts for job in ends] == [1, 1, 1]
    # Asked at once; interrupted only when that has not helped; killed only when that has not, either.
    [[(_, _, seen)], [(_, _, let_go)], [(_, _, interrupted)]] = [site.runs("end", job) for job in jobs]
    assert seen < let_go
    assert min(let_go, interrupted) - asked > 1.8
    assert (ends[2].completed_at or 0) - interrupted > 1.8
    # The worker of a handler that heeds the cancel stays, and its next job is not hit.
    again = [site.queue.enqueue(name, {}) for name in names]
    assert [site.running_pid(job) == pid for job, pid in zip(again, pids, strict=True)] == [True, False, False]
    assert ends[0].result == "cleaned up"
    outcome, log = last_run(site, attentive)
    assert (outcome, (log or "").splitlines()[0]) == ("done", "working")
    assert (log or "").endswith("Z info cleaned up\n")
    assert last_run(site, careless) == ("cancelled", "working\nletting go\n")
    assert last_run(site, stubborn) == ("cancelled", "working\n")
    assert site.rows("SELECT * FROM job_errors") == []


DEAF = (
    RECORD
    + """
def handle(payload, ctx):
    signal.signal(signal.SIGTERM, lambda *_: record("end", ctx))
    print("working")
    record("start", ctx)
    while True:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:
            pass

serve(handle)
"""
)


def test_a_program_that_ignores_a_cancel_gets_term_then_kill(make_site: MakeSite) -> None:
    graces = 'cancel_grace = "1s"\nkill_grace = "1s"\n'
    site = program_site(make_site, f'[pools.deaf]\ncommand = ["PYTHON", "deaf.py"]\nworkers = 1\n{graces}', deaf=DEAF)
    site.start()
    job = site.queue.enqueue("deaf", {})
    pid = site.running_pid(job)
    asked = time.time()
    cancel(site, job)

    ended = site.queue.wait(job, timeout=30)

    assert (ended.status, ended.attempts) == (Status.CANCELLED, 1)
    terminated = site.runs("end", job)[0][2]
    assert asked + 0.9 < terminated < (ended.completed_at or 0)
    assert last_run(site, job)[0] == "cancelled"
    assert (last_run(site, job)[1] or "").startswith("working\n")
    assert site.running_pid(site.queue.enqueue("deaf", {})) != pid


def test_a_handler_may_take_longer_and_shows_how_far_it_is(make_site: MakeSite) -> None:
    site = make_site(
        "[defaults]\ntimeout = '500ms'\nretry = { max_attempts = 1 }\n"
        "[pools.longer]\nhandler = 'jobs:longer'\nworkers = 1\n[pools.late]\nhandler = 'jobs:late'\nworkers = 1\n",
        "import os, time\n"
        "def longer(payload, ctx):\n"
        "    ctx.extend('1m')\n"
        "    ctx.progress(0.25, 'a quarter')\n"
        "    end = time.monotonic() + 1.5\n"
        "    while time.monotonic() < end or not os.path.exists('go on'):\n        time.sleep(0.01)\n"
        "    ctx.progress(1)\n"
        "    return {'took': 'long'}\n"
        "def late(payload, ctx):\n    time.sleep(30)\n",
    )
    site.start()
    longer, late = site.queue.enqueue("longer", {}), site.queue.enqueue("late", {})
    seen = wait_for(lambda: next((w for w in site.workers("longer") if w.progress is not None), None), "its progress")
    assert (seen.job, seen.progress, seen.text) == (longer, 0.25, "a quarter")
    assert site.queue.wait(late, timeout=20).status is Status.FAILED
    (site.folder / "go on").touch()

    ended = site.done(longer)
    assert (ended.result, ended.progress) == ({"took": "long"}, 1.0)
