"""Calls of a queue that type checkers must accept, with their answers."""

from collections.abc import Iterator
from typing import assert_type

from supervisor import (
    AsyncQueue,
    BatchView,
    Enqueue,
    FollowEvent,
    Job,
    JobEvent,
    JobPage,
    Progress,
    Queue,
    Status,
    task,
)


async def use(queue: AsyncQueue) -> None:
    assert_type(await queue.enqueue("tag", {"n": 1}, priority=5, delay="10s", connection=object()), int)
    assert_type(await queue.put("tag", unique_key="k"), tuple[int, bool])
    assert_type(await queue.enqueue_many("tag", [1, Enqueue(2, priority=3)]), list[int])
    assert_type(await queue.job(1), Job)
    assert_type(await queue.jobs("tag", status=[Status.DONE], limit=5), JobPage)
    assert_type(await queue.count(status="done"), int)
    assert_type(await queue.progress(1), Progress)
    assert_type(await queue.cancel(1), Status)
    assert_type(await queue.pause("tag", force=True), bool)
    assert_type(await queue.wait(1, timeout=3), Job)
    async with queue.batch(on_done="mail") as batch:
        assert_type(await batch.enqueue("tag", priority=5), int)
    assert_type(await queue.batches.get(batch.id), BatchView)
    async for event in queue.events(1):
        assert_type(event, JobEvent)
    async for news in queue.follow(1, timeout=3):
        assert_type(news, FollowEvent)


def block(queue: Queue) -> None:
    with queue.batch(on_done=task(print)) as batch:
        assert_type(batch.enqueue_many("tag", [1]), list[int])
    assert_type(queue.batches.unfinished(), list[BatchView])
    assert_type(queue.put("tag"), tuple[int, bool])
    assert_type(queue.jobs()[0], Job)
    assert_type(queue.events(1), Iterator[JobEvent])
    assert_type(queue.follow(1), Iterator[FollowEvent])
