"""A handler that forks: the child ends where the handler ends, and nothing that the worker holds is touched by it."""

from __future__ import annotations

import signal

import psutil
import pytest

from supervisor import Status
from tests.site_under_test import MakeSite, Site, alive, descendants, kill, wait_for

POOL = """
[pools.work]
handler = "jobs:work"
workers = 2
[pools.fork]
handler = "jobs:Fork"
workers = 1
prefetch = {prefetch}
timeout = "5s"
retry = {{ max_attempts = 1 }}
"""
HANDLERS = """
import asyncio, ctypes, multiprocessing, os, sys, threading, time
from ledger import record

LIBC = ctypes.PyDLL(None)  # which keeps the interpreter locked: else a thread may hold that lock in the child for ever

def work(payload, ctx):
    record("start", ctx)
    record("end", ctx)

class Fork:
    def handle(self, payload, ctx):
        record("start", ctx)
        result = getattr(self, payload["how"])(ctx) if "how" in payload else None
        record("end", ctx)
        return result

    def parent(self, pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def returns(self, ctx):
        return self.left_to_return(os.fork())

    def left_to_return(self, pid):
        if pid:
            return self.parent(pid)
        raise Back

    def raises(self, ctx):
        if pid := os.fork():
            return self.parent(pid)
        raise ValueError("in the child")

    def exits(self, ctx):
        if pid := os.fork():
            return self.parent(pid)
        sys.exit(7)

    def exits_with_words(self, ctx):
        if pid := os.fork():
            return self.parent(pid)
        sys.exit("the last words")

    def leaves(self, ctx):
        if pid := os.fork():
            return self.parent(pid)
        os._exit(9)

    def c_code(self, ctx):
        if pid := LIBC.fork():
            return self.parent(pid)
        raise ValueError("in the child of C code")

    def fooled(self, ctx):
        if pid := os.fork():
            return self.parent(pid)
        parent = os.getppid()
        os.getpid = lambda: parent
        os._exit = print
        raise ValueError("in the child")

    def in_a_thread(self, ctx):
        found = []
        def forks():
            if pid := os.fork():
                found.append(self.parent(pid))
            else:
                raise ValueError("in the child of a thread")
        thread = threading.Thread(target=forks)
        thread.start()
        thread.join()
        return found[0] is not None

    def daemon(self, ctx):
        if pid := os.fork():
            return self.parent(pid)
        os.setsid()
        if os.fork():
            sys.exit(0)
        raise ValueError("in the grandchild")

    def uses_ctx(self, ctx):
        reader, writer = os.pipe()
        if pid := os.fork():
            os.close(writer)
            self.parent(pid)
            said = os.read(reader, 1000).decode()
            os.close(reader)
            return said
        ctx.progress(0.5, "of the child")
        ctx.log.info("said by the child")
        words = []
        for use in (lambda: ctx.extend(60), lambda: ctx.enqueue("work"), lambda: ctx.cancelled):
            try:
                use()
            except RuntimeError as error:
                words.append(type(error).__name__)
        os.write(writer, " ".join(words).encode())

    def processes(self, ctx):
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=self.in_process, args=(queue, ctx))
        process.start()
        process.join()
        with context.Pool(2) as pool:
            squares = pool.map(square, range(5))
        return [process.exitcode, queue.get(), squares]

    def in_process(self, queue, ctx):
        ctx.progress(0.5, "of the child")
        queue.put("from the child")

def square(number):
    return number * number

class Back(BaseException):
    pass
"""
HANGS = """if payload.get("hang"):
            while not ctx.cancelled:
                time.sleep(0.01)
            raise ValueError("stopped")
        """
RETURNS = HANDLERS.replace(
    'result = getattr(self, payload["how"])(ctx) if "how" in payload else None',
    'result = None\n        pid = os.fork() if "how" in payload else 1\n'
    '        if pid == 0:\n            return "the child\'s"\n'
    "        if pid > 1:\n            result = self.parent(pid)",
)
ASYNC = """
import asyncio, os, sys
from ledger import record

async def handle(payload, ctx):
    record("start", ctx)
    code = None
    if payload:
        pid = os.fork()
        if pid == 0:
            await asyncio.sleep(0)
            raise ValueError("in the child")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    await asyncio.sleep(0)
    record("end", ctx)
    return code
"""
RUNS = ASYNC.replace("handle", "Fork", 1).replace(
    "await asyncio.sleep(0)", "os._exit(asyncio.run(asyncio.sleep(0, 3)))", 1
)
CODES = {
    "raises": 1,
    "exits": 7,
    "exits_with_words": 1,
    "leaves": 9,
    "c_code": 1,
    "fooled": 1,
    "returns": 1,
    "in_a_thread": True,
    "daemon": 0,
    "uses_ctx": "ContextClosed ContextClosed ContextClosed",
    "processes": [0, "from the child", [0, 1, 4, 9, 16]],
}


