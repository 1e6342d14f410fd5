"""Pools: their size follows the load, their workers are replaced with care, their handlers may be broken."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable

import psutil

from supervisor import Status
from tests.site_under_test import Site, pool, wait_for
from tests.stopwatch import Stopwatch

MakeSite = Callable[..., Site]


def test_a_pool_grows_from_nothing_to_its_most_and_back(make_site: MakeSite) -> None:
    site = make_site(pool(min_workers=0, max_workers=4, scale_down_delay="200ms"))
    site.start()
    assert site.workers("work") == []
    jobs = site.queue.enqueue_many("work", [{"seconds": 0.3}] * 12)
    wait_for(lambda: len(site.workers("work")) == 4, "four workers")
    for job in jobs:
        site.done(job)
    wait_for(lambda: not site.workers("work"), "no worker")
    scaled = [e for e in site.events() if e.get("event") == "pool_scaled"]
    assert (scaled[0]["before"], scaled[0]["target"]) == (0, 4)
    assert "max_workers = 4" in scaled[0]["why"]
    assert [e["target"] for e in scaled][-1] == 0
    assert "not needed for" in scaled[-1]["why"]
    site.done(site.queue.enqueue("work"))  # a job wakes the pool at 0 again


def test_a_job_goes_only_to_a_worker_with_all_the_capabilities_it_requires(make_site: MakeSite) -> None:
    able_to = {"ab": "ab", "bc": "bc", "all": "abcd"}
    more = {"types": ["work"], "handler": "jobs:work"}
    site = make_site("".join(pool(name, capabilities=list(words), **more) for name, words in able_to.items()))
    site.start()
    wait_for(lambda: sum(w.state == 2 for w in site.workers()) == 3, "three idle workers")
    [able] = [w.pid for w in site.workers("all")]
    for requires in ("d a", "c  a", "a d c"):
        [(job,)] = site.rows("INSERT INTO jobs(type, requires) VALUES ('work', ?) RETURNING id", requires)
        watch = Stopwatch()
        assert site.done(job).result == {"pid": able}
        assert watch.seconds() < 1
    [(nobody,)] = site.rows("INSERT INTO jobs(type, requires) VALUES ('work', 'e') RETURNING id")
    site.done(site.queue.enqueue("work"))
    assert site.job(nobody).status is Status.PENDING


def test_workers_are_replaced_when_they_have_done_their_share(make_site: MakeSite) -> None:
    site = make_site(pool(max_jobs_per_worker=3))
    site.start()
    jobs = site.queue.enqueue_many("work", [{}] * 10)
    pids = [site.done(job).result["pid"] for job in jobs]
    assert max(pids.count(pid) for pid in pids) <= 3
    assert sum(site.job(job).crashes for job in jobs) == 0


def test_a_reload_replaces_the_workers_and_an_invalid_file_changes_nothing(make_site: MakeSite) -> None:
    site = make_site(pool())
    supervisor = site.start()
    before = site.done(site.queue.enqueue("work")).result["pid"]
    site.configure(pool(workers="many"))
    supervisor.send_signal(signal.SIGHUP)
    refused = wait_for(lambda: site.event("reload_refused"), "the refusal")
    assert "pools.work.workers" in refused["problems"][0]
    assert site.done(site.queue.enqueue("work")).result["pid"] == before
    site.configure(pool(workers=3))
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: site.event("reloaded"), "the reload")
    wait_for(lambda: not psutil.pid_exists(before), "the old worker to leave")
    wait_for(lambda: len(site.workers("work")) == 3, "three workers")
    assert site.done(site.queue.enqueue("work")).result["pid"] != before


def test_an_option_that_does_not_exist_and_a_wrong_signature_break_the_pool_before_any_job(make_site: MakeSite) -> None:
    config = pool("mail", handler="handlers.mail:send", options={"hots": "x"}) + pool("noctx")
    site = make_site(config, "def noctx(payload): return 1\n")
    jobs = [site.queue.enqueue(type_, {}) for type_ in ("mail", "noctx")]
    site.start()
    unknown = "options.hots: there is no such option; did you mean host?"
    wait_for(lambda: site.event("worker_died", pool="mail", reason="setup_failed", detail=unknown))
    wrong = "jobs:noctx: it must take (payload, ctx)"
    wait_for(lambda: site.event("worker_died", pool="noctx", reason="setup_failed", detail=wrong))
    assert [site.job(job).attempts for job in jobs] == [0, 0]


def test_a_burst_ends_when_a_handler_cannot_be_set_up(make_site: MakeSite) -> None:
    site = make_site(pool("missing", handler="no_such_module:handle"))
    job = site.queue.enqueue("missing")
    assert site.start("--burst", wait=False).wait(30) == 1
    assert site.job(job).status is Status.PENDING


def test_a_delayed_job_starts_when_it_is_due(make_site: MakeSite) -> None:
    site = make_site(pool())
    site.start()
    job = site.queue.enqueue("work", delay="700ms")
    due = site.job(job).scheduled_at
    watch = Stopwatch()
    site.done(job)
    [(_, _, started)] = site.runs("start", job)
    assert started - due >= 0
    assert watch.seconds(started - due) < 0.3


def test_children_are_enqueued_with_the_completion_or_not_at_all(make_site: MakeSite) -> None:
    site = make_site(
        pool("parent", retry={"max_attempts": 2, "base": "10ms", "jitter": 0}) + pool("again"),
        "def parent(payload, ctx):\n"
        "    ctx.enqueue('child', {'of': ctx.job_id, 'attempt': ctx.attempt})\n"
        "    if ctx.attempt == 1: raise ValueError('the first child must not exist')\n"
        "def again(payload, ctx):\n"
        "    if payload['left']: ctx.enqueue('again', {'left': payload['left'] - 1}, unique_key='again')\n",
    )
    site.start()
    job = site.queue.enqueue("parent")
    site.done(job)
    assert site.rows("SELECT json_extract(payload, '$.attempt') FROM jobs WHERE type = 'child'") == [(2,)]
    site.queue.enqueue("again", {"left": 3}, unique_key="again")
    wait_for(lambda: site.rows("SELECT count(*) FROM jobs WHERE type = 'again' AND status = 'done'") == [(4,)])


def test_another_program_gets_its_turn_at_writing_beside_saturating_workers(make_site: MakeSite) -> None:
    site = make_site(pool("noop", workers=4, max_jobs_per_worker=10000000))
    site.queue.enqueue_many("noop", [{}] * 150_000)
    site.start()
    wait_for(lambda: site.count("done") > 1000, "the workers to be at it")
    # A plain connection with SQLite's usual patience, which knows nothing of our lock.
    foreign = sqlite3.connect(site.database, timeout=5, isolation_level=None)
    for _ in range(20):
        if site.count("pending") < 20_000:  # this test was held up, not its insert
            site.queue.enqueue_many("noop", [{}] * 100_000)
        foreign.execute("INSERT INTO jobs(type) VALUES ('other')")  # raises "database is locked" when starved
    foreign.close()
