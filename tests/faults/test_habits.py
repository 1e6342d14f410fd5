"""What a handler changes in its process, or in its limits: little is put back, and no other job is lost."""

from __future__ import annotations

import os
import resource

import pytest

from supervisor import Status
from supervisor.system.slot import State
from tests.site_under_test import MakeSite, Site, wait_for

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\nretry = { max_attempts = 1 }\n'
HANDLERS = """
import faulthandler, os, resource, signal, sys, threading, time
from ledger import record

def umask():
    now = os.umask(0)
    os.umask(now)
    return now

def work(payload, ctx):
    record("start", ctx)
    record("end", ctx)
    found = {"pid": os.getpid(), "cwd": os.getcwd(), "umask": umask(), "habit": os.environ.get("HABIT")}
    print("it prints")
    if payload:
        HABITS[payload]()
    return found

def other(*_):
    "Of a handler long gone."

def soft(which, value):
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))

def leave():
    os.makedirs("gone", exist_ok=True)
    os.chdir("gone")
    os.rmdir("../gone")

OURS = (signal.SIGRTMIN + 2, signal.SIGRTMIN + 3)
HABITS = {
    "cwd": lambda: os.chdir("/"), "no cwd": leave, "umask": lambda: os.umask(0o777),
    "environ": lambda: os.environ.update(HABIT="1"), "new environ": lambda: setattr(os, "environ", {}),
    "recursion": lambda: sys.setrecursionlimit(150), "path": lambda: sys.path.clear(),
    "stdout": lambda: setattr(sys, "stdout", None), "streams": lambda: (sys.stdout.close(), sys.stderr.close()),
    "modules": lambda: sys.modules.update(json=None, re=None), "new modules": lambda: setattr(sys, "modules", {}),
    "trace": lambda: (sys.settrace(other), threading.settrace(other)), "nice": lambda: os.nice(1),
    "term": lambda: signal.signal(signal.SIGTERM, other),
    "timer": lambda: (signal.signal(signal.SIGALRM, other), signal.setitimer(signal.ITIMER_REAL, 30)),
    "mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "handlers": lambda: [signal.signal(number, other) for number in OURS],
    "ignored": lambda: [signal.signal(number, signal.SIG_IGN) for number in OURS],
    "wakeup": lambda: signal.set_wakeup_fd(-1),
    "faulthandler": lambda: [faulthandler.register(n) for n in (signal.SIGUSR1, signal.SIGRTMIN + 2)],
    "files": lambda: soft(resource.RLIMIT_NOFILE, 5),
}
"""
PUT_BACK = ["cwd", "no cwd", "umask"]
STAYS = ["environ", "new environ", "recursion", "streams", "stdout", "trace", "nice", "term", "timer", "wakeup"]
STAYS += ["path", "modules", "new modules"]
REPLACED = ["mask", "handlers", "ignored", "files"]


def idle(site: Site) -> None:
    wait_for(lambda: all(worker.state == State.IDLE for worker in site.workers("work")), "the worker to be idle")


@pytest.mark.fault(50)
@pytest.mark.parametrize("seconds", [0.0, 0.02])  # after a slow one the worker has looked at once
def test_the_working_directory_and_the_umask_are_put_back(make_site: MakeSite, seconds: float) -> None:
    site = make_site(POOL, HANDLERS.replace("HABITS[payload]()", f"time.sleep({seconds})\n        HABITS[payload]()"))
    site.start()
    before = site.done(site.queue.enqueue("work")).result
    for habit in PUT_BACK:
        site.done(site.queue.enqueue("work", habit))
        idle(site)  # between jobs without a pause they are put back within 0.1 s
        assert site.done(site.queue.enqueue("work")).result == before, habit
    site.verdict()


