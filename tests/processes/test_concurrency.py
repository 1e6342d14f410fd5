"""A worker that runs several jobs at the same time: on its event loop, in threads, or both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor import Status
from supervisor.system.slot import State
from tests.site_under_test import Site, wait_for
from tests.store.kit import execute

MakeSite = Callable[..., Site]
POOL = """
[pools.many]
handler = "jobs:NAME"
workers = 1
concurrency = 50
max_crashes = 2
retry = { max_attempts = 2, base = "10ms" }
"""
HANDLERS = """
import asyncio, ctypes, os, threading, time
from ledger import record

async def until(path):
    while not os.path.exists(path):
        await asyncio.sleep(0.01)

def tell(ctx):
    ctx.log.info("logged", by=ctx.job_id)
    ctx.progress(0.5, f"half of {ctx.job_id}")
    ctx.enqueue("many", {"do": "child"})

async def on_loop(payload, ctx):
    record("start", ctx)
    what = payload.get("do")
    if what == "sleep":
        await asyncio.sleep(payload["seconds"])
    elif what == "wait":
        ctx.extend(100)
        await until(payload["until"])
    elif what == "segfault":
        await until(payload["until"])
        ctypes.string_at(0)
    elif what == "raise":
        raise ValueError("its own payload")
    elif what == "report":
        for step in range(1000):
            ctx.progress(step / 1000)
            await asyncio.sleep(0.05)
    elif what == "hang":
        await asyncio.sleep(600)
    elif what == "deaf":
        while True:
            try:
                await asyncio.sleep(600)
            except BaseException:
                pass
    elif what == "block":
        time.sleep(payload["seconds"])
    elif what == "spin":
        while True:
            pass
    elif what == "say":
        print(f"printed by {ctx.job_id}")
        await asyncio.sleep(0.05)
        tell(ctx)
    elif what == "leave":
        asyncio.create_task(leftover(payload["until"]))
        asyncio.get_running_loop().call_later(3600, print)
    elif what == "exit":
        asyncio.create_task(leave())
        await asyncio.sleep(0.05)
    elif what == "fork":
        if os.fork() == 0:
            await asyncio.sleep(0)
    elif what == "extend":
        ctx.extend("30s")
        await asyncio.sleep(payload["seconds"])
    elif what == "polite":
        while not ctx.cancelled:
            await asyncio.sleep(0.01)
        return "stopped"
    record("end", ctx)
    return ctx.job_id

async def leave():
    raise SystemExit(3)

async def leftover(path):
    try:
        await asyncio.sleep(3600)
    finally:
        open(path, "w").close()

def in_threads(payload, ctx):
    record("start", ctx)
    what = payload.get("do")
    if what == "sleep":
        time.sleep(payload["seconds"])
    elif what in ("wait", "segfault"):
        ctx.extend(100)
        while not os.path.exists(payload["until"]):
            time.sleep(0.01)
        if what == "segfault":
            ctypes.string_at(0)
    elif what == "raise":
        raise ValueError("its own payload")
    elif what == "hang":
        while True:
            time.sleep(0.01)
    elif what == "deaf":
        time.sleep(600)
    elif what == "say":
        print(f"printed by {ctx.job_id}")
        time.sleep(0.05)
        tell(ctx)
    elif what == "fork":
        if os.fork() == 0:
            return 1
    elif what == "extend":
        ctx.extend("30s")
        time.sleep(payload["seconds"])
    elif what == "polite":
        while not ctx.cancelled:
            time.sleep(0.01)
        return "stopped"
    record("end", ctx)
    return ctx.job_id
