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
import asyncio, contextvars, ctypes, os, threading, time
from ledger import record

KEPT = []
NUMBER = contextvars.ContextVar("number", default=0)

def pauses(what, payload, ctx):
    "What a handler of either kind does, between pauses of so many seconds."
    if what == "sleep":
        yield payload["seconds"]
    elif what == "extend":
        ctx.extend("30s")
        yield payload["seconds"]
    elif what in ("wait", "segfault"):
        ctx.extend(100)
        while not os.path.exists(payload["until"]):
            yield 0.01
        if what == "segfault":
            ctypes.string_at(0)
    elif what == "report":
        for step in range(1000):
            ctx.progress(step / 1000)
            yield 0.05
    elif what == "say":
        print(f"printed by {ctx.job_id}")
        yield 0.05
        ctx.log.info("logged", by=ctx.job_id)
        ctx.progress(0.5, f"half of {ctx.job_id}")
        ctx.enqueue("many", {"do": "child"})
    elif what == "keep":
        KEPT.append(b"m" * (1 << 20))
        yield 0.05
    elif what == "polite":
        while not ctx.cancelled:
            yield 0.01

def result(what, ctx):
    return {"polite": "stopped", "number": NUMBER.get(), "where": os.getcwd()}.get(what, ctx.job_id)

async def on_loop(payload, ctx):
    record("start", ctx)
    what = payload.get("do")
    if what == "hang":
        await asyncio.sleep(600)
    elif what == "raise":
        raise ValueError("its own payload")
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
    elif what == "change":
        os.chdir("/")
    elif what == "leave":
        asyncio.create_task(leftover(payload["until"]))
        asyncio.get_running_loop().call_later(3600, print)
    elif what == "exit":
        asyncio.create_task(leave())
        await asyncio.sleep(0.05)
    elif what == "fork":
        if os.fork() == 0:
            await asyncio.sleep(0)
    for pause in pauses(what, payload, ctx):
        await asyncio.sleep(pause)
    record("end", ctx)
    return result(what, ctx)

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
    if what == "hang":
        while True:
            time.sleep(0.01)
    elif what == "raise":
        raise ValueError("its own payload")
    elif what == "deaf":
        time.sleep(600)
    elif what == "fork":
        if os.fork() == 0:
            return 1
    for pause in pauses(what, payload, ctx):
        time.sleep(pause)
    record("end", ctx)
    return result(what, ctx)

class Numbers:
    def around_run(self, call, ctx):
        NUMBER.set(ctx.job_id)
        call()
    def on_failure(self, job, error):
        open(f"failed-{job.id}", "w").write(repr(error))

class InAnotherThread:
    def around_run(self, call, ctx):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
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
def test_a_job_is_claimed_at_once_and_settled_while_others_run_which_status_shows(
    make_site: MakeSite, kind: str
) -> None:
    site = make_site(pool(kind, concurrency="8"), HANDLERS)
    slow = waiting(site, 7)
    site.start()
    all_run(site, slow)
    for _ in range(5):
        job = site.queue.enqueue("many")
        wait_for(lambda job=job: site.job(job).status is Status.DONE, "the job", patience=3)
        assert site.job(job).result == job
    assert site.count("running") == 7
    wait_for(lambda: site.workers("many")[0].running == 7, "the slot")
    [worker] = json.loads(site.command("status", "--json").stdout)["workers"]
    assert (worker["running"], worker["claims"], worker["job"] in slow) == (7, 7, True)
    assert " +6 " in site.command("status").stdout
    (site.folder / "gate").touch()
    site.verdict()


@KINDS
def test_what_a_job_says_enqueues_raises_and_needs_is_its_own(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind, timeout='"1s"'), HANDLERS)
    jobs = site.queue.enqueue_many("many", [{"do": "say"}] * 20)
    failing = site.queue.enqueue("many", {"do": "raise"})
    longer = site.queue.enqueue("many", {"do": "extend", "seconds": 2.0})
    site.start()
    wait_for(lambda: site.count("done") == 41, "all but one, and the children, to be done")
    children = [job for (job,) in site.rows("SELECT id FROM jobs WHERE type = 'many' AND id > ?", longer)]
    site.verdict(hit=[failing], failed=[failing], others=children)
    logs = dict(site.rows("SELECT job_id, log FROM job_runs WHERE log IS NOT NULL"))
    assert sorted(logs) == jobs
    for job, log in logs.items():
        printed, logged = log.splitlines()
        assert printed == f"printed by {job}"
        assert f"by={job}" in logged or json.loads(logged)["by"] == job
    [(message, stack)] = site.rows("SELECT DISTINCT message, traceback FROM job_errors")
    assert (message, stack.count("File ")) == ("ValueError: its own payload", 1)
    assert site.job(longer).attempts == 1


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


