"""The code of a pool from reload to reload: which of it is current, which stays, and what is told of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.config import load
from supervisor.supervision.plan import Missing, plan
from supervisor.supervision.pool import Pool
from supervisor.supervision.release import Release, Releases, ReleaseState, new_code_failed


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    (tmp_path / "supervisor.toml").write_text('[pools.tag]\nhandler = "jobs:tag"\nworkers = 2\n')
    made = Pool(Releases(Release(load(tmp_path / "supervisor.toml").pools["tag"])), os.eventfd(0))
    made.scale.target = 2
    yield made
    os.close(made.wake)


def reload(pool: Pool) -> Release:
    pool.reload(pool.settings, 1.0)
    return pool.code.current


def test_code_that_has_worked_stays_until_newer_code_works(pool: Pool) -> None:
    first = pool.code.current
    pool.code.works(pool.code.current)
    second = reload(pool)
    third = reload(pool)
    assert (pool.code.old, first.state, second.state, third.state) == (
        first,
        ReleaseState.OUTGOING,
        ReleaseState.RETIRED,
        ReleaseState.CANDIDATE,
    )
    pool.code.works(pool.code.current)
    assert (pool.code.old, first.state, third.state) == (None, ReleaseState.RETIRED, ReleaseState.SERVING)


def test_code_that_has_never_worked_does_not_stay(pool: Pool) -> None:
    first = pool.code.current
    reload(pool)
    assert (pool.code.old, first.state) == (None, ReleaseState.RETIRED)
    pool.code.works(first)  # a worker that was being set up
    assert (pool.code.old, first.state) == (first, ReleaseState.OUTGOING)
    pool.code.works(pool.code.current)
    pool.code.works(first)
    assert (pool.code.old, first.state) == (None, ReleaseState.RETIRED)


def test_a_worker_that_is_ready_late_does_not_bring_back_the_code_of_a_removed_pool(pool: Pool) -> None:
    release = pool.code.current
    pool.code.retire()
    pool.code.works(release)
    assert release.state is ReleaseState.RETIRED


def test_the_old_code_keeps_up_the_numbers_while_the_new_one_is_doubtful(pool: Pool) -> None:
    pool.code.works(pool.code.current)
    new = reload(pool)
    assert plan(pool, 0.0).start == Missing(1, 2)
    new.on_trial = False  # the pool had no workers
    assert plan(pool, 0.0).start == Missing(2, 0)
    new.restarts = new.restarts.broken(0.0, "set-up failed: no model")
    assert plan(pool, 0.5).start == Missing(0, 2)
    assert plan(pool, 60.0).start == Missing(1, 2)


def test_each_code_has_a_back_off_of_its_own(pool: Pool) -> None:
    pool.code.works(pool.code.current)
    old, new = pool.code.current, reload(pool)
    old.restarts = old.restarts.broken(0.0, "set-up failed: no model")
    assert plan(pool, 0.5).start == Missing(1, 0)
    assert not new.failed
    assert not pool.old_code_serves


@pytest.mark.parametrize(
    ("on_trial", "asleep", "expected"),
    [(True, False, "waiting"), (True, True, "waiting"), (False, True, "untried"), (False, False, "waiting")],
)
def test_what_a_reload_reports(pool: Pool, on_trial: bool, asleep: bool, expected: str) -> None:
    new = reload(pool)
    new.on_trial = on_trial
    assert new.outcome(asleep=asleep) == expected
    new.restarts = new.restarts.broken(0.0, "set-up failed: no model")
    assert new.outcome(asleep=asleep) == "failed"
    new.works()
    assert new.outcome(asleep=asleep) == "accepted"


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("canary failed: result is 2, not 1", "the new code failed its canary: result is 2, not 1"),
        ("warmup failed: ValueError: no", "the new code failed its warm-up: ValueError: no"),
        ("set-up failed: it failed: twice", "the new code failed its set-up: it failed: twice"),
        (
            "jobs:tag: importing it failed: SyntaxError",
            "the new code cannot be loaded: jobs:tag: importing it failed: SyntaxError",
        ),
        ("max_memory is too low", "the new code cannot be loaded: max_memory is too low"),
    ],
)
def test_it_says_what_failed_and_whether_older_code_serves(why: str, told: str) -> None:
    assert new_code_failed(why, old_serves=True) == f"{told}; the old code keeps running"
    assert new_code_failed(why, old_serves=False) == f"{told}; no older code is loaded"


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        ("", "old version, to be replaced"),
        ('canary failed: result is "dog", not "cat"', "old version; the new one failed its canary"),
        ("warmup failed: KeyError: 'text'", "old version; the new one failed its warmup"),
        ("set-up failed: OSError: no model", "old version; the new one failed its set-up"),
    ],
)
def test_a_worker_of_the_old_version_is_called_that(pool: Pool, why: str, shown: str) -> None:
    if why:
        pool.code.current.restarts = pool.code.current.restarts.broken(1.0, why)
    assert pool.code.current.why_older_stays() == shown
