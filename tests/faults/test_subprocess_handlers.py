"""Programs beside workers: whatever they do, every job has one outcome, and the pool goes on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from supervisor import Status
from supervisor.system.scoreboard import Scoreboard
from tests.faults.cgroups import cgroup
from tests.faults.programs import HELPED, POOL, RUDE, ended, failure, program_site
from tests.ledger import Ledger
from tests.site_under_test import MakeSite, wait_for


def pool_problem(path: Path) -> str:
    board = Scoreboard.open(path)
    pools = {} if board is None else board.supervisor_status().get("pools", {})
    return str(pools["helped"]["problem"]) if pools else ""


RUDENESS = [
    ("garbage", "protocol", "sent a line that is not valid JSON: 'Traceback"),
    ("huge", "protocol", "sent a line of more than 1048576 bytes"),
    ("wrong id", "protocol", "sent a result with an invalid id"),
    ("late", "protocol", "sent a result with an invalid id"),
    ("closes replies", "protocol", "closed its replies"),
    ("end", "crash", "ended with exit code 3 while it was running the job"),
    ("kill", "crash", "was killed by SIGKILL"),
]


@pytest.mark.fault(36)
def test_a_program_that_breaks_the_rules_is_killed_counted_and_replaced(make_site: MakeSite) -> None:
    site = program_site(
        make_site, '[pools.rude]\ncommand = ["PYTHON", "rude.py"]\nworkers = 1\nmax_crashes = 1\n', rude=RUDE
    )
    site.start()
    pids = []
    for how, kind, words in RUDENESS:
        polite, rude = site.queue.enqueue("rude"), site.queue.enqueue("rude", {"how": how})
        pids.append(site.done(polite).result)
        job = ended(site, rude)
        assert (job.status, job.crashes, job.attempts) == (Status.QUARANTINED, 1, 0), how
        found, message, stderr = failure(site, rude, "kind", "message", "stderr")
        assert found == kind
        assert words in str(message)
        assert f"about to {how}" in str(stderr)
        assert not psutil.pid_exists(pids[-1])
    assert len(set(pids)) == len(pids)
    assert failure(site, rude, "signal") == ("SIGKILL",)
    assert site.told("worker_died", reason="program_died", level="warning")
    assert Ledger(site.ledger, site.where).damage() == []


@pytest.mark.fault(36)
def test_what_a_program_does_after_a_result_charges_nobody(make_site: MakeSite) -> None:
    site = program_site(
        make_site,
        '[pools.rude]\ncommand = ["PYTHON", "rude.py"]\nworkers = 1\nprefetch = 8\nmax_crashes = 1\n',
        rude=RUDE,
    )
    jobs = site.queue.enqueue_many(
        "rude", [{"how": how} for how in ("twice", "result and end", "closes stdout", "twice")] + [{}]
    )
    site.start()
    for job_id in jobs:
        job = site.done(job_id)
        assert (job.crashes, job.attempts) == (0, 1)
    assert site.rows("SELECT * FROM job_errors") == []


@pytest.mark.fault(14, 36)
def test_a_silent_program_is_killed_at_the_time_limit_whatever_it_ignores(make_site: MakeSite) -> None:
    site = program_site(
        make_site,
        """
        [pools.silent]
        command = ["PYTHON", "silent.py"]
        timeout = "300ms"
        workers = 1
        retry = { max_attempts = 1 }
        """,
        silent="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + RUDE,
    )
    site.start()
    job = ended(site, site.queue.enqueue("silent", {"how": "silence"}))
    assert (job.status, job.crashes, job.attempts) == (Status.FAILED, 0, 1)
    kind, traceback, stderr = failure(site, job.id, "kind", "traceback", "stderr")
    assert kind == "timeout"
    assert traceback == "the program did not stop the job, and was killed by SIGKILL"
    assert stderr == "about to silence\n"
    assert site.done(site.queue.enqueue("silent")).crashes == 0  # by another program
    assert not site.event("worker_died")  # a time limit is no death of the worker's own


@pytest.mark.fault(12)
def test_a_program_that_ends_inside_a_job_is_never_success(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL + "max_crashes = 1\nretry = { max_attempts = 1 }\n", helped=HELPED)
    site.start()
    for how, status, expected in (
        ("_exit", Status.QUARANTINED, ("crash", None, 0)),
        ("segfault", Status.QUARANTINED, ("crash", "SIGSEGV", None)),
        ("exit", Status.FAILED, ("exit", None, None)),
    ):
        job = ended(site, site.queue.enqueue("helped", {"do": how}))
        assert job.status is status, how
        assert failure(site, job.id, "kind", "signal", "exit_code") == expected
        assert len(site.runs("start", job.id)) == 1
        assert site.runs("end", job.id) == []


@pytest.mark.fault(12)
def test_programs_that_die_with_every_job_are_not_replaced_ever_faster(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL + "max_crashes = 1\n", helped=HELPED)
    jobs = site.queue.enqueue_many("helped", [{"do": "_exit"}] * 7)
    site.start()
    problem = wait_for(lambda: "".join(pool_problem(path) for path in site.scoreboards()), "the pool to slow down")
    assert problem.startswith("crash loop: ")
    assert [ended(site, job).status for job in jobs] == [Status.QUARANTINED] * 7
    site.done(site.queue.enqueue("helped"))
    wait_for(lambda: not any(pool_problem(path) for path in site.scoreboards()), "the pool to be well again")


@pytest.mark.fault(37)
def test_ten_megabytes_of_noise_block_nobody_and_the_end_is_kept(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL + "max_crashes = 1\n", helped=HELPED)
    site.start()
    site.done(site.queue.enqueue("helped", {"do": "noise"}))
    job = ended(site, site.queue.enqueue("helped", {"do": "noise", "crash": True}))
    assert job.status is Status.QUARANTINED
    [stderr] = failure(site, job.id, "stderr")
    assert str(stderr).endswith("noise\nthe last line\n")
    assert 8000 <= len(str(stderr)) <= 8192
    site.done(site.queue.enqueue("helped"))
    assert wait_for(lambda: site.event("output_dropped"), "the log to say that not all of it is there")
    assert 1 << 20 < site.log.stat().st_size < 10 << 20  # of 20 MB


@pytest.mark.fault(14)
def test_an_endless_handler_of_a_program_is_interrupted_and_its_stack_kept(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL + 'timeout = "2s"\nretry = { max_attempts = 1 }\n', helped=HELPED)
    site.start()
    before = site.done(site.queue.enqueue("helped")).result
    job = ended(site, site.queue.enqueue("helped", {"do": "loop"}))
    assert (job.status, job.attempts, job.crashes) == (Status.FAILED, 1, 0)
    kind, traceback, stderr = failure(site, job.id, "kind", "traceback", "stderr")
    assert kind == "timeout"
    assert "here it hangs" in str(traceback)
    assert "in handle" in str(stderr)  # the stacks that were dumped
    assert len(site.runs("finally", job.id)) == 1
    assert site.done(site.queue.enqueue("helped")).result != before  # what it has begun may go on in the program


def test_a_program_sees_that_its_job_is_cancelled(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL + 'start = "spawn"\n', helped=HELPED)  # which makes no difference
    site.start()
    job = site.queue.enqueue("helped", {"do": "wait for cancel"})
    pid = site.running_pid(job)
    site.rows("UPDATE jobs SET cancel_requested_at = 1 WHERE id = ?", job)
    assert site.done(job).result == pid  # it cleaned up and returned, so that counts
    assert site.done(site.queue.enqueue("helped")).result == pid


@pytest.mark.fault(13)
def test_a_program_that_holds_its_interpreters_lock_is_not_declared_dead(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL + 'heartbeat_timeout = "1s"\nlock_time = "1s"\n', helped=HELPED)
    site.start()
    job = site.done(site.queue.enqueue("helped", {"do": "hold the lock"}))
    assert (job.crashes, len(site.runs("start", job.id))) == (0, 1)


@pytest.mark.fault(29)
def test_a_program_at_its_limit_of_address_space_fails_its_job_and_is_replaced(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL + "retry = { max_attempts = 1 }\n", helped=HELPED)
    site.start()
    job = ended(site, site.queue.enqueue("helped", {"do": "grow"}))
    assert (job.status, job.crashes) == (Status.FAILED, 0)
    assert failure(site, job.id, "kind", "message") == ("memory", "MemoryError")
    assert site.done(site.queue.enqueue("helped")).result != site.running_pid(job.id)


@pytest.mark.fault(28)
def test_a_program_that_the_kernel_kills_for_memory_is_a_crash_of_its_job(make_site: MakeSite) -> None:
    retry = 'max_crashes = 2\nretry = { base = "10ms" }\n'
    site = program_site(make_site, POOL + retry, helped=HELPED)
    site.start()
    with cgroup("memory") as group:
        group.limit(64 << 20)
        job = ended(site, site.queue.enqueue("helped", {"do": "outgrow a cgroup", "group": str(group.folder)}))
    assert (job.status, job.crashes) == (Status.QUARANTINED, 2)
    errors = site.rows("SELECT kind, signal, message FROM job_errors WHERE job_id = ?", job.id)
    kind = "crash" if group.version == 2 else "out_of_memory"  # with version 1, the machine's kills are counted
    assert [row[:2] for row in errors] == [(kind, "SIGKILL")] * 2
    assert all("out of memory" in row[2] for row in errors)
    assert site.done(site.queue.enqueue("helped")).crashes == 0