@pytest.mark.fault(50)
def test_whatever_else_a_handler_changes_costs_no_job(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    for habit in STAYS:
        jobs = site.queue.enqueue_many("work", [habit, None, None])
        assert [site.done(job).crashes for job in jobs] == [0, 0, 0], habit
    site.done(site.queue.enqueue("work", "environ"))
    assert site.done(site.queue.enqueue("work")).result["habit"] in ("1", None)
    site.verdict()


@pytest.mark.fault(50)
@pytest.mark.parametrize("habit", REPLACED)
def test_a_worker_whose_own_signals_or_files_a_handler_has_changed_is_replaced(make_site: MakeSite, habit: str) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    first = site.done(site.queue.enqueue("work")).result["pid"]
    assert site.done(site.queue.enqueue("work", habit)).result["pid"] == first
    wait_for(lambda: site.event("replacement_planned"), "the worker to be replaced")
    assert site.done(site.queue.enqueue("work")).result["pid"] != first
    assert site.event("process_changed") or habit == "files"
    site.verdict()
    assert not site.event("worker_died")


@pytest.mark.fault(50)
@pytest.mark.parametrize("habit", ["mask", "handlers", "ignored", "faulthandler", "timer", "recursion"])
def test_a_worker_leaves_when_told_whatever_its_handler_did_to_signals(make_site: MakeSite, habit: str) -> None:
    site = make_site(POOL, HANDLERS.replace("HABITS[payload]()", "HABITS[payload]()\n        time.sleep(0.3)"))
    supervisor = site.start()
    job = site.queue.enqueue("work", habit)
    site.running_pid(job)
    assert site.stop(supervisor) == 0  # in the middle of the job, before anything is checked
    site.verdict()
    assert not site.event("worker_died")


LEAKS = """
import os, sys
from ledger import record

KEPT = []

def work(payload, ctx):
    record("start", ctx)
    KEPT.extend(os.dup(0) for _ in range(payload.get("keeps", 0)))
    mine = [os.dup(0) for _ in range(payload.get("opens", 0))]
    for number in mine:
        os.close(number)
    open(os.devnull).close()
    record("end", ctx)
    return os.getpid()
"""


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))


@pytest.mark.fault(50)
@pytest.mark.parametrize("prefetch", ['"auto"', pytest.param("1", marks=pytest.mark.long)])
def test_a_thousand_jobs_that_each_leak_a_few_files_all_succeed(make_site: MakeSite, prefetch: str) -> None:
    pool = POOL.replace("max_attempts = 1", 'max_attempts = 9, base = "10ms"')
    site = make_site(f"{pool}prefetch = {prefetch}\n", LEAKS)
    jobs = site.queue.enqueue_many("work", [{"keeps": 7}] * 1000)
    site.start(preexec_fn=few_files)
    for job in jobs:
        assert site.queue.wait(job, timeout=60).status is Status.DONE
    assert max(site.job(job).attempts for job in jobs) < 9
    assert len({site.job(job).result for job in jobs}) >= 2
    assert not site.event("worker_died")


@pytest.mark.fault(50)
def test_a_job_that_opens_too_many_files_itself_fails_for_itself(make_site: MakeSite) -> None:
    site = make_site(POOL, LEAKS)
    site.start(preexec_fn=few_files)
    jobs = [site.queue.enqueue("work", what) for what in ({}, {"keeps": 1 << 20}, {}, {"opens": 1 << 20}, {})]
    ended = [site.queue.wait(job, timeout=20).status for job in jobs]
    assert ended == [Status.DONE, Status.FAILED, Status.DONE, Status.FAILED, Status.DONE]
    assert [site.job(job).attempts for job in jobs] == [1] * 5
    assert wait_for(lambda: site.workers(), "a worker")
    assert not site.event("worker_died")


LIMITS_POOL = POOL + "max_crashes = 2\n"
LIMITS_HANDLERS = """
import ctypes, os, resource
from ledger import record

class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]

def hard(which, value):
    '''Lowered for good: without the capability nobody can raise it again.'''
    data = (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(ctypes.byref(Header(0x20080522, 0)), ctypes.byref(data)) == 0
    resource.setrlimit(which, (value, value))

def soft(which, value):
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))

def used():
    return int(open("/proc/self/statm").read().split()[0]) * 4096

LIMITS = {
    "file size": lambda: soft(resource.RLIMIT_FSIZE, 0),
    "memory": lambda: soft(resource.RLIMIT_AS, used() + (1 << 20)),
    "memory for good": lambda: hard(resource.RLIMIT_AS, used()),
    "user": lambda: os.setresuid(65534, 65534, 65534),
}

def work(payload, ctx):
    record("start", ctx)
    record("end", ctx)
    if "limit" in payload:
        LIMITS[payload["limit"]]()
    return {"pid": os.getpid(), "text": "x" * payload.get("bytes", 0)}
"""


@pytest.mark.sqlite
@pytest.mark.fault(52)
@pytest.mark.parametrize("limit", ["file size", "memory", "memory for good", "user"])
def test_a_lowered_limit_costs_only_the_job_that_did_it(make_site: MakeSite, limit: str) -> None:
    if limit == "user" and os.geteuid() != 0:
        pytest.skip("only root can")
    site = make_site(LIMITS_POOL, LIMITS_HANDLERS)
    before = site.queue.enqueue_many("work", [{}] * 5)
    job = site.queue.enqueue("work", {"limit": limit, "bytes": 200_000})
    behind = site.queue.enqueue_many("work", [{}] * 20)
    site.start()
    for each in [*before, *behind]:
        assert site.done(each, patience=30).crashes == 0
    wait_for(lambda: site.job(job).status not in (Status.PENDING, Status.RUNNING), "its end")