"""
KINDS = pytest.mark.parametrize("kind", ["on_loop", "in_threads"])


def pool(kind: str, **more: str) -> str:
    """The pool with a handler of that kind; `more` replaces or adds keys."""
    keys = dict(line.split(" = ", 1) for line in POOL.replace("NAME", kind).splitlines() if " = " in line) | more
    return "[pools.many]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


def waiting(site: Site, count: int, **more: object) -> list[int]:
    """So many jobs that run until the file "gate" is there."""
    payload = {"do": "wait", "until": str(site.folder / "gate")}
    return site.queue.enqueue_many("many", [payload | more] * count)


def all_run(site: Site, jobs: list[int]) -> None:
    wait_for(lambda: all(site.runs("start", job) for job in jobs), f"{len(jobs)} jobs to run")


@KINDS
def test_five_hundred_jobs_that_wait_take_no_longer_than_fifty_at_a_time_need(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind), HANDLERS)
    jobs = site.queue.enqueue_many("many", [{"do": "sleep", "seconds": 0.1}] * 500)
    site.start()
    site.verdict()
    assert [site.job(job).result for job in jobs] == jobs
    [(took,)] = site.rows("SELECT max(completed_at) - min(started_at) FROM jobs WHERE type = 'many'")
    assert took < 10  # one after the other, they would take 50 s
    assert site.rows("SELECT DISTINCT attempts, crashes FROM jobs WHERE type = 'many'") == [(1, 0)]
    assert not site.event("process_changed")


@KINDS
def test_a_job_that_has_ended_is_settled_while_the_others_run(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind, concurrency="3"), HANDLERS)
    slow = waiting(site, 2)
    site.start()
    all_run(site, slow)
    quick = [site.queue.enqueue("many") for _ in range(5)]
    for job in quick:
        assert site.done(job).result == job
    [worker] = site.workers("many")
    assert {worker.job} <= set(slow)
    assert site.count("running") == 2
    (site.folder / "gate").touch()
    site.verdict()


@KINDS
def test_what_a_job_says_reports_and_enqueues_is_its_own(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind), HANDLERS)
    jobs = site.queue.enqueue_many("many", [{"do": "say"}] * 20)
    site.start()
    for job in jobs:
        site.done(job)
    for job, log in site.rows("SELECT job_id, log FROM job_runs WHERE log IS NOT NULL"):
        assert log.splitlines()[0] == f"printed by {job}"
        assert f"by={job}" in log or json.loads(log.splitlines()[1])["by"] == job
        assert len(log.splitlines()) == 2
    assert len(site.rows("SELECT 1 FROM job_runs WHERE log IS NOT NULL")) == 20
    wait_for(lambda: site.count("done") == 40, "the children to be done")


@KINDS
def test_a_failure_is_charged_to_its_job_alone(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind), HANDLERS)
    jobs = site.queue.enqueue_many("many", [{"do": "raise"} if n == 7 else {} for n in range(20)])
    site.start()
    site.verdict(hit=[jobs[7]], failed=[jobs[7]])
    [(message, stack)] = site.rows("SELECT DISTINCT message, traceback FROM job_errors")
    assert message == "ValueError: its own payload"
    assert stack.count("File ") == 1


@KINDS
def test_a_handler_that_asks_sees_that_its_job_is_cancelled(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind), HANDLERS)
    jobs = site.queue.enqueue_many("many", [{"do": "polite"}] * 40)
    others = waiting(site, 5)
    site.start()
    all_run(site, jobs + others)
    for job in jobs:
        site.queue.cancel(job)
    for job in jobs:
        assert site.queue.wait(job, timeout=20).status is Status.DONE
    assert site.count("running") == 5
    (site.folder / "gate").touch()
    for job in others:
        site.done(job)


@KINDS
def test_extend_gives_one_job_more_time(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind, timeout='"1s"'), HANDLERS)
    [job] = site.queue.enqueue_many("many", [{"do": "extend", "seconds": 2.0}])
    site.start()
    assert site.done(job).attempts == 1


def test_what_a_job_leaves_on_the_loop_ends_with_it(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    other = waiting(site, 1)
    flag = site.folder / "cleaned"
    job = site.queue.enqueue("many", {"do": "leave", "until": str(flag)})
    site.start()
    site.done(job)
    wait_for(flag.exists, "the leftover to be cancelled")
    (site.folder / "gate").touch()
    site.done(other[0])


def test_an_exit_in_a_task_of_a_job_does_not_end_the_worker(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    waiting(site, 3)
    job = site.queue.enqueue("many", {"do": "exit"})
    site.start()
    assert site.done(job).result == job
    (site.folder / "gate").touch()
    site.verdict()
    assert not site.event("worker_died")


def test_tasks_of_both_kinds_share_a_worker(make_site: MakeSite) -> None:
    handlers = """
import asyncio, threading, time
from supervisor import task

@task
async def on_loop(n: int) -> list[str | int]:
    await asyncio.sleep(0.2)
    return [threading.current_thread().name, n]

@task
def in_thread(n: int) -> list[str | int]:
    time.sleep(0.2)
    return [threading.current_thread().name, n]
