"""Batches, as programs use them: on each engine, a queue and workers at the desk."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor import AsyncQueue, BatchNotFound, Enqueue, InvalidJob, Queue, task
from supervisor.domain.enqueueing import new_job
from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import done, failed
from supervisor.store.base import Filter
from tests.store.gates.conftest import Gates, connect, execute
from tests.store.kit import BROKEN, POLICY

WEEK = 7 * 86400.0


@pytest.fixture
def queue(gates: Gates) -> Iterator[Queue]:
    with Queue(gates.url) as queue:
        yield queue


def callbacks(gates: Gates) -> list[int]:
    """The jobs that batches have enqueued, once the maintainer has looked."""
    gates.tend()
    return gates.pending("sum")


def test_the_block_enqueues_the_members_and_their_end_one_job_more(gates: Gates, queue: Queue) -> None:
    with queue.batch(on_done="sum", payload={"month": 1}) as batch:
        first = batch.enqueue("tag", {"n": 1}, priority=3)
        others = batch.enqueue_many("tag", [{"n": 2}, Enqueue({"n": 3}, priority=2)])
        gates.work(first)
        assert queue.batches.get(batch.id).state == "open"
    assert queue.batches.get(batch.id).state == "closed"
    gates.work(others[1], Status.FAILED)
    seen = queue.batches.get(batch.id)
    assert (seen.done, seen.failed, seen.waiting, seen.on_done, seen.callback) == (1, 1, 1, "sum", None)
    assert [one.id for one in queue.batches.unfinished()] == [batch.id]
    assert callbacks(gates) == []
    gates.work(others[0])

    [callback] = callbacks(gates)
    job = queue.job(callback)
    assert (job.payload, job.meta) == ({"month": 1}, {"batch": batch.id})
    ended = queue.batches.get(batch.id)
    assert (ended.state, ended.callback, ended.done) == ("ended", callback, 2)
    assert queue.batches.unfinished() == []
    assert [job.id for job in queue.jobs(batch=batch.id)] == [others[1], others[0], first]
    assert queue.count(status="failed", batch=batch.id) == 1


def test_a_failed_job_that_is_retried_after_the_end_fires_nothing_again(gates: Gates, queue: Queue) -> None:
    with queue.batch(on_done="sum") as batch:
        job = batch.enqueue("tag")
    gates.work(job, Status.FAILED)
    assert len(callbacks(gates)) == 1
    queue.retry(job)
    gates.work(job)
    assert len(callbacks(gates)) == 1
    assert queue.batches.get(batch.id).done == 1


def test_a_batch_without_jobs_and_one_without_a_job_to_follow(gates: Gates, queue: Queue) -> None:
    @task("sum")
    def add_up() -> None: ...

    with queue.batch(on_done=add_up) as empty:
        pass
    with queue.batch() as silent:
        job = silent.enqueue("tag")
    assert len(callbacks(gates)) == 1
    gates.work(job)
    gates.tend()
    assert [queue.batches.get(one.id).state for one in (empty, silent)] == ["ended", "ended"]
    assert queue.batches.get(silent.id).callback is None


def test_a_block_that_raises_leaves_its_batch_open(gates: Gates, queue: Queue) -> None:
    batch = queue.batch(on_done="sum")

    def block() -> int:
        with batch:
            return batch.enqueue("tag") // 0

    with pytest.raises(ZeroDivisionError) as raised:
        block()
    [job] = gates.pending()
    assert f"jobs batch {batch.id} --close" in raised.value.__notes__[0]
    gates.work(job)
    assert callbacks(gates) == []
    assert [(one.id, one.state) for one in queue.batches.unfinished()] == [(batch.id, "open")]
    queue.batches.close(batch.id)
    queue.batches.close(batch.id)
    assert len(callbacks(gates)) == 1


@pytest.mark.parametrize("commits", [True, False])
def test_a_batch_in_a_transaction_of_the_caller_is_there_if_that_commits(
    gates: Gates, queue: Queue, *, commits: bool
) -> None:
    raw = connect(gates.url)
    raw.execute("BEGIN")
    with queue.batch(on_done="sum", connection=raw) as batch:
        job = batch.enqueue("tag")
        batch.enqueue_many("tag", [{}, {}])
    raw.execute("COMMIT" if commits else "ROLLBACK")
    raw.close()
    if not commits:
        with pytest.raises(BatchNotFound):
            queue.batches.get(batch.id)
        return
    gates.work(job)
    assert queue.batches.get(batch.id).waiting == 2
    for number in gates.pending():
        gates.work(number)
    assert len(callbacks(gates)) == 1


def child(batch: int, **options: Any) -> NewJob:
    return new_job("tag", batch=batch, **options)


@pytest.mark.parametrize("ways", [1, 2])
def test_the_last_job_of_a_batch_lets_it_grow(gates: Gates, queue: Queue, ways: int) -> None:
    """Its children are there before its end counts; `ways`: of another batch, too."""
    with queue.batch(on_done="sum") as batch, queue.batch(on_done="sum") as other:
        job = batch.enqueue("tag")
        stays = other.enqueue("mail")
    batches = [batch, other][:ways]
    [claim] = gates.claim()
    gates.settle(done(claim, None, children=tuple(child(one.id) for one in batches)))
    assert callbacks(gates) == []
    assert [queue.batches.get(one.id).state for one in (batch, other)] == ["closed", "closed"]
    gates.work(stays)
    [*children] = gates.pending()
    assert len(children) == ways
    for number in children:
        gates.work(number)
    assert len(callbacks(gates)) == 2
    assert queue.batches.get(batch.id).done == 2
    assert queue.job(job).status is Status.DONE


def test_what_a_lost_claim_would_add_is_not_there_and_the_batch_ends(gates: Gates, queue: Queue) -> None:
    with queue.batch(on_done="sum") as batch:
        batch.enqueue("tag")
    [claim] = gates.claim()
    lost = claim._replace(token=claim.token + 7)
    assert gates.desk.settle(done(lost, None, children=(child(batch.id),)), now=time.time()) == [claim.job_id]
    assert queue.batches.get(batch.id).state == "closed"
    gates.settle(failed(claim, BROKEN, POLICY, chance=0.5, permanent=True))
    assert len(callbacks(gates)) == 1


def test_a_batch_whose_last_jobs_were_deleted_ends_by_the_next_sweep(gates: Gates, queue: Queue) -> None:
    with queue.batch(on_done="sum") as batch:
        batch.enqueue_many("tag", [{}, {}])
    gates.tend()
    gates.sql(f"DELETE FROM jobs WHERE batch = {batch.id}")
    gates.desk.maintenance.gates.sweep(time.time())
    assert len(callbacks(gates)) == 1


def test_rows_of_batches_go_when_no_job_of_theirs_is_left(gates: Gates, queue: Queue) -> None:
    with queue.batch(on_done="sum") as ended:
        gates.work(ended.enqueue("tag"))
    with queue.batch(on_done="sum") as waits:
        gates.work(waits.enqueue("tag"))
        last = waits.enqueue("mail")
    left_open = queue.batches.open("sum")
    [callback] = callbacks(gates)

    def prune(now: float) -> set[int]:
        reached = 0
        while (reached := gates.desk.maintenance.finished.prune(reached, 1000, now, now)[1]) > 0:
            pass
        return {row[0] for row in gates.sql("SELECT id FROM job_batches")}

    later = time.time() + 100
    assert prune(later) == {ended.id, waits.id, left_open}, "its callback asks for the counts"
    gates.work(callback)
    assert prune(later) == {waits.id, left_open}
    gates.work(last)
    [callback] = callbacks(gates)
    gates.work(callback)
    assert prune(later) == {left_open}, "its program may still be at work"
    assert prune(later + WEEK) == set()
    with pytest.raises(BatchNotFound, match=f"no batch has the id {left_open}"):
        queue.batches.close(left_open)


def test_jobs_of_a_batch_are_found_and_cancelled(gates: Gates, queue: Queue) -> None:
    with queue.batch(on_done="sum") as batch:
        ids = batch.enqueue_many("tag", [{}] * 5)
        held = batch.enqueue("mail", concurrency_key="a"), batch.enqueue("mail", concurrency_key="a")
    queue.enqueue("tag")
    gates.work(ids[0])
    jobs, actions = gates.desk.operations.jobs, gates.desk.operations.actions
    unfinished = Filter(statuses=(Status.PENDING, Status.HELD, Status.RUNNING), batch=batch.id)
    assert jobs.ids(unfinished) == [*ids[1:], *held]
    assert jobs.some_ids(Filter(batch=batch.id), before=ids[2], limit=1) == ([ids[1]], ids[1])
    assert actions.cancel_all(jobs.ids(unfinished), time.time()) == 6
    assert len(callbacks(gates)) == 1
    assert queue.batches.get(batch.id).failed == 6


@pytest.mark.parametrize(
    ("columns", "values"),
    [("id, type", "1, 'no type!'"), ("id", "0"), ("id, ended_at", "1, 9e11"), ("id, payload", f"1, '{'x' * 1048577}'")],
)
def test_a_row_that_could_not_end_is_refused(gates: Gates, columns: str, values: str) -> None:
    with pytest.raises(Exception, match=r"(?i)check constraint"):
        gates.sql(f"INSERT INTO job_batches ({columns}) VALUES ({values})")


def test_bad_arguments_are_refused_by_name(queue: Queue) -> None:
    for field, bad in {"on_done": {"on_done": "no type!"}, "payload": {"payload": object()}}.items():
        with pytest.raises(InvalidJob) as error, queue.batch(**bad):  # type: ignore[arg-type]
            pass
        assert error.value.field == field
    with pytest.raises(InvalidJob, match="batch_id"):
        queue.batches.get("7")  # type: ignore[arg-type]


def test_an_asynchronous_program_has_the_same(gates: Gates, queue: Queue) -> None:
    async def main() -> int:
        own = AsyncQueue.of(queue)
        async with own.batch(on_done="sum") as batch:
            await asyncio.gather(*(batch.enqueue("tag") for _ in range(3)))
            await batch.enqueue_many("tag", [{}])
        with pytest.raises(ZeroDivisionError) as raised:
            async with own.batch(on_done="sum") as other:
                raise ZeroDivisionError
        assert str(other.id) in raised.value.__notes__[0]
        assert [one.state for one in await own.batches.unfinished()] == ["open", "closed"]
        await own.batches.close(other.id)
        assert (await own.batches.get(batch.id)).waiting == 4
        return batch.id

    number = asyncio.run(main())
    for job in gates.pending():
        gates.work(job)
    assert len(callbacks(gates)) == 2
    assert queue.batches.get(number).done == 4


def test_the_job_that_follows_passes_over_ids_that_were_given_by_hand(gates: Gates, queue: Queue) -> None:
    with queue.batch(on_done="sum") as batch:
        job = batch.enqueue("tag")
    for number in range(1, 20):
        gates.sql(f"INSERT INTO jobs (id, type) VALUES ({job + number}, 'mail')")
    gates.work(job)
    assert callbacks(gates) == [job + 20]
    assert queue.batches.get(batch.id).callback == job + 20


def test_ids_of_batches_that_begin_at_the_same_moment_differ(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    batches = gates.desk.operations.batches
    assert [batches.open(None, "{}") for _ in range(3)] == [1_800_000_000_000_000 + n for n in range(3)]
    assert execute(gates._raw, "SELECT count(*) FROM job_batches") == [(3,)]


@pytest.mark.parametrize("way", ["queue", "batch", "connection", "awaited"])
def test_many_jobs_may_come_after_others(gates: Gates, queue: Queue, way: str) -> None:
    first, raw = queue.enqueue("mail"), connect(gates.url)
    with queue.batch() as batch:
        which: Any = {"connection": raw} if way == "connection" else {}
        own: Any = {"queue": queue, "connection": queue, "batch": batch, "awaited": AsyncQueue.of(queue)}[way]
        made = own.enqueue_many("tag", [{}, Enqueue({}, priority=1), {}], after=[first], on_failed="run", **which)
        ids = asyncio.run(made) if way == "awaited" else made
    alike = queue.enqueue_many("tag", [{}, {}], after=[first])
    raw.close()
    assert gates.status(*ids, *alike) == ["held"] * 5
    gates.work(first, Status.FAILED)
    gates.tend()
    assert gates.status(*ids, *alike) == ["pending"] * 3 + ["cancelled"] * 2
    with pytest.raises(InvalidJob, match="after: there is no job 987654321"):
        queue.enqueue_many("tag", [{}, {}], after=[987654321])
    assert len(gates.pending()) == 3


def test_a_batch_that_does_not_exist_is_refused_wherever_a_job_is_enqueued(gates: Gates, queue: Queue) -> None:
    raw = connect(gates.url)
    with queue.batch() as pruned:
        pass
    gates.sql(f"DELETE FROM job_batches WHERE id = {pruned.id}")
    calls: list[Any] = [
        lambda: queue.enqueue("tag", batch=pruned.id),
        lambda: queue.enqueue("tag", batch=pruned.id, connection=raw),
        lambda: pruned.enqueue("tag"),
        lambda: pruned.enqueue_many("tag", [{}, {}]),
        lambda: queue.enqueue_many("tag", [{}, Enqueue({}, batch=pruned.id)]),
        lambda: queue.enqueue_many("tag", [{}, {}], batch=pruned.id, connection=raw),
        lambda: asyncio.run(AsyncQueue.of(queue).enqueue("tag", batch=pruned.id)),
    ]
    for call in calls:
        with pytest.raises(InvalidJob, match=f"batch: there is no batch {pruned.id}"):
            call()
    raw.close()
    assert gates.pending() == []


def test_who_shares_a_transaction_with_a_job_that_is_refused_is_not(gates: Gates, queue: Queue) -> None:
    async def main() -> list[Any]:
        own = AsyncQueue.of(queue)
        bad = own.enqueue("tag", after=[987654321]), own.enqueue("tag", batch=7)
        return await asyncio.gather(own.enqueue("tag"), *bad, own.enqueue("tag"), return_exceptions=True)

    first, after, batch, last = asyncio.run(main())
    assert [type(after), type(batch)] == [InvalidJob, InvalidJob]
    assert gates.pending() == [first, last]


@pytest.mark.parametrize("options", [{"after": [987654321]}, {"batch": 7}])
def test_a_run_whose_children_are_refused_fails_and_no_other(gates: Gates, queue: Queue, options: Any) -> None:
    jobs = queue.enqueue_many("tag", [{}, {}])
    claims = gates.claim(2)
    gates.settle(done(claims[0], None, children=(new_job("mail", **options),)), done(claims[1], None))
    assert gates.status(*jobs) == ["failed", "done"]
    said = "a job that it enqueued was refused by the database: (after|batch): there is no (job|batch) [0-9]+"
    assert re.fullmatch(said, queue.job(jobs[0]).last_error or "")
    assert gates.pending("mail") == []
