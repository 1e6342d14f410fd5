"""Programs beside workers live and die with them, and so does what they have started."""

from __future__ import annotations

import psutil
import pytest

from supervisor import Status
from tests.faults.programs import HELPED, POOL, RECORD, program_site
from tests.site_under_test import MakeSite, alive, descendants, kill, wait_for


def test_a_worker_whose_program_is_over_max_memory_is_replaced_after_its_job(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL + 'max_memory = "70MiB"\n', helped=HELPED)
    site.start()
    job = site.done(site.queue.enqueue("helped", {"do": "hoard"}))
    wait_for(lambda: not psutil.pid_exists(job.result), "it to be replaced", patience=30)
    assert len(site.runs("bye", 0)) == 1
    assert site.done(site.queue.enqueue("helped")).result != job.result


@pytest.mark.fault(1, 15, 39)
@pytest.mark.parametrize("killed", ["worker", "template"])
def test_a_program_and_what_it_started_end_with_their_worker_or_template(make_site: MakeSite, killed: str) -> None:
    site = program_site(make_site, POOL, helped=HELPED)
    supervisor = site.start()
    job = site.queue.enqueue("helped", {"do": "starts others"})
    program = psutil.Process(site.running_pid(job))
    wait_for(lambda: len(program.children(recursive=True)) == 3, "the shell and two sleeps")
    family = [program, *program.children(recursive=True)]
    kill(program.ppid() if killed == "worker" else psutil.Process(program.ppid()).ppid())
    wait_for(lambda: not any(alive(p) for p in family), "all of them gone", patience=5)
    done = site.done(job)
    assert (done.crashes, done.attempts) == (killed == "worker", 1)
    starts = site.runs("start", job)
    assert len({pid for _, pid, _ in starts}) == 2
    assert not [p for p in descendants(supervisor.pid) if p.status() == psutil.STATUS_ZOMBIE]


@pytest.mark.fault(15)
def test_what_a_program_started_ends_with_the_program(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL, helped=HELPED)
    site.start()
    job = site.queue.enqueue("helped", {"do": "starts others", "seconds": 0.3, "crash": True})
    shell = psutil.Process(
        int(wait_for(lambda: (site.folder / "started").exists() and (site.folder / "started").read_text()))
    )
    family = wait_for(lambda: len(found := [shell, *shell.children(recursive=True)]) == 3 and found, "its sleeps")
    assert site.done(job).crashes == 1
    wait_for(lambda: not any(alive(p) for p in family), "all of them gone", patience=5)


@pytest.mark.fault(11)
def test_a_program_that_cannot_be_set_up_stops_only_its_own_pool(make_site: MakeSite) -> None:
    site = program_site(
        make_site,
        """
        [defaults]
        workers = 1
        [pools.helped]
        command = ["PYTHON", "helped.py"]
        [pools.broken]
        command = ["PYTHON", "broken.py"]
        [pools.mute]
        command = ["PYTHON", "-c", "import time; time.sleep(60)"]
        startup_timeout = "400ms"
        [pools.garbled]
        command = ["sh", "-c", "echo ready >&3; sleep 60"]
        [pools.lacking]
        command = ["PYTHON", "lacking.py"]
        capabilities = ["cpu", "gpu"]
        """,
        helped=HELPED,
        broken=RECORD + "raise RuntimeError('no model here')\n",
        lacking=RECORD + "serve(print, capabilities=['cpu'])\n",
    )
    site.start()
    waiting = site.queue.enqueue("broken")
    for pool, why in {
        "broken": "broken.py: it ended with exit code 1 before its hello: RuntimeError: no model here",
        "mute": "startup_timeout",  # the worker's words or, if it is slow, the supervisor's
        "garbled": "it sent a line that is not valid JSON: 'ready'",
        "lacking": "it lacks capabilities of the pool: gpu",
    }.items():
        detail = wait_for(lambda pool=pool: site.event("worker_died", pool=pool), pool)["detail"]
        assert why in detail
    assert site.done(site.queue.enqueue("helped")).crashes == 0
    assert site.job(waiting).attempts == 0
    (site.folder / "broken.py").write_text(HELPED.replace("LEDGER", str(site.ledger)))
    assert site.done(waiting).crashes == 0  # it was tried again


@pytest.mark.fault(40)
def test_a_program_drains_with_its_worker_and_is_told_bye(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL, helped=HELPED)
    supervisor = site.start()
    job = site.queue.enqueue("helped", {"do": "hold the lock"})
    program = psutil.Process(site.running_pid(job))
    for process in [program, *descendants(supervisor.pid)]:
        process.terminate()
    assert site.stop(supervisor) == 0
    assert site.job(job).status is Status.DONE
    assert len(site.runs("start", job)) == len(site.runs("end", job)) == 1
    assert len(site.runs("bye", 0)) == 1
    assert not psutil.pid_exists(program.pid)