"""
    site = make_site('[pools.both]\ntasks = ["jobs"]\nworkers = 1\nconcurrency = 20\n', handlers)
    first = [site.queue.enqueue("on_loop", {"n": n}) for n in range(10)]
    second = [site.queue.enqueue("in_thread", {"n": n}) for n in range(10)]
    site.start()
    results = [site.done(job).result for job in first + second]
    assert [n for _, n in results] == [*range(10)] * 2
    assert {name for name, _ in results[:10]} == {"MainThread"}
    assert len({name for name, _ in results[10:]} - {"MainThread"}) > 1


DECORATED = """
import asyncio, functools, threading
from ledger import record
from supervisor import task

def plain(function):
    @functools.wraps(function)
    def decorated(*args, **kwargs):
        return function(*args, **kwargs)
    return decorated
"""


@pytest.mark.parametrize("kind", ["function", "Method"])
@pytest.mark.parametrize("concurrency", ["1", "10"])
def test_an_async_function_in_a_plain_decorator_runs_alone_and_not_beside_others(
    make_site: MakeSite, kind: str, concurrency: str
) -> None:
    handlers = (
        DECORATED
        + """
@plain
async def function(payload, ctx):
    await asyncio.sleep(0.01)
    return payload

class Method:
    @plain
    async def handle(self, payload, ctx):
        return await function(payload, ctx)
"""
    )
    site = make_site(pool(kind, concurrency=concurrency, retry="{ max_attempts = 1 }"), handlers)
    job = site.queue.enqueue("many", 7)
    site.start()
    if concurrency == "1":
        assert site.done(job).result == 7
    else:
        assert "make it an `async def`" in str(site.queue.wait(job, timeout=30).last_error)


@KINDS
def test_a_worker_leaves_after_max_jobs_per_worker(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind, max_jobs_per_worker="30"), HANDLERS)
    site.queue.enqueue_many("many", [{"do": "sleep", "seconds": 0.02}] * 100)
    site.start()
    site.verdict()
    per_worker = site.rows("SELECT count(*) FROM job_runs GROUP BY worker")
    assert site.told("worker_left", pool="many")
    assert not site.event("worker_died")
    assert per_worker


def test_a_new_job_wakes_a_worker_that_has_free_places(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    busy = waiting(site, 1)
    site.start()
    all_run(site, busy)
    for _ in range(5):
        job = site.queue.enqueue("many")
        wait_for(lambda job=job: site.job(job).status is Status.DONE, "the job", patience=3)
    (site.folder / "gate").touch()
    site.verdict()


@KINDS
def test_middleware_is_called_around_each_job(make_site: MakeSite, kind: str) -> None:
    handlers = (
        HANDLERS
        + """
import contextvars
NUMBER = contextvars.ContextVar("number", default=0)

class Around:
    def around_run(self, call, ctx):
        NUMBER.set(ctx.job_id)
        call()

    def on_failure(self, job, error):
        open(f"failed-{job.id}", "w").write(repr(error))

async def on_loop(payload, ctx):
    await asyncio.sleep(payload["seconds"])
    if payload.get("fail"):
        raise ValueError("oh")
    record("end", ctx)
    return NUMBER.get()

def in_threads(payload, ctx):
    time.sleep(payload["seconds"])
    if payload.get("fail"):
        raise ValueError("oh")
    record("end", ctx)
    return NUMBER.get()
"""
    )
    site = make_site(pool(kind, middleware='["jobs:Around"]', timeout='"1s"'), handlers)
    jobs = site.queue.enqueue_many("many", [{"seconds": 0.2}] * 20)
    failing = site.queue.enqueue("many", {"seconds": 0.1, "fail": True})
    site.start()
    site.verdict(hit=[failing], failed=[failing])
    assert [site.job(job).result for job in jobs] == jobs
    assert (site.folder / f"failed-{failing}").read_text() == "ValueError('oh')"


@KINDS
def test_middleware_may_call_the_handler_in_another_thread(make_site: MakeSite, kind: str) -> None:
    handlers = (
        HANDLERS
        + """
class Around:
    def around_run(self, call, ctx):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
