"""Statements of maintainer and workers fail, once or several times in a row, while everything is going on.

One run has a bit of everything: a dead supervisor's jobs, expired claims, a death, a batch, a failed job with
a second chance, a cancelled one, schedules, a pool at zero, old rows to prune, old minutes, locks to renew. Several
statements fail in the same run, each once over all processes. Afterwards all goes on: nothing is lost,
nothing is charged, each schedule fires.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from supervisor.engine import open_engine
from supervisor.store.base import Operations
from tests.faults.test_sweep_maintainer import a_dead_supervisors_jobs
from tests.ledger import Ledger
from tests.site_under_test import PATIENCE, MakeSite, Site, wait_for

POOLS = """
[defaults]
lock_time = "1s"
prefetch = 2
retry = { max_attempts = 2, base = "10ms", jitter = 0 }
[pools.work]
handler = "jobs:work"
workers = 2
capabilities = ["gpu"]
retry_failed_every = "200ms"
retry_failed_times = 1
[pools.batch]
handler = "jobs:Batch"
workers = 1
batch_size = 4
[pools.sleepy]
handler = "jobs:work"
min_workers = 0
[pools.sized]
handler = "jobs:work"
workers = 1
[[schedules]]
name = "ticks"
type = "work"
payload = "tick"
every = "1s"
[retention]
done = "1h"
"""
HANDLERS = """
import os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    runs = open("LEDGER").read().count(f"start {ctx.job_id} ")
    if payload == "deadly" and runs == 1:
        os.kill(os.getpid(), 9)
    if payload == "flaky" and runs < 3:
        raise ValueError("neither its first attempt nor its second")
    if payload == "parent":
        ctx.enqueue("work", "child")
    end = time.monotonic() + (payload if isinstance(payload, float) else 0)
    while time.monotonic() < end:
        time.sleep(0.01)
    record("end", ctx)
    return "ok" if payload == "result" else None

class Batch:
    def handle_batch(self, payloads, ctx):
        for job in ctx.jobs:
            record("start", job)
            record("end", job)
        return [None] * len(payloads)
