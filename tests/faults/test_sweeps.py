"""Statements of maintainer and workers fail, messages are refused, and processes are killed or stopped at any of them,
while everything is going on.

One run has a bit of everything: a dead supervisor's jobs, expired claims, a death, a batch, a failed job with
a second chance, a cancelled one, schedules, a pool at zero, old rows to prune, old minutes, locks to renew. Several
faults happen in the same run, each once over all processes. Afterwards all goes on: nothing is lost,
nothing is charged that was not hit, each schedule fires.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from supervisor.engine import open_engine
from supervisor.store.base import Operations
from supervisor.system.scoreboard import Scoreboard
from tests.ledger import Ledger
from tests.site_under_test import PATIENCE, MakeSite, Site, wait_for
from tests.store.kit import Desk, supervisor_record, worker_record

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
prefetch = 1
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

    def hours(self) -> list[tuple[int, float]]:
        found = self.site.rows("SELECT done, minute FROM job_history WHERE type = 'old'")
        return [(done, minute % 3600) for done, minute in found]

    def ticks(self) -> dict[int, str]:
        return dict(self.site.rows("SELECT id, status FROM jobs WHERE payload = '\"tick\"'"))

    def of(self, pids: set[int]) -> set[int]:
        """The jobs that these processes have run."""
        return {line.job for line in Ledger(self.site.ledger, self.site.where).lines() if line.pid in pids}

    def finished_just_before(self) -> set[int]:
        """What the worker that a job has killed may have finished and not committed: the rest of its round. A round has
        two claims, or four when it is told of two whose answer was lost.
        """
        pid = self.site.runs("start", self.deadly)[0][1]
        lines = Ledger(self.site.ledger, self.site.where).lines()
        return {line.job for line in [line for line in lines if line.pid == pid and line.what == "end"][-3:]}


@pytest.fixture
def scene(make_site: MakeSite) -> Scene:
    site = make_site(POOLS, HANDLERS)
    queue = site.queue
    dead = a_dead_supervisors_jobs(site)
    [(ghost,)] = site.rows(
        "INSERT INTO jobs(type, status, locked_by, lock_expires_at) VALUES ('work', 'running', 'ghost', 1) RETURNING id"
    )
    [(manual,)] = site.rows("INSERT INTO jobs(type, status) VALUES ('work', 'running') RETURNING id")
    [(old,)] = site.rows("INSERT INTO jobs(type, status, completed_at) VALUES ('work', 'done', 1) RETURNING id")
    this_hour = time.time() // 3600 * 3600
    minutes = [this_hour - ago * 3600 + minute * 60 for ago in OLD_HOURS for minute in range(3)]
    values = ", ".join(f"({at}, 'old', 1, 0, 0, 0, 0.0, 0.0)" for at in minutes)
    site.rows(f"INSERT INTO job_history VALUES {values}")
    deadly, flaky, _, _ = queue.enqueue_many("work", ["deadly", "flaky", "parent", "result"])
    for requires in ("", "gpu"):
        queue.enqueue_many("work", [0.0] * 4, requires=requires)
    queue.enqueue_many("batch", [{}] * 6)
    queue.enqueue_many("sleepy", [0.0] * 3)
    queue.enqueue("work", 1.4)  # longer than its lock
    endless = queue.enqueue("sleepy", 60.0)
    with_operations(site, lambda operations: operations.controls.scale("sized", 3, 1.0))
    return Scene(site, dead, [ghost, manual], deadly, flaky, endless, old)


def a_dead_supervisors_jobs(site: Site) -> list[int]:
    """What one leaves behind that was killed with two workers: four claims, of which one had begun."""
    jobs = site.queue.enqueue_many("work", [None] * 4)
    board = Scoreboard.create(site.folder / "scoreboard-dead")
    board.use_up_to(2)
    desk = Desk.at(open_engine(site.url))
    lock = desk.engine.database.folder / "owner-dead.lock"
    lock.touch()  # which nobody holds
    desk.maintenance.registry.register(supervisor_record("dead", desk.engine, str(lock), scoreboard=str(board.path)))
    for number, worker in enumerate(("w1", "w2"), 1):
        board.slot(number).assign(worker, f"work-{number}")
        desk.claims.register(worker_record(worker, "dead", slot=number))
        claims = desk.claim(["work"], 2, owner=worker, now=4e9)
        assert len(claims) == 2
    board.slot(2).begin(claims[0].job_id, claims[0].token, 1.0, 0.0)
    desk.close()
    return jobs


def with_operations(site: Site, act: Callable[[Operations], object]) -> None:
    operations = open_engine(site.url).operations()
    act(operations)
    operations.close()


def see_through(scene: Scene, points: Sequence[str]) -> None:
    """Start it, wait for each of the points, let those go on that were stopped, and wait for all that has to come of
    everything.
    """
    site = scene.site
    patience = 120.0 if any("*3" in point for point in points) else PATIENCE  # each failure lengthens a pause
    run = site.start(wait=False, env=site.failpoints(*points))
    pids: set[int] = set()

    def reach_all() -> None:
        for point in points:
            wait_for((site.once / point).exists, f"{point} to happen", patience)
            pids.add(site.hit(point))
            if point.endswith("=stop"):
                os.kill(site.hit(point), signal.SIGCONT)

    stopped_before_the_cancel = any(point.endswith("=stop") and "cancels" not in point for point in points)
    if stopped_before_the_cancel:
        reach_all()
    wait_for(lambda: site.runs("start", scene.endless), "the endless job to start", patience)
    with_operations(site, lambda operations: operations.actions.cancel(scene.endless, 1e9))
    if not stopped_before_the_cancel:
        reach_all()
    wait_for(lambda: site.job(scene.endless).status == "cancelled", "the cancel to be obeyed")
    wait_for(lambda: len(site.workers("sized")) == 3, "the pool's new size")
    wait_for(lambda: site.job(scene.flaky).status == "done", "its second chance")
    wait_for(lambda: len(scene.ticks()) >= 2, "the schedule to fire")
    wait_for(lambda: {site.job(job).status for job in scene.ghosts} == {"done"}, "the expired claims", patience)
    site.done(site.queue.enqueue("sleepy", 0.0))
    wait_for(lambda: not site.rows("SELECT id FROM jobs WHERE id = ?", scene.old), "the old row to be pruned")
    wait_for(lambda: scene.hours() == [(3, 0)] * 12, "the hours of the history")
    assert site.stop(run) == 0
    judge(scene, points, pids)


def judge(scene: Scene, points: Sequence[str], pids: set[int]) -> None:
    site = scene.site
    killed = {point.partition(":")[0] for point in points if point.endswith("kill")}
    children = [row[0] for row in site.rows("SELECT id FROM jobs WHERE payload = '\"child\"'")]
    assert len(children) == 1
    # Its first outcome was taken back by the second chance.
    ends = [status for (status,) in site.rows("SELECT status FROM test_outcomes WHERE job = ?", scene.flaky)]
    assert ends == ["failed", "done"] or ("worker" in killed and ends == ["done"])
    site.rows("DELETE FROM test_outcomes WHERE job = ? AND status = 'failed'", scene.flaky)
    fired = scene.ticks()
    # The workers of a template that was killed end with it; their jobs run again and are not charged.
    also = site.queue.acknowledged if "template" in killed else scene.of(pids) if "worker" in killed else set()
    site.verdict(
        hit={*scene.dead, *scene.ghosts, scene.deadly, scene.flaky, *also, *scene.finished_just_before()},
        others=[*scene.ghosts, *children, *(job for job, status in fired.items() if status == "done")],
        cancelled=[scene.endless],
        gone=[scene.old],
        pending=[job for job, status in fired.items() if status == "pending"],
    )
    charged = dict(site.rows("SELECT id, crashes FROM jobs WHERE crashes > 0"))
    expected = {scene.dead[2], *scene.ghosts, scene.deadly}
    if "worker" in killed:
        assert expected <= set(charged) <= {*expected, *also}
    else:
        # A template that is killed over the word of a worker's death takes that word with it.
        assert {*charged, *([scene.deadly] if "template" in killed else [])} == expected
        assert set(charged.values()) == {1}
    assert not site.event("lock_reclaimed", owner="work")


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
WAKING_ON_A_SERVER = ["first_of_groups", "look", "listen", "controls", "cancels", "unhandled"]
ON_A_SERVER = {
    "maintainer": MAINTAINER | {"waking": WAKING_ON_A_SERVER, "leases": ["renew_lease", "announce"]},
    "worker": WORKER
    | {"claims": ["settle_and_claim", "batch_limits"], "ends": ["settle", "insert_error", "insert_job"]},
}
# Without a commit of their own; run once, in a transaction whose first statement has had its failure at the commit.
NO_COMMIT = (
    *("open", "begin", "commit", "data_version"),
    *("note_second_chance", "insert_job", "note_fired", "forget_minutes"),
)
# The first two of a server lose the connection; after a commit, nothing else can happen there.
KINDS = {"sqlite": ("busy", "full", "error"), "postgres": ("lost", "shutdown", "deadlock", "full")}
LONG = {"sqlite": pytest.mark.long, "postgres": pytest.mark.on_postgres}
WHEN = (".before", "", ".committed")


def sweep(role: str, engine: str, chunks: dict[str, list[str]]) -> list[object]:
    """Each concern with one kind of error before its statements, two concerns in a run, for `make test`; every other
    kind and place for `make long`, and on a server for `make long-postgres`.
    """
    found, quick = [], []
    kinds = KINDS[engine]
    for number, (name, statements) in enumerate(chunks.items()):
        for kind in kinds:
            for when in (*WHEN, ".before*3"):
                place, _, times = when.partition("*")
                named = [s for s in statements if place != ".committed" or s not in NO_COMMIT]
                if engine == "postgres" and place != ".before" and kind not in kinds[:2]:
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
def test_all_goes_on_after_statements_of_the_maintainer_have_failed(scene: Scene, points: list[str]) -> None:
    see_through(scene, points)


@pytest.mark.fault(71)
@on_each_engine("worker", WORKER)
def test_all_goes_on_after_statements_of_workers_have_failed(scene: Scene, points: list[str]) -> None:
    see_through(scene, points)


@pytest.mark.fault(70, 71)
def test_the_scene_itself_ends_as_it_should(scene: Scene) -> None:
    see_through(scene, [])


# Messages between processes: what a socket says when the kernel has no memory or no room just now, or a signal came.
WORDS = {
    "supervisor": (
        *("send.death", "send.fork", "receive.ack", "receive.recovered", "receive.depths", "receive.controls"),
        *("receive.cancels", "receive.ready", "receive.forked", "receive.exited", "receive.swept"),
    ),
    "maintainer": (*("receive.death", "send.ack", "send.recovered", "send.depths", "send.controls", "send.cancels"),),
    "template": ("receive.fork", "send.ready", "send.forked", "send.exited"),
}
TALK = [f"{role}:channel.{word}" for role, words in WORDS.items() for word in words]
ERRNOS = ("EAGAIN", "EINTR", "ENOBUFS", "ENOMEM")


@pytest.mark.fault(72)
@pytest.mark.parametrize(
    "number", [*ERRNOS[:2], *(pytest.param(number, marks=pytest.mark.long) for number in ERRNOS[2:])]
)
@pytest.mark.parametrize("times", ["", pytest.param("*3", marks=pytest.mark.long)])
def test_all_goes_on_after_the_channel_has_refused_each_message(scene: Scene, number: str, times: str) -> None:
    """Every kind in the same run: the first of each is refused once, or three times in a row."""
    see_through(scene, [f"{place}=fail:{number}{times}" for place in TALK])


@pytest.mark.fault(72)
@pytest.mark.long
@pytest.mark.parametrize("action", ["kill", "stop"])
@pytest.mark.parametrize("place", [place for place in TALK if not place.startswith("supervisor")])
def test_all_goes_on_after_a_process_has_died_over_a_message(scene: Scene, place: str, action: str) -> None:
    """A stopped one is taken for stuck in the end, or continued by whoever stopped it."""
    see_through(scene, [f"{place}={action}"])


def deaths() -> Iterator[object]:
    """Of a worker and of a maintainer, at all places of a statement in turn; a maintainer is stopped there, too."""
    towards_claims = [*MAINTAINER["start"][1:5], *MAINTAINER["the dead"], *MAINTAINER["locks"], "worker"]
    cycle = {
        "sqlite": [*WORKER["claims"][:4], "claim_first", "claim_one", *WORKER["ends"], "register_worker", "insert_run"],
        "postgres": ["register_worker", "settle_and_claim", "settle", "insert_error", "insert_run", "insert_job"],
    }
    every = [("sqlite", "maintainer", one, action) for one in towards_claims for action in ("kill", "stop")]
    every += [(engine, "worker", one, "kill") for engine, statements in cycle.items() for one in statements]
    for engine, role, statement, action in every:
        points = [f"{role}:{statement}{when}={action}" for when in WHEN]
        once = (role, statement) == ("worker", "insert_error")  # a handler fails twice there
        for part in [[point] for point in points] if once else [points]:
            yield pytest.param(engine, part, id=f"{engine}: {part[0]}")


@pytest.mark.long  # other tests show the same faults once each
@pytest.mark.timeout(300)
@pytest.mark.fault(2, 3, 4, 6, 7, 13, 38)
@pytest.mark.parametrize(("make_site", "points"), list(deaths()), indirect=["make_site"])
def test_nothing_is_lost_or_doubled_at_whatever_statement_a_process_dies(scene: Scene, points: list[str]) -> None:
    see_through(scene, points)


@pytest.mark.long
@pytest.mark.fault(7)
@pytest.mark.parametrize("place", ["supervisors", "workers_of", "held_by"])
def test_two_that_recover_the_same_dead_at_once_give_each_job_back_once(make_site: MakeSite, place: str) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\nlock_time = "1s"\n', HANDLERS)
    jobs = a_dead_supervisors_jobs(site)
    point = f"maintainer:{place}=stop"
    first = site.start("--burst", wait=False, env=site.failpoints(point))
    stopped = site.hit(point)  # it has read what another is about to change
    assert site.start("--burst", wait=False).wait(40) == 0
    os.kill(stopped, signal.SIGCONT)
    assert first.wait(40) == 0
    site.verdict(hit=[jobs[2]])
    assert [site.job(job).crashes for job in jobs] == [0, 0, 1, 0]
    assert [site.job(job).attempts for job in jobs] == [1] * 4
    assert [len(site.runs("start", job)) for job in jobs] == [1] * 4
    assert site.rows("SELECT job_id, kind FROM job_errors") == [(jobs[2], "interrupted")]
    assert site.rows("SELECT (SELECT count(*) FROM job_supervisors), (SELECT count(*) FROM job_workers)") == [(0, 0)]
