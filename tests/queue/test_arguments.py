"""What Queue and AsyncQueue say to arguments of a wrong kind, and to ids and times beyond all measure: the same."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from supervisor import AsyncQueue, InvalidJob, JobNotFound, Queue, Status, WaitTimeout
from supervisor.client.subscription import Subscription
from supervisor.client.watcher import Watcher
from supervisor.domain.errors import InvalidOption
from tests.queue.conftest import end


def asked(queue: Queue, name: str, *args: Any, **options: Any) -> Any:
    """A call of the queue, or what it raises."""
    try:
        found = getattr(queue, name)(*args, **options)
        return list(found) if name == "events" else found
    except (InvalidJob, JobNotFound) as error:
        return type(error), str(error)


async def awaited(queue: AsyncQueue, name: str, *args: Any, **options: Any) -> Any:
    try:
        found = getattr(queue, name)(*args, **options)
        return [event async for event in found] if name == "events" else await found
    except (InvalidJob, JobNotFound) as error:
        return type(error), str(error)


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
@pytest.mark.parametrize("busy_timeout", [-1, math.nan, math.inf, 1e6, "5", None, True])
def test_a_busy_timeout_is_a_number_of_seconds(kind: type[Queue | AsyncQueue], url: str, busy_timeout: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^busy_timeout: .* is not a number of seconds from 0 to 3600$"):
        kind(url, busy_timeout=busy_timeout)


def test_urls_of_sqlalchemy_name_the_same_file(url: str) -> None:
    for driver in ("pysqlite", "aiosqlite"):
        assert Queue(url.replace(":", f"+{driver}:", 1)).url == Queue(url).url


OF_ONE_JOB = ("job", "progress", "wait", "events", "cancel", "retry", "delete")


@pytest.mark.parametrize("name", OF_ONE_JOB)
@pytest.mark.parametrize(
    ("job_id", "kind", "sentence"),
    [
        (0, JobNotFound, "no job has the id 0"),
        (2**63, JobNotFound, "no job has the id 9223372036854775808"),
        (2**70, JobNotFound, "no job has the id 1180591620717411303424"),
        (-(2**70), JobNotFound, "no job has the id -1180591620717411303424"),
        (10**5000, JobNotFound, "no job has so large an id"),
        ("1", InvalidJob, "job_id: '1' is not a whole number"),
        (True, InvalidJob, "job_id: True is not a whole number"),
        (1.0, InvalidJob, "job_id: 1.0 is not a whole number"),
        (None, InvalidJob, "job_id: None is not a whole number"),
        ([1], InvalidJob, "job_id: [1] is not a whole number"),
    ],
    ids=lambda value: "huge" if value == 10**5000 else None,
)
def test_an_id_that_no_job_can_have_is_not_found_and_what_is_no_id_is_named(
    queue: Queue, name: str, job_id: Any, kind: type[Exception], sentence: str
) -> None:
    queue.enqueue("tag")
    assert asked(queue, name, job_id) == (kind, sentence)
    assert asyncio.run(awaited(AsyncQueue.of(queue), name, job_id)) == (kind, sentence)


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({"ids": [2**70, 1]}, [1]),
        ({"ids": [2**70]}, []),
        ({"before": 2**70}, [2, 1]),
        ({"before": 2**63}, [2, 1]),
        ({"before": -(2**70)}, []),
        ({"before": 2}, [1]),
    ],
)
def test_a_list_of_jobs_with_an_id_that_no_job_can_have(queue: Queue, conditions: Any, found: list[int]) -> None:
    queue.enqueue_many("tag", [1, 2])
    assert [job.id for job in queue.jobs(**conditions)] == found
    if "ids" in conditions:
        assert queue.count(**conditions) == len(found)


@pytest.mark.parametrize(
    ("name", "conditions", "sentence"),
    [
        ("jobs", {"ids": ["1"]}, "ids: '1' is not a whole number"),
        ("jobs", {"ids": 1}, "ids: 1 is not a list of ids"),
        ("jobs", {"before": "1"}, "before: '1' is not a whole number"),
        ("jobs", {"before": True}, "before: True is not a whole number"),
        ("jobs", {"limit": "5"}, "limit: '5' is not a whole number from 1 to 10000"),
        ("jobs", {"type": 5}, "type: 5 is neither a string nor a list of strings"),
        ("count", {"type": [5]}, "type: 5 is not a string"),
        ("count", {"tags": 5}, "tags: 5 is neither a string nor a list of strings"),
        ("count", {"status": 5}, "status: 5 is neither a string nor a list of strings"),
        ("jobs", {"error": 5}, "error: 5 is not a string"),
        ("jobs", {"text": b"x"}, "text: b'x' is not a string"),
        ("count", {"unique_key": 5}, "unique_key: 5 is not a string"),
        ("count", {"most": -1}, "most: -1 is not a whole number from 0 to 4611686018427387904"),
        ("count", {"most": "1"}, "most: '1' is not a whole number from 0 to 4611686018427387904"),
        ("count", {"ids": [True]}, "ids: True is not a whole number"),
    ],
)
def test_a_condition_of_a_wrong_kind_gets_one_sentence(queue: Queue, name: str, conditions: Any, sentence: str) -> None:
    assert asked(queue, name, **conditions) == (InvalidJob, sentence)
    assert asyncio.run(awaited(AsyncQueue.of(queue), name, **conditions)) == (InvalidJob, sentence)


def test_a_count_up_to_none_is_zero(queue: Queue) -> None:
    queue.enqueue("tag")
    assert [queue.count(most=most) for most in (0, 1, None)] == [0, 1, 1]


@pytest.mark.parametrize("timeout", [math.nan, "5", True, [1]])
def test_a_limit_that_is_no_number_of_seconds_is_refused(queue: Queue, timeout: Any) -> None:
    sentence = f"timeout: {timeout!r} is not a number of seconds"
    job_id = queue.enqueue("tag")
    assert asked(queue, "wait", job_id, timeout=timeout) == (InvalidJob, sentence)
    assert asyncio.run(awaited(AsyncQueue.of(queue), "wait", job_id, timeout=timeout)) == (InvalidJob, sentence)


@pytest.mark.parametrize("timeout", [math.inf, 1e11, 1e300, 10**400])
def test_a_limit_beyond_all_clocks_is_none(
    queue: Queue, other: sqlite3.Connection, timeout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = queue.enqueue_many("tag", [1, 2])
    beginning = threading.Event()
    subscribe = Watcher.subscribe

    def entered(self: Watcher, wanted: Subscription) -> None:
        beginning.set()
        subscribe(self, wanted)

    monkeypatch.setattr(Watcher, "subscribe", entered)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.wait, ids[0], timeout)
        assert beginning.wait(30) or waiting.done()
        end(other, ids[0])
        assert waiting.result(30).status is Status.DONE

    async def use() -> None:
        asynchronous = AsyncQueue.of(queue)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            waiting = group.create_task(asynchronous.wait(ids[1], timeout))
            while not queue._watcher.listening and not waiting.done():
                await asyncio.sleep(0.01)
            end(other, ids[1])
        assert waiting.result().status is Status.DONE

    asyncio.run(use())


@pytest.mark.parametrize("timeout", [-1, -math.inf, 0, -(10**400)])
def test_a_limit_that_is_over_is_a_look_at_the_job(queue: Queue, timeout: Any) -> None:
    job_id = queue.enqueue("tag")
    for call in (lambda: queue.wait(job_id, timeout), lambda: asyncio.run(AsyncQueue.of(queue).wait(job_id, timeout))):
        with pytest.raises(WaitTimeout, match=f"job {job_id} has not finished within 0ms"):
            call()
