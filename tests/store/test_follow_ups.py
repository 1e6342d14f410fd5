"""Follow-ups: the last settlement of a job enqueues the job that follows, whoever makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.job import Status
from supervisor.domain.recovery import JobPolicy, observation_time
from supervisor.domain.settlement import FollowUps, RetryPolicy, cancelled, crashed, done, failed, released
from supervisor.maintenance.deaths import DeathReport, Deaths
from supervisor.maintenance.locks import Reclaimer
from supervisor.maintenance.recovery import Recovery
from tests.store.kit import BROKEN, LOCK, NOW, POLICY, Desk, execute, supervisor_record, worker_record

AFTER = JobPolicy(RetryPolicy(jitter=0), max_crashes=1, recover="failed", follow_ups={"tag": FollowUps("good", "bad")})


def followers(desk: Desk) -> list[tuple[str, Any]]:
    desk.claims.held_by("other")  # a server may have ended the session
    found = desk.claim(["good", "bad"], 100, owner="other", now=NOW + 10 * LOCK)
    return [(claim.type, desk.job(claim.job_id).payload) for claim in found]


def test_the_last_settlement_enqueues_what_follows_and_no_other_does(desk: Desk) -> None:
    ends = [
        lambda claim: done(claim, '{"n":1}'),
        lambda claim: done(claim, None),
        lambda claim: failed(claim, BROKEN, POLICY, chance=0.5, permanent=True),
        lambda claim: crashed(claim, BROKEN, POLICY, 1, chance=0.5),
        lambda claim: failed(claim, BROKEN, POLICY, chance=0.5),
        lambda claim: crashed(claim, BROKEN, POLICY, 2, chance=0.5),
        cancelled,
        released,
    ]
    jobs = [desk.put() for _ in ends]
    claims = desk.claim(want=len(ends))
    settled = [AFTER.followed(end(claim)) for end, claim in zip(ends, claims, strict=True)]
    assert desk.settle(*settled) == []
    assert desk.settle(*settled) == jobs  # lost by now

    def about(number: int, status: str, result: object, error: str | None) -> dict[str, object]:
        return {"job": jobs[number], "type": "tag", "status": status, "result": result, "error": error}

    assert followers(desk) == [
        ("good", about(0, "done", {"n": 1}, None)),
        ("good", about(1, "done", None, None)),
        ("bad", about(2, "failed", None, BROKEN.message)),
        ("bad", about(3, "quarantined", None, BROKEN.message)),
    ]


def test_a_job_that_is_retried_by_hand_is_followed_again(desk: Desk) -> None:
    job = desk.put()
    for _ in range(2):
        desk.settle(AFTER.followed(failed(desk.one(), BROKEN, POLICY, chance=0.5, permanent=True)))
        desk.operations.actions.retry([job], NOW)
    assert [type_ for type_, _ in followers(desk)] == ["bad", "bad"]


def test_a_death_that_is_reported_twice_is_followed_once(desk: Desk) -> None:
    job = desk.put()
    claim = desk.one()
    deaths = Deaths(desk.maintenance.locks)
    report = DeathReport("w1", "tag-1", "crash", job, claim.token, AFTER.encode())
    assert [deaths.settle(report, NOW) for _ in range(2)] == [1, 0]
    [(type_, payload)] = followers(desk)
    assert (type_, payload["status"], payload["error"]) == ("bad", "quarantined", "the worker died")


def test_the_job_of_a_dead_supervisor_is_followed(desk: Desk, tmp_path: Path) -> None:
    desk.claims.register(worker_record("w1", "s1", policy=AFTER.encode()))
    board = str(tmp_path / "gone")
    desk.maintenance.registry.register(supervisor_record("s1", desk.engine, "/nowhere", scoreboard=board))
    job = desk.put()
    desk.one()
    Recovery(desk.maintenance.registry, desk.maintenance.locks, "s2").run(NOW)
    [(type_, payload)] = followers(desk)
    assert (type_, payload["job"], payload["status"]) == ("bad", job, "failed")


@pytest.mark.parametrize("owner", ["w1", "nobody"])
def test_a_job_whose_lock_has_expired_is_followed(desk: Desk, owner: str) -> None:
    desk.claims.register(worker_record("w1", "s1", policy=AFTER.encode()))
    job = desk.put()
    crashes = 0 if owner == "w1" else 2  # of one that is not registered, the default policy quarantines
    execute(desk.engine.url, f"UPDATE jobs SET crashes = {crashes}")
    claim = desk.one(owner=owner)
    at = [0.0]
    known = {} if owner == "w1" else AFTER.follow_ups
    locks, registry = desk.maintenance.locks, desk.maintenance.registry
    reclaimer = Reclaimer(locks, registry, LOCK, lambda: at[0], follow_ups=known)
    while at[0] < 3 * observation_time(LOCK):
        reclaimer.run(NOW + 2 * LOCK)
        at[0] += reclaimer.every
    assert desk.status(job) is Status.QUARANTINED
    assert [(type_, payload["job"]) for type_, payload in followers(desk)] == [("bad", job)]
    assert desk.settle(AFTER.followed(done(claim, None)), owner=owner) == [job]
    assert followers(desk) == []


@pytest.mark.parametrize("refused", ["good", "bad"])
def test_a_job_whose_follow_up_is_refused_says_so(desk: Desk, refused: str) -> None:
    url = desk.engine.url
    sqlite = url.startswith("sqlite:")
    if sqlite:
        body = "BEGIN SELECT raise(ABORT, 'not here'); END"
        execute(url, f"CREATE TRIGGER no BEFORE INSERT ON jobs WHEN NEW.type = '{refused}' {body}")
    else:
        body = "$$BEGIN RAISE EXCEPTION 'not here'; END$$"
        execute(url, f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS {body}")
        when = f"FOR EACH ROW WHEN (NEW.type = '{refused}')"
        execute(url, f"CREATE TRIGGER no BEFORE INSERT ON jobs {when} EXECUTE FUNCTION no()")
    jobs = [desk.put(), desk.put()]
    first, second = desk.claim(want=2)
    try:
        ended = done(first, "1"), failed(second, BROKEN, POLICY, chance=0.5, permanent=True)
        assert desk.settle(*map(AFTER.followed, ended)) == []
    finally:
        execute(url, "DROP TRIGGER no" + ("" if sqlite else " ON jobs; DROP FUNCTION no"))
    one, two = map(desk.job, jobs)
    said = "a job that it enqueued was refused by the database"
    [(type_, payload)] = followers(desk)
    if refused == "good":
        assert (one.status, two.status, type_) == (Status.FAILED, Status.FAILED, "bad")
        assert said in str(one.last_error)
        assert payload["job"] == two.id
    else:
        assert (one.status, one.result, two.status, type_) == (Status.DONE, 1, Status.FAILED, "good")
        assert str(two.last_error).startswith(f"{BROKEN.message}; {said}")
    assert len(desk.operations.jobs.attempts(two.id)) == 1
