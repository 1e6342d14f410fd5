"""Two who change the same rows at the same moment: each sees what the other has done, and they lock in one order."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from supervisor.domain.errors import StoreBusy
from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import done, released
from supervisor.store.base import Cursor, Engine, Filter, JobSelector, Producer
from supervisor.store.postgres.connection import Transaction
from supervisor.store.sql.job_actions import _BATCH
from tests.store.kit import NOW, T0, Desk
from tests.store.postgres.meanwhile import Meanwhile

FREE = "SELECT id FROM jobs WHERE id = %s FOR UPDATE NOWAIT"


@pytest.fixture
def held(engine: Engine, desk: Desk) -> Iterator[psycopg.Connection]:
    """A transaction that stays open until a test commits it."""
    with closing(psycopg.connect(engine.url)) as connection:
        yield connection


def give_back(held: psycopg.Connection, job: int) -> None:
    held.execute(
        "UPDATE jobs SET status = 'pending', locked_by = NULL, claim_token = claim_token + 1 WHERE id = %s", (job,)
    )


def take(held: psycopg.Connection, job: int) -> None:
    held.execute(
        "UPDATE jobs SET status = 'running', locked_by = 'w2', claim_token = claim_token + 1 WHERE id = %s", (job,)
    )


@pytest.mark.parametrize(("change", "status"), [(give_back, Status.CANCELLED), (take, Status.RUNNING)])
def test_a_cancel_sees_what_is_just_being_given_back_or_claimed(
    change: Callable[[psycopg.Connection, int], None],
    status: Status,
    desk: Desk,
    foreign: psycopg.Connection,
    held: psycopg.Connection,
) -> None:
    jobs = [desk.put() for _ in range(4)]
    if change is give_back:
        desk.claim(want=4)
    change(held, jobs[0])
    one = Meanwhile(foreign, lambda: desk.operations.actions.cancel(jobs[0], NOW))
    held.commit()
    assert one.result() is status
    change(held, jobs[2])
    several = Meanwhile(foreign, lambda: desk.operations.actions.cancel_all(jobs[1:], NOW))
    held.commit()
    assert several.result() == 3
    assert all(desk.job(job).cancel_requested_at == NOW for job in jobs)


class TestEnqueueing:
    @pytest.mark.parametrize(
        "enqueue",
        [
            lambda producer, jobs: producer.put(jobs[0]),
            lambda producer, jobs: producer.put_each(jobs),
            lambda producer, jobs: producer.enqueue(jobs),
        ],
        ids=["put", "put_each", "enqueue"],
    )
    def test_who_holds_a_unique_key_is_named_and_waited_for_only_so_long(
        self, enqueue: Callable[[Producer, list[NewJob]], Any], desk: Desk, engine: Engine
    ) -> None:
        jobs = [NewJob("tag", "{}", unique_key="k"), NewJob("tag", "{}", unique_key="l")]
        with closing(engine.producer(patience=0.1)) as producer:
            with psycopg.connect(engine.url, application_name="a shop") as shop:
                engine.transactional.put(shop, jobs[0])
                with pytest.raises(StoreBusy) as caught:
                    enqueue(producer, jobs)
                pid = shop.info.backend_pid
                who = rf"session {pid} \(a shop, user \S+, idle in transaction, transaction open for \d+ s\)"
                assert re.search(rf": {who} holds what it waits for$", str(caught.value))
            enqueue(producer, jobs)
        assert len(desk.operations.jobs.ids(Filter(unique_key="k"))) == 1

    @pytest.mark.parametrize("together", [False, True], ids=["enqueue_many", "puts at the same time"])
    def test_the_same_keys_in_opposite_orders_make_no_deadlock(
        self, together: bool, desk: Desk, engine: Engine
    ) -> None:
        rounds, both = 100, threading.Barrier(2, timeout=30)

        def enqueue(order: Sequence[int]) -> list[list[int]]:
            found = []
            with closing(engine.producer()) as producer:
                for turn in range(rounds):
                    jobs = [NewJob("tag", "{}", unique_key=f"{turn} {number}") for number in order]
                    both.wait()
                    if together:
                        first_or_last = f"{turn} " if order[0] == 0 else f"{turn} last"
                        request = NewJob("tag", "{}", unique_key=first_or_last, max_waiting=10**6)
                        answers = producer.put_each([request, NewJob("tag", "{}"), *jobs])[2:]
                        ids = [answer[0] for answer in answers if isinstance(answer, tuple)]
                    else:
                        ids = producer.enqueue([*jobs, NewJob("tag", "{}")])[:-1]
                    found.append(ids)
            return found

        with ThreadPoolExecutor(2) as threads:
            orders = range(20), range(19, -1, -1)
            up, down = (future.result() for future in [threads.submit(enqueue, order) for order in orders])

        assert up == [ids[::-1] for ids in down]
        assert [desk.job(job_id).unique_key for job_id in up[-1]] == [f"{rounds - 1} {number}" for number in range(20)]


CLAIM = """SELECT id FROM supervisor_settle_and_claim_v1(
  'other', NULL, true, 4e9, 5e9, '{}', '{}', '{}', '{}', '{}', %s, '', %s, NULL, NULL, NULL, NULL, NULL, 1000)
  WHERE lost IS FALSE"""


class TestClaiming:
    """A claim locks what it takes, and nothing else: others find the rest."""

    TYPES = ("a", "b", "c", "d", "e")

    def _open_claim(self, held: psycopg.Connection, want: int) -> list[int]:
        return [job for (job,) in held.execute(CLAIM, (list(self.TYPES), want)).fetchall()]

    def test_of_many_types_it_leaves_the_others_to_others(
        self, desk: Desk, foreign: psycopg.Connection, held: psycopg.Connection
    ) -> None:
        jobs = [desk.put(type_) for type_ in self.TYPES]
        assert self._open_claim(held, 1) == jobs[:1]
        for job in jobs[1:]:
            assert foreign.execute(FREE, (job,)).fetchone() == (job,)
        assert [desk.one(types=self.TYPES).job_id for _ in jobs[1:]] == jobs[1:]
        assert desk.claim(self.TYPES) == []

    @pytest.mark.parametrize("want", [1, 3, 7])
    def test_as_many_as_are_wanted_are_found_behind_those_that_others_take(
        self, want: int, desk: Desk, held: psycopg.Connection
    ) -> None:
        jobs = [desk.put(type_) for _ in range(4) for type_ in self.TYPES]
        taken = self._open_claim(held, 8)
        assert taken == jobs[:8]
        mine = [claim.job_id for claim in desk.claim(self.TYPES, want)]
        assert len(mine) == want
        assert not set(mine) & set(taken)
        rest = [claim.job_id for claim in desk.claim(self.TYPES, 100)]
        assert sorted(taken + mine + rest) == jobs

    def test_a_type_with_a_single_job_that_is_taken_keeps_nobody_from_the_next(
        self, desk: Desk, held: psycopg.Connection
    ) -> None:
        first, *others = [desk.put("a"), desk.put("b", at=T0 + 1), desk.put("b", at=T0 + 2), desk.put("c", at=T0 + 3)]
        assert self._open_claim(held, 1) == [first]
        assert [claim.job_id for claim in desk.claim(self.TYPES, 2)] == others[:2]
        assert [claim.job_id for claim in desk.claim(self.TYPES, 2)] == others[2:]


def settle_both(desk: Desk) -> Callable[[], object]:
    first, second = desk.claim(want=2)
    return lambda: desk.settle(done(second, None), released(first))


def settle_dead(desk: Desk) -> Callable[[], object]:
    ends = [released(claim) for claim in reversed(desk.claim(want=2))]
    return lambda: desk.maintenance.locks.settle_dead("w1", ends, NOW)


@pytest.mark.parametrize(
    ("prepared", "answer"),
    [
        (lambda desk: lambda: desk.operations.actions.cancel_all([2, 1], NOW), 2),
        (settle_both, []),
        (settle_dead, 2),
    ],
    ids=["a bulk cancel in any order", "a worker that settles successes and others", "a death"],
)
def test_a_row_of_a_lower_id_is_waited_for_before_one_of_a_higher_id_is_locked_whoever_asks(
    desk: Desk,
    foreign: psycopg.Connection,
    held: psycopg.Connection,
    prepared: Callable[[Desk], Callable[[], object]],
    answer: object,
) -> None:
    low, high = desk.put(), desk.put()
    call = prepared(desk)
    held.execute(FREE, (low,))
    waiting = Meanwhile(foreign, call)
    assert foreign.execute(FREE, (high,)).fetchone() == (high,)
    held.commit()
    assert waiting.result() == answer


@pytest.mark.parametrize("action", ["retry", "cancel", "delete", "redrive"])
def test_many_jobs_are_changed_by_few_statements(
    action: str, desk: Desk, foreign: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * _BATCH
    status = "pending" if action == "cancel" else "failed"
    foreign.execute(
        "INSERT INTO jobs (type, status, completed_at) SELECT 'tag', %s, %s FROM generate_series(1, %s)",
        (status, NOW - 1, count),
    )
    executed: list[str] = []
    original = Transaction.execute

    def counted(self: Transaction, sql: str, parameters: Any = (), /) -> psycopg.Cursor[Any]:
        executed.append(sql)
        return original(self, sql, parameters)

    monkeypatch.setattr(Transaction, "execute", counted)
    ids, actions, finished = list(range(1, count + 1)), desk.operations.actions, desk.maintenance.finished
    changed = {
        "retry": lambda: actions.retry(ids, NOW).changed,
        "cancel": lambda: actions.cancel_all(ids, NOW),
        "delete": lambda: actions.delete(ids),
        "redrive": lambda: len(finished.redrive(JobSelector(("tag",)), 1, Cursor(0.0, 0), NOW, count, NOW).jobs),
    }[action]()
    assert changed == count
    assert len(executed) <= 10


def test_of_those_with_one_key_the_first_is_retried(desk: Desk, foreign: psycopg.Connection) -> None:
    foreign.execute(
        "INSERT INTO jobs (type, status, unique_key) SELECT 'tag', 'failed', 'k' FROM generate_series(1, 3)"
    )
    other = desk.put()
    desk.finish(other, Status.FAILED)
    assert desk.operations.actions.retry([1, 2, 3, other], NOW) == (2, {2: 1, 3: 1})
    assert [desk.status(job).value for job in (1, 2, 3, other)] == ["pending", "failed", "failed", "pending"]


def test_two_hosts_that_roll_up_one_hour_count_it_once(
    desk: Desk, engine: Engine, foreign: psycopg.Connection, held: psycopg.Connection
) -> None:
    foreign.execute("INSERT INTO job_history VALUES (7200, 'tag', 1, 0, 0, 0, 1, 1), (7260, 'tag', 1, 0, 0, 0, 1, 1)")
    held.execute("SELECT FROM job_history FOR UPDATE")
    with closing(engine.maintenance()) as other:
        one = Meanwhile(foreign, lambda: desk.maintenance.history.roll_up(1e6))
        two = Meanwhile(foreign, lambda: other.history.roll_up(1e6), waiting=2)
        held.commit()
        assert sorted((one.result(), two.result())) == [0, 1]
    assert foreign.execute("SELECT minute, done FROM job_history").fetchall() == [(7200.0, 2)]