"""
    )
    site = make_site(pool(kind, middleware='["jobs:Around"]'), handlers)
    jobs = [site.queue.enqueue("many", {"do": "say"}) for _ in range(10)]
    site.start()
    assert [site.done(job).result for job in jobs] == jobs
    assert not site.event("middleware_failed")
    for job in jobs:
        [(log,)] = site.rows(f"SELECT log FROM job_runs WHERE job_id = {job}")
        assert log.startswith(f"printed by {job}\n")


def test_an_async_job_under_middleware_is_stopped_at_its_limit(make_site: MakeSite) -> None:
    handlers = HANDLERS + "\nclass Around:\n    def around_run(self, call, ctx):\n        call()\n"
    more = {"middleware": '["jobs:Around"]', "timeout": '"1s"', "retry": "{ max_attempts = 1 }"}
    site = make_site(pool("on_loop", **more), handlers)
    bad = site.queue.enqueue("many", {"do": "hang"})
    others = waiting(site, 5)
    site.start()
    all_run(site, others)
    assert site.queue.wait(bad, timeout=20).status is Status.FAILED
    (site.folder / "gate").touch()
    site.verdict(hit=[bad], failed=[bad])
    assert site.rows("SELECT kind FROM job_errors") == [("timeout",)]
    assert not site.event("worker_died")


def test_status_shows_how_many_jobs_a_worker_runs(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    jobs = waiting(site, 7)
    site.start()
    all_run(site, jobs)
    wait_for(lambda: site.workers("many")[0].running == 7, "the slot")
    [worker] = json.loads(site.command("status", "--json").stdout)["workers"]
    assert (worker["running"], worker["claims"], worker["job"] in jobs) == (7, 7, True)
    assert " +6 " in site.command("status").stdout
    (site.folder / "gate").touch()
    site.verdict()


def test_a_pool_does_not_grow_while_its_workers_have_free_places(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop").replace("workers = 1", "min_workers = 1\nmax_workers = 4"), HANDLERS)
    site.start()
    jobs = waiting(site, 30)
    all_run(site, jobs)
    assert len(site.workers("many")) == 1
    more = waiting(site, 60)
    all_run(site, more)
    assert len(site.workers("many")) >= 2
    (site.folder / "gate").touch()
    site.verdict()


def test_the_working_directory_is_put_back_when_no_job_runs(make_site: MakeSite) -> None:
    handlers = (
        HANDLERS
        + """
async def on_loop(payload, ctx):
    where = os.getcwd()
    if payload.get("change"):
        os.chdir("/")
    return where
"""
    )
    site = make_site(pool("on_loop"), handlers)
    site.start()
    before = site.done(site.queue.enqueue("many")).result
    site.done(site.queue.enqueue("many", {"change": True}))
    wait_for(lambda: all(worker.state == State.IDLE for worker in site.workers("many")), "the worker to be idle")
    after = site.queue.enqueue("many")
    assert site.done(after).result == before
    assert site.queue.acknowledged


def test_a_worker_that_grows_beyond_max_memory_is_replaced_when_its_jobs_have_ended(make_site: MakeSite) -> None:
    handlers = (
        HANDLERS
        + """
KEPT = []

async def on_loop(payload, ctx):
    record("start", ctx)
    KEPT.append(b"m" * (payload.get("mib", 0) << 20))
    await asyncio.sleep(0.05)
    record("end", ctx)
"""
    )
    site = make_site(pool("on_loop", max_memory='"200MiB"'), handlers)
    site.queue.enqueue_many("many", [{"mib": 1}] * 400)
    site.start()
    site.verdict()
    assert site.told("worker_left", pool="many")
    assert not site.event("worker_died")


@pytest.mark.each_engine
@pytest.mark.parametrize("how", ["on_loop", "in_threads"])
def test_a_job_with_the_id_of_a_deleted_one_gets_its_own_result(make_site: MakeSite, how: str, tmp_path: Path) -> None:
    """Tokens begin anew with the row: the claim of the new job looks like that of the run of the deleted one."""
    site = make_site(POOL.replace("NAME", how), HANDLERS)
    old, new = tmp_path / "old", tmp_path / "new"
    job = site.queue.enqueue("many", {"do": "wait", "until": str(old)})
    site.start()
    wait_for(lambda: site.runs("start", job))
    payload = json.dumps({"do": "wait", "until": str(new)})
    execute(site.queue.url, f"DELETE FROM jobs WHERE id = {job}")
    execute(site.queue.url, f"INSERT INTO jobs (id, type, payload) VALUES ({job}, 'many', '{payload}')")
    wait_for(lambda: len(site.runs("start", job)) == 2)
    old.touch()
    site.told("claim_lost", job=job)
    site.done(site.queue.enqueue("many", {"do": "nothing"}))
    assert site.job(job).status == Status.RUNNING
    new.touch()
    assert site.done(job).attempts == 1
    tokens, pids = {run[0] for run in site.runs("end", job)}, {run[1] for run in site.runs("start", job)}
    assert (len(tokens), len(pids)) == (2, 1)