def fork_jobs(site: Site, ways: list[str], innocent: int) -> tuple[dict[str, int], list[int]]:
    """Forking jobs spread among innocent ones of the same pool, which one worker claims together."""
    payloads = [{} for _ in range(innocent)]
    for number, how in enumerate(ways):
        payloads[(number * innocent) // len(ways)] = {"how": how}
    ids = site.queue.enqueue_many("fork", payloads)
    return {payload["how"]: job for payload, job in zip(payloads, ids, strict=True) if payload}, ids


@pytest.mark.fault(44)
@pytest.mark.parametrize("prefetch", ['"auto"', "1"])
def test_a_forked_child_ends_where_its_handler_ends_and_no_job_runs_twice(make_site: MakeSite, prefetch: str) -> None:
    site = make_site(POOL.format(prefetch=prefetch), HANDLERS.replace("result = getattr", HANGS + "result = getattr"))
    ways, _ = fork_jobs(site, list(CODES), 600)
    site.start()
    site.verdict()
    assert {how: site.job(job).result for how, job in ways.items()} == CODES
    assert site.job(ways["uses_ctx"]).progress is None
    assert site.rows("SELECT count(*) FROM job_runs WHERE log LIKE '%said by the child%'") == [(0,)]
    log = site.log.read_text()
    for words in ("in the child of C code", "the last words", "in the grandchild", "said by the child"):
        assert words in log
    wait_for(lambda: len(site.workers()) == 3, "the same workers")
    assert not site.event("worker_died")
    [worker] = site.workers("fork")
    children = psutil.Process(worker.pid).children()
    assert [child for child in children if child.status() != psutil.STATUS_ZOMBIE] == []
    # Time limits and cancels work as before.
    over = site.queue.enqueue("fork", {"hang": True})
    ended = site.queue.wait(over, timeout=20)
    assert (ended.status, ended.completed_at - ended.started_at < 10) == (Status.FAILED, True)
    cancelled = site.queue.enqueue("fork", {"hang": True})
    site.running_pid(cancelled)
    site.queue.cancel(cancelled)
    site.verdict(failed=[over], cancelled=[cancelled])


@pytest.mark.fault(44)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_that_comes_to_a_forked_child_at_once_means_the_child(make_site: MakeSite, number: int) -> None:
    """Neither before nor after its fork does the worker's own handler swallow it."""
    handlers = (
        "import os, time\nfrom ledger import record\n"
        "os.register_at_fork(after_in_child=lambda: time.sleep(0.2))\n"  # the first of all that a child does
        "def work(payload, ctx):\n    record('start', ctx)\n"
        "    pid = os.fork()\n    if not pid: time.sleep(60)\n"
        f"    os.kill(pid, {int(number)})\n    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "    record('end', ctx)\n    return code\n"
    )
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 1\ntimeout = "10s"\n', handlers)
    site.start()
    assert site.done(site.queue.enqueue("work")).result == -number
    site.verdict()


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    ("handlers", "code"),
    [(RETURNS, 0), (ASYNC.replace("handle", "Fork", 1), 1), (RUNS, 3)],
    ids=["returns", "async", "own event loop"],
)
def test_a_child_whose_handler_returns_is_no_second_worker(make_site: MakeSite, handlers: str, code: int) -> None:
    site = make_site(POOL.format(prefetch='"auto"').replace("jobs:work", "jobs:Fork"), handlers)
    site.start()
    ways, _ = fork_jobs(site, ["returns"], 60)
    site.verdict()
    assert site.job(ways["returns"]).result == code
    assert not site.event("worker_died")


