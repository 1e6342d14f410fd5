"""Why a job does not run, from plain values: each situation has one code and one sentence."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from supervisor.domain.job import Held, Job, Reason, Status
from supervisor.ops.views import Present
from supervisor.ops.why import reasons
from supervisor.store.base import WorkerRecord
from tests.cli import test_top_screen
from tests.cli.test_top_screen import supervisor
from tests.docs.markdown import named, table

pool = functools.partial(test_top_screen.pool, host="here")
worker = functools.partial(test_top_screen.worker, host="here")

NOW = 1_000_000.0
BEGAN = "1970-01-12 13:46:30Z"
EARLIER, LATER = f"{BEGAN}, 10s ago", "1970-01-12 13:47:40Z, in 60s"


def job(status: Status = Status.PENDING, **given: Any) -> Job:
    values: dict[str, Any] = dict.fromkeys(Job.__slots__)
    values |= {
        "id": 7, "type": "tag", "payload": {}, "status": status, "priority": 0, "requires": "", "attempts": 0,
        "scheduled_at": NOW - 10, "crashes": 0, "claim_token": 0, "created_at": NOW - 10, "updated_at": NOW - 10,
    }  # fmt: skip
    return Job(**values | given)


def present(**given: Any) -> Present:
    values: dict[str, Any] = {
        "supervisors": [supervisor()], "pools": [pool("tag")], "workers": [worker("tag-1", job=12)],
        "paused": frozenset(),
    }  # fmt: skip
    return Present(**values | given)


def because(of: Job | None = None, about: Present | None = None, **more: Any) -> list[Reason]:
    return reasons(of or job(), NOW, about or present(), **more)


def record(name: str = "tag-1", supervisor: str = "7") -> WorkerRecord:
    return WorkerRecord("incarnation", supervisor, "tag", name, 100, 1, "{}", 0.0)


RUNNING, HELD = job(Status.RUNNING, locked_by="x", started_at=NOW - 10, lock_expires_at=NOW + 60), job(Status.HELD)
BUSY = present(workers=[worker("tag-1", job=7, progress=0.4, text="picture 40", time_limit=1800.0)])
ASIDE, ONE = {"target": 0, "size": 0}, {"size": 1, "max_workers": 1}
STOP = "`supervisor logs 7 -f` shows its output, `supervisor jobs cancel 7` stops it"
RUN = "`supervisor run` starts one"
GIVE = "give a pool the capabilities and reload, or cancel the jobs"
LOWER = "give a pool a lower min_priority and reload, or cancel the jobs"
LOOK = "`supervisor jobs why {0}` says what job {0} is doing"
HAND = "`supervisor jobs run-now 7` lets it run"

SITUATIONS: list[tuple[str, str, str, dict[str, Any]]] = [
    # Waiting for a worker
    ("next", "it is the next job for the pool tag, whose only worker, tag-1, has been running job 12 (mail) for 3s", "",
     {"about": present(types={12: "mail"})}),
    ("next", "it is the next job for the pool tag, whose only worker, tag-1, has been running job 12 (mail) for 3s",
     "wait, or `supervisor scale tag 2`", {"about": present(types={12: "mail"}, pools=[pool("tag", **ONE)])}),
    ("next", "it is the next job for the pool tag or all, whose workers tag-1 and all-1 have been running job 12 "
     "(mail) for 3s and job 13 (tag) for 80s", "", {"about": present(
         types={12: "mail", 13: "tag"}, pools=[pool("tag", **ONE), pool("all", types=["tag"])],
         workers=[worker("tag-1"), worker("all-1", job=13, running_for=80.0)]), "ahead": (0, 2.0)}),
    ("next", "it is the next job for the pool tag, once a worker is free", "",
     {"about": present(workers=[worker(f"tag-{number}") for number in range(3)])}),
    ("next", "it is the next job for the pool tag, once a worker is free", "",
     {"about": present(workers=[worker("tag-1", running=5)])}),
    ("next", "it is the next job for the pool tag, once a worker is free", "",
     {"about": present(workers=[worker("tag-1"), worker("tag-2", job=None)])}),
    ("behind", "1 job is before it in the pool tag", "", {"ahead": (1, 0.0)}),
    ("behind", "40 jobs are before it in the pool tag; at 3.2 a second, it starts in about 12.5s", "",
     {"ahead": (40, 3.2)}),
    ("behind", "10000+ jobs are before it in the pool tag", "", {"ahead": (10_000, 0.0)}),
    ("starting", "the pool tag of supervisor 7 has no worker that is ready yet, and is starting one", "",
     {"about": present(workers=[worker("tag-1", job=None, state="starting"), worker("mail-1")])}),
    ("memory", "the pool tag of supervisor 7 has no worker: waits for 2GiB of memory_budget: mail 3GiB", "",
     {"about": present(workers=[], pools=[pool("tag", **ASIDE, why="waits for 2GiB of memory_budget: mail 3GiB")])}),
    ("no_worker", "the pool tag of supervisor 7 has no worker: an operator set 0",
     "`supervisor scale tag auto` returns it to the size of the configuration",
     {"about": present(workers=[], pools=[pool("tag", **ASIDE, fixed=0, why="an operator set 0")])}),
    # Not due
    ("not_due", f"it is not due until {LATER}; it was enqueued for then", "", {"of": job(scheduled_at=NOW + 60)}),
    ("not_due", f"attempt 3 is due at {LATER}; attempt 2 failed: OSError: no", "",
     {"of": job(scheduled_at=NOW + 60, attempts=2, started_at=NOW, last_error="OSError: no")}),
    ("not_due", f"attempt 1 is due at {LATER}, after 1 crash", "",
     {"of": job(scheduled_at=NOW + 60, crashes=1, started_at=NOW)}),
    ("not_due", f"it is not due until {LATER}; its last run has put it off", "",
     {"of": job(scheduled_at=NOW + 60, started_at=NOW)}),
    # Nobody takes it
    ("paused", "the type tag is paused", "`supervisor resume tag` resumes it",
     {"about": present(paused=frozenset({"tag"}))}),
    ("no_supervisor", "no supervisor is running", RUN, {"about": present(supervisors=[supervisor(alive=False)])}),
    ("unhandled", "no pool takes the type tagg; did you mean tag?", "correct the type in the program that enqueues it, "
     "or add a pool for it and reload, or cancel its jobs", {"of": job(type="tagg")}),
    ("unhandled", "no pool takes the type zip", "add a pool for it and reload, or cancel its jobs",
     {"of": job(type="zip")}),
    ("capabilities", "no pool that takes tag has the capabilities that some of its jobs require: gpu", GIVE,
     {"of": job(requires="gpu")}),
    ("priority", "no pool that takes tag takes jobs below priority 5, and some wait", LOWER,
     {"about": present(pools=[pool("tag", min_priority=5)])}),
    ("not_visible", "supervisor 7 is running, but its workers are not visible: its scoreboard cannot be read",
     "look as the user of the service, and with its version of this program",
     {"about": present(supervisors=[supervisor(visible=False)], pools=[])}),
    ("pool_broken", "the pool tag of supervisor 7 cannot start its workers: no module",
     "fix the cause, then run `supervisor reload`; the set-up is also retried automatically",
     {"about": present(workers=[], pools=[pool("tag", problem="no module", broken=True)])}),
    ("pool_starting", "the pool tag of supervisor 7 has not been started yet: recovery is not complete",
     "no action needed", {"about": present(workers=[], pools=[pool("tag", why="starting")])}),
    ("drained", "supervisor 7 claims no jobs: its host is drained",
     "`supervisor undrain here` lets it claim jobs again", {"about": present(supervisors=[supervisor(drained=True)])}),
    ("stopping", "supervisor 7 is stopping: SIGTERM", "running jobs finish first; start it again afterwards",
     {"about": present(supervisors=[supervisor(stopping="SIGTERM")])}),
    ("no_lease", "supervisor 7 cannot renew its lease: it claims nothing, and other hosts take over its jobs",
     "look at its log, and at its connection to the server",
     {"about": present(supervisors=[supervisor(lease_left=0)])}),
    ("database_trouble", "supervisor 7: the database cannot be used: disk full",
     "its jobs wait until it can be used again", {"about": present(supervisors=[supervisor(trouble="disk full")])}),
    # Held
    ("held_after", "it waits for 3 jobs (4, 5, 6) to end", LOOK.format(4),
     {"of": HELD, "held": Held("after", predecessors=(4, 5, 6))}),
    ("held_after", "it waits for 40 jobs (1, 2, 3, 4, 5 and 35 more) to end", LOOK.format(1),
     {"of": HELD, "held": Held("after", predecessors=(1, 2, 3, 4, 5, 6), total=40)}),
    ("held_after", "it waits for other jobs to end, and the table job_after names none", HAND,
     {"of": HELD, "held": Held("after")}),
    ("not_due", f"it is not due until {LATER}; it was enqueued for then", "",
     {"of": job(Status.HELD, scheduled_at=NOW + 60), "held": Held("due")}),
    ("held", "it is due, and a supervisor has to let it through", "", {"of": HELD, "held": Held("due")}),
    ("held_key", "its concurrency key user:42 has no room: job 12 has been running in tag-1 for 3s; 14 other jobs wait "
     "there before this one", LOOK.format(12),
     {"of": HELD, "held": Held("key", "user:42", 1, running=(12,), ahead=14)}),
    ("held_key", "its concurrency key user:42 has no room: job 13 has been running for 5s", LOOK.format(13),
     {"of": HELD, "held": Held("key", "user:42", 1, running=(13,), since=NOW - 5)}),
    ("held_key", "its concurrency key user:42 has room, and a supervisor has to let it through", "",
     {"of": HELD, "held": Held("key", "user:42", 1)}),
    ("held", "it is held, and its row does not say why", HAND, {"of": HELD, "held": Held("key")}),
    ("held_key", "its concurrency key user:42 has no room", "", {"of": HELD, "held": Held("key", "user:42", 0)}),
    ("held_type", "the type tag has no room: 5 jobs (1, 2 and 3 more) run or may start, of at most 5; 1 other job "
     "waits there before this one", LOOK.format(1),
     {"of": HELD, "held": Held("type", limit=5, running=(1, 2), total=5, ahead=1)}),
    ("rate", f"the type tag is limited to 50/s; the next job may start at {LATER}", "",
     {"of": HELD, "held": Held("type", rate="50/s", next_at=NOW + 60)}),
    ("rate", "the type tag is limited to 50/s; job 3 starts next; 8 other jobs wait there before this one",
     LOOK.format(3), {"of": HELD, "held": Held("type", rate="50/s", next_at=NOW - 60, running=(3,), ahead=8)}),
    ("rate", f"the type tag is limited to 50/s; job 3 starts next, at {LATER}", LOOK.format(3),
     {"of": HELD, "held": Held("type", rate="50/s", next_at=NOW + 60, running=(3,))}),
    ("rate", "the type tag is limited to 50/s; the next job starts soon", "",
     {"of": HELD, "held": Held("type", rate="50/s", running=(3,), since=NOW - 5)}),
    ("rate", f"its concurrency key a is limited to 1/m; this job is the next, and may start at {LATER}", "",
     {"of": job(scheduled_at=NOW + 60), "held": Held("key", "a", rate="1/m", next_at=NOW + 60)}),
    ("breaker", "the breaker of the type tag is open, since 1 attempt has failed; one job at a time may start, until "
     "one succeeds", LOOK.format(3), {"of": HELD, "held": Held("type", failures=1, running=(3,))}),
    ("held", "it is held, and its row does not say why", HAND, {"of": HELD}),
    ("expired", f"it expired at {EARLIER}, and a supervisor has to cancel it", "",
     {"of": HELD, "held": Held("key", "a", expires_at=NOW - 10)}),
    # Claimed
    ("running", f"it has been running in tag-1 for 10s, since {BEGAN}, 40% picture 40; its time limit is 30m", STOP,
     {"of": RUNNING, "about": BUSY}),
    ("running", f"it has been running in tag-9 for 10s, since {BEGAN}", STOP,
     {"of": RUNNING, "worker": record("tag-9")}),
    ("running", f"it has been running in tag-9 for 10s, since {BEGAN}; it was asked to stop",
     "`supervisor logs 7 -f` shows its output",
     {"of": replace(RUNNING, cancel_requested_at=NOW), "worker": record("tag-9")}),
    ("foreign", f"another program has claimed it; its lock ends at {LATER}",
     "unless that program settles it by then, it returns to the queue",
     {"of": job(Status.RUNNING, locked_by="foreign", lock_expires_at=NOW + 60)}),
    ("lost", f"a worker that is no longer known claimed it at {EARLIER}, and is gone; its lock ends at {LATER}", "",
     {"of": RUNNING}),
    # Ended
    ("done", f"it finished at {EARLIER}", "", {"of": job(Status.DONE, completed_at=NOW - 10, attempts=1)}),
    ("failed", f"it failed at {EARLIER}, after 3 attempts: ValueError: no face",
     "`supervisor jobs retry 7` runs it again",
     {"of": job(Status.FAILED, completed_at=NOW - 10, attempts=3, last_error="ValueError: no face")}),
    ("cancelled", f"it was cancelled at {EARLIER}", "`supervisor jobs retry 7` runs it again",
     {"of": job(Status.CANCELLED, completed_at=NOW - 10)}),
    ("cancelled", f"it was cancelled at {EARLIER}: replaced by job 9", "once job 9 has ended, `supervisor jobs retry "
     "7` runs it again", {"of": job(Status.CANCELLED, completed_at=NOW - 10, last_error="replaced by job 9")}),
    ("quarantined", f"it was quarantined at {EARLIER}, after 1 attempt and 3 crashes (killed), and will not run "
     "again by itself", "`supervisor jobs retry 7` runs it again",
     {"of": job(Status.QUARANTINED, completed_at=NOW - 10, attempts=1, crashes=3, last_error="killed")}),
    ("unreadable", "its row cannot be read: its status is 'x', which is unknown", "correct the row, or delete it",
     {"of": job(Status.QUARANTINED, last_error="its status is 'x', which is unknown")}),
    ("unreadable", "its row cannot be read: its priority or its time is no number", "correct the row, or delete it",
     {"of": job(scheduled_at="soon")}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "advice", "given"), SITUATIONS)
def test_each_situation_has_its_sentence(code: str, text: str, advice: str, given: dict[str, Any]) -> None:
    [reason] = because(**given)
    assert (reason.code, reason.text, reason.advice) == (code, text, advice)
    assert str(reason) == (f"{text}; {advice}" if advice else text)


def test_every_reason_is_documented() -> None:
    documented = named(table("docs/operating.md", "reasons"))
    assert sorted(documented) == sorted({code for code, *_ in SITUATIONS} | {"ended", "unique"})


def codes(**given: Any) -> list[str]:
    return [reason.code for reason in because(**given)]


def test_everything_that_must_change_is_told_first_the_jobs_own_time() -> None:
    later, nobody = job(scheduled_at=NOW + 60), present(supervisors=[], paused=frozenset({"tag"}))
    assert codes(of=later, about=nobody) == ["not_due", "paused", "no_supervisor"]
    assert codes(of=HELD, held=Held("key", "a"), about=nobody) == ["held_key", "paused", "no_supervisor"]
    assert codes(of=job(requires="gpu"), about=present(paused=frozenset({"tag"}))) == ["paused", "capabilities"]


def test_for_machines_a_reason_says_until_when_and_which_other_jobs() -> None:
    [late] = because(job(scheduled_at=NOW + 60))
    [held] = because(HELD, held=Held("key", "a", 1, running=(12,)))
    assert (late.until, held.until, held.jobs) == (NOW + 60, None, (12,))


def test_no_pool_is_in_the_way_beside_one_that_may_run_the_job() -> None:
    drained, other = supervisor(7, drained=True), supervisor(8, host="there")
    pools = [pool("tag"), pool("tag", supervisor=8, host="there")]
    assert codes(about=present(supervisors=[drained, other], pools=pools)) == ["starting"]
    gone = present(supervisors=[drained, supervisor(8, host="there", stopping="SIGTERM")], pools=pools)
    # The host is named where there are several.
    assert [reason.text for reason in because(about=gone)] == [
        "supervisor 7 on here claims no jobs: its host is drained",
        "supervisor 8 on there is stopping: SIGTERM",
    ]
    few = [pool("tag", capabilities=["gpu"]), pool("cpu", types=["tag"], problem="no module", broken=True)]
    assert codes(of=job(requires="gpu"), about=present(pools=few)) == ["next"]
    assert codes(about=present(pools=few)) == ["next"]


@pytest.mark.parametrize("given", [{"target": 0}, {"broken": False}])
def test_a_pool_with_a_problem_is_no_obstacle_while_nobody_has_tried_or_old_code_runs(given: dict[str, Any]) -> None:
    broken = {"problem": "no module", "broken": True}
    assert codes(about=present(workers=[], pools=[pool("tag", **broken | given)])) == ["starting"]
    assert codes(about=present(pools=[pool("tag", **broken)])) == ["next"]  # a worker of it still works


def test_a_pool_that_cannot_be_seen_may_take_the_job() -> None:
    unseen = present(supervisors=[supervisor(), supervisor(8, visible=False)])
    assert codes(about=unseen) == ["next"]
    assert codes(of=job(type="resize"), about=unseen) == ["not_visible"]


def test_a_job_of_a_supervisor_that_has_died_is_recovered_by_the_next_one() -> None:
    dead = present(supervisors=[supervisor(6, alive=False)], workers=[])
    lost, ended = because(RUNNING, dead, worker=record(supervisor="6"))
    assert lost.text.startswith("tag-1 claimed it at ")
    assert (ended.code, ended.advice) == ("ended", "the next supervisor to start recovers its jobs")


@pytest.mark.parametrize("at", [float("inf"), float("nan"), 1e300, -1e300])
def test_a_time_that_is_none_harms_nobody(at: float) -> None:
    for of in (job(scheduled_at=at), job(Status.DONE, completed_at=at), job(Status.HELD, scheduled_at=at)):
        assert because(of, held=Held("type", next_at=at))