def test_what_a_job_leaves_on_the_loop_ends_with_it_and_its_exit_ends_no_worker(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    waiting(site, 3)
    flag = site.folder / "cleaned"
    left, exits = (site.queue.enqueue("many", {"do": do, "until": str(flag)}) for do in ("leave", "exit"))
    site.start()
    site.done(left)
    wait_for(flag.exists, "the leftover to be cancelled")
    assert site.done(exits).result == exits
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
    jobs = [site.queue.enqueue(name, {"n": n}) for name in ("on_loop", "in_thread") for n in range(10)]
    site.start()
    results = [site.done(job).result for job in jobs]
    assert [n for _, n in results] == [*range(10)] * 2
    assert {name for name, _ in results[:10]} == {"MainThread"}
    assert len({name for name, _ in results[10:]} - {"MainThread"}) > 1


DECORATED = """
import asyncio, functools

def plain(function):
    @functools.wraps(function)
    def decorated(*args, **kwargs):
        return function(*args, **kwargs)
    return decorated

@plain
async def function(payload, ctx):
    await asyncio.sleep(0.01)
    return payload

class Method:
    @plain
    async def handle(self, payload, ctx):
        return await function(payload, ctx)
"""


@pytest.mark.parametrize("kind", ["function", "Method"])
@pytest.mark.parametrize("concurrency", ["1", "10"])
def test_an_async_function_in_a_plain_decorator_runs_alone_and_not_beside_others(
    make_site: MakeSite, kind: str, concurrency: str
) -> None:
    site = make_site(pool(kind, concurrency=concurrency, retry="{ max_attempts = 1 }"), DECORATED)
    job = site.queue.enqueue("many", 7)
    site.start()
    if concurrency == "1":
        assert site.done(job).result == 7
    else:
        assert "make it an `async def`" in str(site.queue.wait(job, timeout=30).last_error)


@pytest.mark.parametrize(
    ("kind", "limit", "jobs"),
    [
        ("on_loop", {"max_jobs_per_worker": "30"}, [{"do": "sleep", "seconds": 0.02}] * 100),
        ("in_threads", {"max_jobs_per_worker": "30"}, [{"do": "sleep", "seconds": 0.02}] * 100),
        ("on_loop", {"max_memory": '"200MiB"'}, [{"do": "keep"}] * 400),
    ],
)
def test_a_worker_that_has_done_or_grown_enough_is_replaced_when_its_jobs_have_ended(
    make_site: MakeSite, kind: str, limit: dict[str, str], jobs: list[object]
) -> None:
    site = make_site(pool(kind, **limit), HANDLERS)
    site.queue.enqueue_many("many", jobs)
    site.start()
    site.verdict()
    assert site.told("worker_left", pool="many")
    assert not site.event("worker_died")


@KINDS
def test_middleware_is_called_around_each_job(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind, middleware='["jobs:Numbers"]', timeout='"1s"'), HANDLERS)
    jobs = site.queue.enqueue_many("many", [{"do": "number"}] * 20)
    failing = site.queue.enqueue("many", {"do": "raise"})
    late = [site.queue.enqueue("many", {"do": "hang"})] if kind == "on_loop" else []
    others = waiting(site, 5)
    site.start()
    all_run(site, others)
    for job in late:
        assert site.queue.wait(job, timeout=20).status is Status.FAILED
    (site.folder / "gate").touch()
    site.verdict(hit=[failing, *late], failed=[failing, *late])
    assert [site.job(job).result for job in jobs] == jobs
    assert (site.folder / f"failed-{failing}").read_text() == "ValueError('its own payload')"
    kinds = {kind for (kind,) in site.rows("SELECT kind FROM job_errors")}
    assert kinds == ({"exception", "timeout"} if late else {"exception"})
    assert not site.event("worker_died")


@KINDS
def test_middleware_may_call_the_handler_in_another_thread(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind, middleware='["jobs:InAnotherThread"]'), HANDLERS)
    jobs = [site.queue.enqueue("many", {"do": "say"}) for _ in range(10)]
    site.start()
    assert [site.done(job).result for job in jobs] == jobs
    assert not site.event("middleware_failed")
    for job in jobs:
        [(log,)] = site.rows(f"SELECT log FROM job_runs WHERE job_id = {job}")
        assert log.startswith(f"printed by {job}\n")


def test_a_pool_does_not_grow_while_its_workers_have_free_places(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop").replace("workers = 1", "min_workers = 1\nmax_workers = 4"), HANDLERS)
    site.start()
    all_run(site, waiting(site, 30))
    assert len(site.workers("many")) == 1
    all_run(site, waiting(site, 60))
    assert len(site.workers("many")) >= 2
    (site.folder / "gate").touch()
    site.verdict()


def test_the_working_directory_is_put_back_when_no_job_runs(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    site.start()
    before = site.done(site.queue.enqueue("many", {"do": "where"})).result
    site.done(site.queue.enqueue("many", {"do": "change"}))
    wait_for(lambda: all(worker.state == State.IDLE for worker in site.workers("many")), "the worker to be idle")
    assert site.done(site.queue.enqueue("many", {"do": "where"})).result == before


@pytest.mark.each_engine
@KINDS
def test_a_job_with_the_id_of_a_deleted_one_gets_its_own_result(make_site: MakeSite, kind: str, tmp_path: Path) -> None:
    """Tokens begin anew with the row: the claim of the new job looks like that of the run of the deleted one."""
    site = make_site(pool(kind), HANDLERS)
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
    site.done(site.queue.enqueue("many"))
    assert site.job(job).status == Status.RUNNING
    new.touch()
    assert site.done(job).attempts == 1
    tokens, pids = {run[0] for run in site.runs("end", job)}, {run[1] for run in site.runs("start", job)}
    assert (len(tokens), len(pids)) == (2, 1)
