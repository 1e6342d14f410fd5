"""What a handler leaves behind in its process: the next job finds it as it was, or finds another worker."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

import pytest

from supervisor import Status
from supervisor.system.slot import State
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]
POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\nretry = { max_attempts = 1 }\n'
HANDLERS = """
import decimal, faulthandler, gc, locale, logging, os, resource, signal, socket, sys, threading, time, warnings
from ledger import record

KEPT = []

def state():
    return {
        "cwd": os.getcwd(), "umask": umask(), "environ": os.environ.get("HABIT"), "home": os.environ.get("HOME"),
        "recursion": sys.getrecursionlimit(), "locale": locale.setlocale(locale.LC_ALL), "path": list(sys.path),
        "stdout": repr(type(sys.stdout)), "timeout": socket.getdefaulttimeout(),
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "handlers": [str(signal.getsignal(number))[:20] for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM)],
        "timer": signal.getitimer(signal.ITIMER_REAL), "gc": gc.isenabled(),
        "fsize": resource.getrlimit(resource.RLIMIT_FSIZE), "cpu": resource.getrlimit(resource.RLIMIT_CPU),
        "nice": os.getpriority(os.PRIO_PROCESS, 0), "modules": sys.modules["json"] is json,
        "finders": repr(sys.meta_path), "hooks": repr(sys.path_hooks), "filters": repr(warnings.filters),
        "decimal": repr(decimal.getcontext()).partition("flags")[0], "traps": repr(decimal.getcontext().traps),
        "digits": sys.get_int_max_str_digits(), "switch": sys.getswitchinterval(), "threshold": gc.get_threshold(),
        "logging": logging.root.manager.disable, "trace": [sys.gettrace(), sys.getprofile(), threading.gettrace()],
        "processors": sorted(os.sched_getaffinity(0)), "policy": os.sched_getscheduler(0), "zone": time.tzname,
        "oom": open("/proc/self/oom_score_adj").read(), "imports": imports(),
    }

def imports():
    import asyncio, json
    return [asyncio._get_running_loop(), json.dumps({})]

import json

def umask():
    now = os.umask(0)
    os.umask(now)
    return now

def work(payload, ctx):
    record("start", ctx)
    record("end", ctx)
    for habit in payload:
        HABITS[habit]()
    return None if payload else {"pid": os.getpid(), "state": state()}

def other(*_):
    "Of a handler long gone."

def soft(which, value):
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))

def leave():
    os.makedirs("gone", exist_ok=True)
    os.chdir("gone")
    os.rmdir("../gone")

HABITS = {
    "cwd": lambda: os.chdir("/"), "no cwd": leave, "umask": lambda: os.umask(0o777),
    "environ": lambda: (os.environ.update(HABIT="1"), os.environ.pop("HOME", None)),
    "new environ": lambda: setattr(os, "environ", {}),
    "recursion": lambda: sys.setrecursionlimit(150), "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "path": lambda: sys.path.clear(), "stdout": lambda: setattr(sys, "stdout", None),
    "timeout": lambda: socket.setdefaulttimeout(0.001), "gc": gc.disable,
    "mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "handlers": lambda: [signal.signal(n, other) for n in (signal.SIGALRM, signal.SIGTERM, signal.SIGRTMIN + 2)],
    "ignored": lambda: [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGUSR1, signal.SIGRTMIN + 2)],
    "faulthandler": lambda: [faulthandler.register(n) for n in (signal.SIGUSR1, signal.SIGRTMIN + 2)],
    "timer": lambda: signal.setitimer(signal.ITIMER_REAL, 30), "alarm": lambda: signal.alarm(30),
    "fsize": lambda: soft(resource.RLIMIT_FSIZE, 0), "cpu": lambda: soft(resource.RLIMIT_CPU, 100_000),
    "files": lambda: soft(resource.RLIMIT_NOFILE, 5),
    "nice": lambda: os.nice(1),
    "no module": lambda: sys.modules.update(json=None, re=None), "other module": lambda: sys.modules.update(json=os),
    "gone module": lambda: sys.modules.pop("json"), "other modules": lambda: setattr(sys, "modules", {}),
    "finders": lambda: sys.meta_path.clear(), "new finders": lambda: setattr(sys, "meta_path", []),
    "hooks": lambda: sys.path_hooks.clear(), "filters": lambda: warnings.simplefilter("error"),
    "decimal": lambda: setattr(decimal.getcontext(), "prec", 3), "digits": lambda: sys.set_int_max_str_digits(640),
    "traps": lambda: decimal.setcontext(decimal.Context(traps=[decimal.Inexact], rounding=decimal.ROUND_UP)),
    "switch": lambda: sys.setswitchinterval(5), "threshold": lambda: gc.set_threshold(1),
    "logging": lambda: logging.disable(logging.CRITICAL), "trace": lambda: sys.settrace(other),
    "profile": lambda: sys.setprofile(other), "traces": lambda: threading.settrace(other),
    "processors": lambda: os.sched_setaffinity(0, [max(os.sched_getaffinity(0))]),
    "idle": lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
    "zone": lambda: (os.environ.update(TZ="Asia/Tokyo"), time.tzset()),
    "oom": lambda: open("/proc/self/oom_score_adj", "w").write("900"),
    "loop": lambda: __import__("asyncio")._set_running_loop(object()),
    "streams": lambda: (sys.stdout.close(), sys.stderr.close()),
}
"""
RESTORED = [
    "cwd", "no cwd", "umask", "environ", "new environ", "recursion", "locale", "path", "stdout", "timeout", "gc",
    "mask", "handlers", "ignored", "faulthandler", "timer", "alarm", "fsize", "cpu", "files", "streams",
    "no module", "other module", "gone module", "other modules", "finders", "new finders", "hooks", "filters",
    "decimal", "traps", "digits", "switch", "threshold", "logging", "trace", "profile", "traces", "processors", "idle",
    "zone", "oom", "loop",
]  # fmt: skip


@pytest.mark.fault(50)
@pytest.mark.parametrize("seconds", [0.0, 0.02])  # after a slow one the worker has looked, if only quickly
def test_what_a_handler_changes_for_its_process_is_put_back_before_the_next_job(
    make_site: MakeSite, seconds: float
) -> None:
    site = make_site(POOL, HANDLERS.replace("HABITS[habit]()", f"time.sleep({seconds})\n        HABITS[habit]()"))
    site.start()
    before = site.done(site.queue.enqueue("work", [])).result
    for habit in RESTORED:
        site.done(site.queue.enqueue("work", [habit]))
        # Between jobs without a pause what costs more is put back within 0.1 s.
        wait_for(lambda: all(worker.state == State.IDLE for worker in site.workers("work")), "the worker to be idle")
        assert site.done(site.queue.enqueue("work", [])).result == before, habit
    site.verdict()
    assert not site.event("worker_died")


@pytest.mark.fault(50)
@pytest.mark.parametrize("habit", ["mask", "handlers", "ignored", "faulthandler", "timer", "recursion"])
def test_a_worker_leaves_when_told_whatever_its_handler_did_to_signals(make_site: MakeSite, habit: str) -> None:
    site = make_site(POOL, HANDLERS.replace("HABITS[habit]()", "HABITS[habit]()\n        time.sleep(0.3)"))
    supervisor = site.start()
    job = site.queue.enqueue("work", [habit])
    site.running_pid(job)
    assert site.stop(supervisor) == 0  # in the middle of the job, before anything could be put back
    site.verdict()
    assert not site.event("worker_died")


@pytest.mark.fault(50)
def test_a_worker_whose_process_cannot_be_put_back_is_replaced(make_site: MakeSite) -> None:
    handlers = HANDLERS.replace('"nice": lambda: os.nice(1)', '"nice": lambda: KEPT.append(unprivileged())')
    handlers += """