"""
OLD_HOURS = (1000, *range(40, 52))  # ago: one is past keeping
HOURS = "SELECT done, minute FROM job_history WHERE type = 'old'"


@dataclass
class Scene:
    """What is put into the queue before the start, by its fate."""

    site: Site
    dead: list[int]
    ghosts: list[int]
    deadly: int
    flaky: int
    endless: int
    old: int

    def hit(self) -> set[int]:
        return {*self.dead, *self.ghosts, self.deadly, self.flaky}


def prepare(site: Site) -> Scene:
    queue = site.queue
    dead = a_dead_supervisors_jobs(site)
    [(ghost,)] = site.rows(
        "INSERT INTO jobs(type, status, locked_by, lock_expires_at) VALUES ('work', 'running', 'ghost', 1) RETURNING id"
    )
    [(manual,)] = site.rows("INSERT INTO jobs(type, status) VALUES ('work', 'running') RETURNING id")
    [(old,)] = site.rows("INSERT INTO jobs(type, status, completed_at) VALUES ('work', 'done', 1) RETURNING id")
    add_old_minutes(site)
    deadly, flaky, _, _ = queue.enqueue_many("work", ["deadly", "flaky", "parent", "result"])
    for requires in ("", "gpu"):
        queue.enqueue_many("work", [0.0] * 4, requires=requires)
    queue.enqueue_many("batch", [{}] * 6)
    queue.enqueue_many("sleepy", [0.0] * 3)
    queue.enqueue("work", 1.4)  # longer than its lock
    endless = queue.enqueue("sleepy", 60.0)
    with_operations(site, lambda operations: operations.controls.scale("sized", 3, 1.0))
    return Scene(site, dead, [ghost, manual], deadly, flaky, endless, old)


def add_old_minutes(site: Site) -> None:
    """The first three minutes of each of those hours."""
    this_hour = time.time() // 3600 * 3600
    minutes = [this_hour - ago * 3600 + minute * 60 for ago in OLD_HOURS for minute in range(3)]
    values = ", ".join(f"({minute}, 'old', 1, 0, 0, 0, 0.0, 0.0)" for minute in minutes)
    site.rows(f"INSERT INTO job_history VALUES {values}")


def hours(site: Site) -> list[tuple[int, float]]:
    return [(done, minute % 3600) for done, minute in site.rows(HOURS)]


def with_operations(site: Site, act: Callable[[Operations], object]) -> None:
    operations = open_engine(site.url).operations()
    act(operations)
    operations.close()


def see_through(scene: Scene, points: Sequence[str], hit: Callable[[int], None] | None = None) -> None:
    """Start it, wait for each of the points, and for all that has to come of everything; `hit` gets the pid of
    whom the points have met first.
    """
    site = scene.site
    patience = 120.0 if any("*3" in point for point in points) else PATIENCE  # each failure lengthens a pause
    run = site.start(wait=False, env=site.failpoints(*points))
    asks = hit is not None and points[0].startswith("maintainer:channel.send.cancels")  # there is none yet
    if hit is not None and not asks:
        hit(site.hit(points[0]))
    wait_for(lambda: site.runs("start", scene.endless), "the endless job to start", patience)
    with_operations(site, lambda operations: operations.actions.cancel(scene.endless, 1e9))
    if hit is not None and asks:
        hit(site.hit(points[0]))
    wait_for(lambda: site.job(scene.endless).status == "cancelled", "the cancel to be obeyed")
    wait_for(lambda: len(site.workers("sized")) == 3, "the pool's new size")
    for point in points:
        wait_for((site.once / point).exists, f"{point} to happen", patience)
    wait_for(lambda: site.job(scene.flaky).status == "done", "its second chance")
    wait_for(lambda: len(ticks(site)) >= 2, "the schedule to fire")
    wait_for(lambda: {site.job(job).status for job in scene.ghosts} == {"done"}, "the expired claims", patience)
    late = site.queue.enqueue("sleepy", 0.0)
    site.done(late)
    wait_for(lambda: not site.rows("SELECT id FROM jobs WHERE id = ?", scene.old), "the old row to be pruned")
    wait_for(lambda: hours(site) == [(3, 0)] * 12, "the hours of the history")
    children = [row[0] for row in site.rows("SELECT id FROM jobs WHERE payload = '\"child\"'")]
    assert len(children) == 1
    assert site.stop(run) == 0
    # Its first outcome was taken back by the second chance.
    ends = site.rows("SELECT status FROM test_outcomes WHERE job = ?", scene.flaky)
    assert ends == [("failed",), ("done",)]
    site.rows("DELETE FROM test_outcomes WHERE job = ? AND status = 'failed'", scene.flaky)
    fired = ticks(site)
    by_hand = [*scene.ghosts, *children, *(job for job, status in fired.items() if status == "done")]
    # The workers of a template that was killed end with it; their jobs run again and are not charged.
    template = any(point.startswith("template") and point.endswith("kill") for point in points)
    ended = site.queue.acknowledged if template else ()
    site.verdict(
        hit={*scene.hit(), *ended, *finished_just_before(site, scene.deadly)},
        others=by_hand,
        cancelled=[scene.endless],
        gone=[scene.old],
        pending=[job for job, status in fired.items() if status == "pending"],
    )
    charged = dict(site.rows("SELECT id, crashes FROM jobs WHERE crashes > 0"))
    # A template that is killed over the word of a worker's death takes that word with it.
    assert {*charged, *([scene.deadly] if template else [])} == {scene.dead[2], *scene.ghosts, scene.deadly}
    assert set(charged.values()) == {1}
    assert not site.event("lock_reclaimed", owner="work")


def finished_just_before(site: Site, deadly: int) -> set[int]:
    """What the worker that a job has killed may have finished and not committed: the rest of its round. A round has two
    claims, or four when it is told of two whose answer was lost.
    """
    lines = Ledger(site.ledger, site.where).lines()
    pid = site.runs("start", deadly)[0][1]
    return {line.job for line in [line for line in lines if line.pid == pid and line.what == "end"][-3:]}


def ticks(site: Site) -> dict[int, str]:
    return dict(site.rows("SELECT id, status FROM jobs WHERE payload = '\"tick\"'"))


# By concern, so that several statements of each run meet in one transaction or one duty.
MAINTAINER = {
    "start": ["open", "register_supervisor", "supervisors", "workers_of", "forget_supervisor", "begin", "commit"],
    "the dead": ["held_by", "settle", "insert_error", "insert_run", "forget_worker"],
    "locks": ["needs_renewal", "renew", "expired", "claim_of", "adopt_unowned"],
    "waking": ["groups", "data_version", "controls", "cancels", "unhandled", "inserted"],
    "schedules": ["schedule", "plan", "move_on", "note_fired", "insert_job"],
    "upkeep": ["prune_until", "prune", "prune_errors", "prune_runs", "prune_batch_limits", "prune_second_chances"],
    "history": ["has_history_before", "forget_history", "first_minute", "add_hour", "forget_minutes"],
    "chances": ["failed_after", "retry", "note_second_chance"],
}
WORKER = {
    "start": ["open", "register_worker", "begin", "commit"],
    "claims": ["groups", "claim_group", "peek_group", "claim_ids", "batch_limits"],
    "ends": ["settle_done", "settle_plain", "settle", "insert_error", "insert_job"],
}
ON_A_SERVER = {
    "maintainer": MAINTAINER
    | {
        "waking": ["first_of_groups", "version", "listen", "sleep", "read_only", "controls", "cancels", "unhandled"],
        "leases": ["renew_lease", "announce"],
    },
    "worker": WORKER
    | {"claims": ["settle_and_claim", "batch_limits"], "ends": ["settle", "insert_error", "insert_job"]},
}
# Without a commit of their own; run once, in a transaction whose first statement has had its failure at the commit.
NO_COMMIT = (
    "open",
    "begin",
    "commit",
    "data_version",
    "note_second_chance",
    "insert_job",
    "note_fired",
    "forget_minutes",
)
# The first two lose the connection; after a commit, nothing else can happen there.
KINDS = {
    "sqlite": ("busy", "full", "error"),
    "postgres": ("lost", "shutdown", "deadlock", "full"),
}
SESSION_ENDS = KINDS["postgres"][:2]
LONG = {"sqlite": pytest.mark.long, "postgres": pytest.mark.on_postgres}


def sweep(role: str, engine: str, chunks: dict[str, list[str]]) -> list[object]:
    """Each concern with one kind of error before its statements, two concerns in a run, for `make test`; every other
    kind and place for `make long`, and on a server for `make long-postgres`.
    """
    found, quick = [], []
    kinds = KINDS[engine]
    for number, (name, statements) in enumerate(chunks.items()):
        for kind in kinds:
            for when in (".before", "", ".committed", ".before*3"):
                place, _, times = when.partition("*")
                named = [s for s in statements if place != ".committed" or s not in NO_COMMIT]
                if engine == "postgres" and place != ".before" and kind not in SESSION_ENDS:
                    continue
                points = [f"{role}:{s}{place}=fail:{kind}{times and '*' + times}" for s in named]
                words = f"{name}: {when or 'after'} {kind}"
                if when == ".before" and kind == kinds[number % 3] and (engine == "sqlite" or number == 0):
                    quick.append((words, points))
                else:
                    found.append(pytest.param(engine, points, id=f"{engine}: {words}", marks=LONG[engine]))
    for first in range(0, len(quick), 2):
        names, lists = zip(*quick[first : first + 2], strict=True)
        found.append(
            pytest.param(engine, [point for points in lists for point in points], id=f"{engine}: {', '.join(names)}")
        )
    return found


def on_each_engine(role: str, chunks: dict[str, list[str]]) -> pytest.MarkDecorator:
    cases = sweep(role, "sqlite", chunks) + sweep(role, "postgres", ON_A_SERVER[role])
    return pytest.mark.parametrize(("make_site", "points"), cases, indirect=["make_site"])


@pytest.mark.fault(70)
@pytest.mark.timeout(300)
@on_each_engine("maintainer", MAINTAINER)
def test_all_goes_on_after_statements_of_the_maintainer_have_failed(make_site: MakeSite, points: list[str]) -> None:
    see_through(prepare(make_site(POOLS, HANDLERS)), points)


@pytest.mark.fault(71)
@on_each_engine("worker", WORKER)
def test_all_goes_on_after_statements_of_workers_have_failed(make_site: MakeSite, points: list[str]) -> None:
    see_through(prepare(make_site(POOLS, HANDLERS)), points)


@pytest.mark.fault(70, 71)
def test_the_scene_itself_ends_as_it_should(make_site: MakeSite) -> None:
    see_through(prepare(make_site(POOLS, HANDLERS)), [])


# Messages between processes: what a socket says when the kernel has no memory or no room just now, or a signal came.
TALK = [
    *(f"supervisor:channel.{way}" for way in ("send.death", "send.fork", "receive.ack", "receive.recovered")),
    *(
        f"supervisor:channel.receive.{kind}"
        for kind in ("depths", "controls", "cancels", "ready", "forked", "exited", "swept")
    ),
    *(f"maintainer:channel.{way}" for way in ("receive.death", "send.ack", "send.recovered", "send.depths")),
    *(f"maintainer:channel.send.{kind}" for kind in ("controls", "cancels")),
    *(f"template:channel.{way}" for way in ("receive.fork", "send.ready", "send.forked", "send.exited")),
]
ERRNOS = ("EAGAIN", "EINTR", "ENOBUFS", "ENOMEM")


@pytest.mark.fault(72)
@pytest.mark.parametrize(
    "number", [*ERRNOS[:2], *(pytest.param(number, marks=pytest.mark.long) for number in ERRNOS[2:])]
)
@pytest.mark.parametrize("times", ["", pytest.param("*3", marks=pytest.mark.long)])
def test_all_goes_on_after_the_channel_has_refused_each_message(make_site: MakeSite, number: str, times: str) -> None:
    """Every kind in the same run: the first of each is refused once, or three times in a row."""
    see_through(prepare(make_site(POOLS, HANDLERS)), [f"{place}=fail:{number}{times}" for place in TALK])


@pytest.mark.fault(72)
@pytest.mark.long
@pytest.mark.parametrize("action", ["kill", "stop"])
@pytest.mark.parametrize("place", [place for place in TALK if not place.startswith("supervisor")])
def test_all_goes_on_after_a_process_has_died_over_a_message(make_site: MakeSite, place: str, action: str) -> None:
    """A stopped one is taken for stuck in the end, or continued by whoever stopped it."""
    site = make_site(POOLS, HANDLERS)
    scene = prepare(site)
    point = f"{place}={action}"
    continued = (lambda pid: os.kill(pid, signal.SIGCONT)) if action == "stop" else None
    see_through(scene, [point], hit=continued)