AROUND = """
import os, sys, time
from ledger import record

class Fork:
    def setup(self, ctx):
        self.code = self.forked("setup")

    def handle(self, payload, ctx):
        record("start", ctx)
        record("end", ctx)
        return self.code

    def teardown(self, ctx):
        with open("left", "w") as file:
            file.write(str(self.forked("teardown")))

    def forked(self, where):
        pid = os.fork()
        if pid == 0:
            if where == "setup":
                return None  # it would go on with the set-up
            raise ValueError(f"in the child of {where}")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.mark.fault(44)
def test_forks_of_setup_and_teardown_end_there(make_site: MakeSite) -> None:
    pool = '[pools.fork]\nhandler = "jobs:Fork"\nworkers = 1\npreload_setup = false\n'
    site = make_site(pool, AROUND)
    supervisor = site.start()
    job = site.queue.enqueue("fork")
    assert site.done(job).result == 0
    assert site.stop(supervisor) == 0
    assert (site.folder / "left").read_text() == "1"
    site.verdict()


LIVES_ON = """
import os, time
from ledger import record

class Fork:
    def handle(self, payload, ctx):
        record("start", ctx)
        if payload.get("fork"):
            if os.fork() == 0:
                while not os.path.exists("go"):
                    time.sleep(0.005)
                ctx.progress(0.9, "of a child that lives on")
                return "too late"
        else:
            open("go", "w").close()
            while not os.path.exists("end"):
                time.sleep(0.005)
        record("end", ctx)
        return os.getpid()
"""


@pytest.mark.fault(44)
def test_a_child_that_lives_on_touches_nothing_of_the_next_job(make_site: MakeSite) -> None:
    site = make_site('[pools.fork]\nhandler = "jobs:Fork"\nworkers = 1\n', LIVES_ON)
    site.start()
    pid = site.done(site.queue.enqueue("fork", {"fork": True})).result
    [child] = psutil.Process(pid).children()
    second = site.queue.enqueue("fork")
    site.running_pid(second)
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child to end")
    [worker] = site.workers()
    assert (worker.job, worker.progress, worker.text) == (second, None, "")
    (site.folder / "end").touch()
    assert site.done(second).result == pid
    site.verdict()


BATCH = """
import os
from ledger import record

class Fork:
    def handle_batch(self, payloads, ctx):
        for job in ctx.jobs:
            record("start", job)
        if any(payloads) and os.fork() == 0:
            return [1] * len(payloads)
        for job in ctx.jobs:
            record("end", job)
        return [0] * len(payloads)
"""


@pytest.mark.fault(44)
def test_a_fork_in_a_batch_settles_nothing(make_site: MakeSite) -> None:
    site = make_site('[pools.fork]\nhandler = "jobs:Fork"\nworkers = 1\nbatch_size = 8\n', BATCH)
    ids = site.queue.enqueue_many("fork", [{"fork": n == 3} for n in range(40)])
    site.start()
    site.verdict()
    assert {site.job(job).result for job in ids} == {0}
    assert not site.event("worker_died")


PROCESSES = """
import multiprocessing, os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    with multiprocessing.get_context(payload["method"]).Pool(2) as pool:
        found = pool.map(abs, range(-3, 0))
        if payload.get("hang"):
            with open("hangs", "w"):
                pool.apply(time.sleep, (600,))
    record("end", ctx)
    return found
"""

KEPT = {"fork": 0, "forkserver": 2, "spawn": 1}  # for the next pool: a server of forks, and a tracker of resources


@pytest.mark.fault(44)
@pytest.mark.parametrize("method", KEPT)
@pytest.mark.parametrize("how", ["cancel", "reload", "kill"])
def test_a_pool_of_processes_ends_with_its_job(make_site: MakeSite, method: str, how: str) -> None:
    """Whatever ends the job; what multiprocessing keeps for the next pool ends with the worker, at the latest."""
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 1\nretry = { base = "10ms" }\n', PROCESSES)
    supervisor = site.start()
    for _ in range(2):
        assert site.done(site.queue.enqueue("work", {"method": method})).result == [3, 2, 1]
    job = site.queue.enqueue("work", {"method": method, "hang": True})
    wait_for(lambda: (site.folder / "hangs").exists(), "a job that hangs")
    [worker] = site.workers("work")
    started = descendants(worker.pid)
    assert len(started) >= 2
    if how == "reload":
        supervisor.send_signal(signal.SIGHUP)
        wait_for(lambda: site.event("reloaded"), "a reload")
    elif how == "kill":
        kill(worker.pid)
    site.queue.cancel(job)
    wait_for(lambda: site.job(job).status is Status.CANCELLED, "the end of the job")
    wait_for(lambda: sum(map(alive, started)) <= KEPT[method], "the end of its pool")
    assert site.done(site.queue.enqueue("work", {"method": method})).result == [3, 2, 1]
    assert site.stop(supervisor) == 0
    assert not any(map(alive, started))
    site.verdict(cancelled=[job], hit=[job])