def unprivileged():
    # Without the capability nothing that was lowered can be raised again.
    import ctypes
    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
    data = (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(ctypes.byref(Header(0x20080522, 0)), ctypes.byref(data)) == 0
    os.nice(1)
    resource.setrlimit(resource.RLIMIT_CPU, (100_000, 100_000))
"""
    site = make_site(POOL, handlers)
    site.start()
    before = site.done(site.queue.enqueue("work", [])).result
    site.done(site.queue.enqueue("work", ["nice"]))
    after = site.done(site.queue.enqueue("work", [])).result
    assert after["state"] == before["state"]
    assert after["pid"] != before["pid"]
    assert site.told("process_changed")
    site.verdict()
    assert not site.event("worker_died")


GIVES_UP = """
import ctypes, os, time
from ledger import record

LIBC = ctypes.CDLL(None, use_errno=True)

def work(payload, ctx):
    record("start", ctx)
    record("end", ctx)
    if payload:
        time.sleep(0.12)
        assert HABITS[payload]() in (0, None), os.strerror(ctypes.get_errno())
    return os.getpid()

HABITS = {
    "privileges": lambda: LIBC.prctl(38, 1, 0, 0, 0),
    "mounts": lambda: LIBC.unshare(0x00020000), "network": lambda: LIBC.unshare(0x40000000),
    "processes": lambda: LIBC.unshare(0x20000000),
}
"""


@pytest.mark.fault(50)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can")
@pytest.mark.parametrize("what", ["privileges", "mounts", "network", "processes"])
def test_a_worker_that_a_job_has_moved_elsewhere_runs_no_other(make_site: MakeSite, what: str) -> None:
    site = make_site(POOL, GIVES_UP)
    site.start()
    first = site.done(site.queue.enqueue("work")).result
    assert site.done(site.queue.enqueue("work", what)).result == first
    assert site.done(site.queue.enqueue("work")).result != first
    assert site.told("process_changed")
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
    site = make_site(f"{POOL}prefetch = {prefetch}\n", LEAKS)
    jobs = site.queue.enqueue_many("work", [{"keeps": 7}] * 1000)
    site.start(preexec_fn=few_files)
    for job in jobs:
        assert site.queue.wait(job, timeout=60).status is Status.DONE
    assert {site.job(job).attempts for job in jobs} == {1}
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


@pytest.mark.fault(50)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its user away")
def test_no_neighbour_runs_as_the_user_to_whom_a_handler_has_changed(make_site: MakeSite) -> None:
    site = make_site(
        '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n',
        """
import ctypes, os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    found = [os.getuid(), os.geteuid(), ctypes.CDLL(None).setfsuid(-1)]
    record("end", ctx)
    time.sleep(0.02)
    if payload == "effective":
        os.seteuid(65534)
    elif payload == "of files":
        ctypes.CDLL(None).setfsuid(65534)
    elif payload == "for good":
        os.setresuid(65534, 65534, 65534)
    return found
""",
    )
    jobs = []
    for how in ("effective", "of files", "for good"):
        jobs += site.queue.enqueue_many("work", [how, "plain", "plain"])
    culprit = jobs[6]  # its worker cannot write any more what becomes of it, unless it has a connection to a server
    fate = Status.DONE if isinstance(site.where, str) else Status.QUARANTINED
    site.start()
    assert site.queue.wait(culprit, timeout=20).status is fate
    neighbours = [job for job in jobs if job != culprit]
    assert [site.done(job).result for job in neighbours] == [[0, 0, 0]] * len(neighbours)
    site.verdict(hit=[culprit], **{fate.value: [culprit]})
