"""Several jobs at once for a program: each has its own answer, and what goes wrong is nobody's until one is alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement
from supervisor.worker.handler import HandlerError
from supervisor.worker.runners.batch import BatchExecutor
from tests.faults.programs import ended, program_site
from tests.programs.conftest import MakePair, Pair
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]

RAW = """
import json, os, sys, time
def say(**message): os.write(3, json.dumps(message).encode() + b"\\n")
def result(job, value=None, **more): say(type="result", id=job["id"], value=value, **more)
say(type="hello", protocol=1, batches=True)
sys.stdin.readline()
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] != "batch":
        break
    batch, jobs = message["id"], message["jobs"]
    if True:
{body}
"""
KEYS = 'batch_size = 16\nbatch_wait = "20ms"'


def claims(*payloads: Any) -> list[Claim]:
    return [Claim(70 + n, 1, "tag", json.dumps(payload), 2, None, 0) for n, payload in enumerate(payloads)]


def raw(pair: MakePair, folder: Path, *body: str) -> Pair:
    (folder / "raw.py").write_text(RAW.format(body="\n".join(f"        {line}" for line in body)))
    return pair(sys.executable, "raw.py", keys=KEYS).set_up()


def run(made: Pair, *payloads: Any) -> list[Settlement]:
    return BatchExecutor(made.executor).run(claims(*payloads))


def test_each_job_has_its_own_answer_in_any_order(pair: MakePair, tmp_path: Path) -> None:
    made = raw(
        pair,
        tmp_path,
        "say(type='progress', id=batch, fraction=0.5)",
        "result(jobs[2], jobs[2]['payload'])",
        "say(type='error', id=jobs[0]['id'], message='no such picture', permanent=True)",
        "result(jobs[1], {**message, 'jobs': jobs[1:2]}, enqueue=[{'type': 'next'}])",
    )
    first, second, third = run(made, {"n": 1}, {"n": 2}, {"n": 3})

    assert (first.status, first.failure and first.failure.message) == (Status.FAILED, "no such picture")
    assert [child.type for child in second.children] == ["next"]
    assert json.loads(second.result or "") == {
        "type": "batch",
        "id": 1,
        "timeout": 120.0,
        "jobs": [
            {
                "id": 3,
                "job_id": 71,
                "idempotency_key": "test-71",
                "job_type": "tag",
                "attempt": 2,
                "payload": {"n": 2},
            }
        ],
    }
    assert (third.status, third.result) == (Status.DONE, '{"n":3}')
    assert [settlement.progress for settlement in (second, third)] == [1.0, 1.0]
    again = run(made, {}, {}, {})
    assert [settlement.status for settlement in again] == [Status.FAILED, Status.DONE, Status.DONE]
    assert made.leaves == 0


def nobody_is_charged(settlements: Sequence[Settlement], limit: int = 2) -> bool:
    return {(s.status, s.attempts, s.crashes, s.failure, s.batch_limit) for s in settlements} == {
        (Status.PENDING, -1, 0, None, limit)
    }


WRONG = [
    ("say(type='result', id=batch + 99)", "sent a result with an invalid id, 100"),
    ("say(type='result')", "sent a result with an invalid id, None"),
    ("result(jobs[0]); result(jobs[0])", "sent a result with an invalid id, 2"),
    ("result(jobs[0]); say(type='error', id=jobs[0]['id'])", "sent an error with an invalid id, 2"),
    ("say(type='result', id=batch)", "sent a result with an invalid id, 1"),
    ("os.write(3, b'hello\\n')", "sent a line that is not valid JSON: 'hello'"),
    ("result(jobs[0]); os.close(3); time.sleep(60)", "closed its replies or its requests, and continued to run"),
]


@pytest.mark.fault(102)
@pytest.mark.parametrize(("body", "what"), WRONG, ids=[what for _, what in WRONG])
def test_a_program_that_answers_a_batch_wrongly_is_killed_and_no_job_is_charged(
    pair: MakePair, tmp_path: Path, body: str, what: str
) -> None:
    made = raw(pair, tmp_path, body, "time.sleep(60)")

    assert nobody_is_charged(run(made, {}, {}, {}))
    assert made.losses == [f"the program {what}; it was killed"]
    assert made.leaves


@pytest.mark.fault(102)
def test_what_a_job_does_that_is_alone_in_its_batch_is_charged_to_it(pair: MakePair, tmp_path: Path) -> None:
    made = raw(pair, tmp_path, "os.write(3, b'hello\\n'); time.sleep(60)")
    [alone] = run(made, {})

    assert alone.crashes == 1
    assert alone.failure is not None
    assert alone.failure.kind == "protocol"
    assert alone.failure.message == "the program sent a line that is not valid JSON: 'hello'; it was killed"


@pytest.mark.fault(102)
def test_a_program_that_ends_in_the_middle_of_a_batch_charges_no_job(pair: MakePair, tmp_path: Path) -> None:
    made = raw(pair, tmp_path, "result(jobs[0]); os._exit(3)")

    assert nobody_is_charged(run(made, {}, {}, {}))
    assert made.losses == ["the program ended with exit code 3 while it was running a batch of 3 jobs"]
    # Dead before the next batch begins: that one is only returned.
    settlements = run(made, {}, {})
    assert nobody_is_charged(settlements, limit=0)


def test_an_error_for_the_whole_batch_is_nobodys(pair: MakePair, tmp_path: Path) -> None:
    made = raw(pair, tmp_path, "result(jobs[0]); say(type='error', id=batch, message='the model is gone')")
    assert nobody_is_charged(run(made, {}, {}, {}))
    assert made.leaves == 0


def test_a_retry_that_is_asked_for_the_whole_batch_is_that_of_every_job(pair: MakePair, tmp_path: Path) -> None:
    made = raw(pair, tmp_path, "say(type='error', id=batch, message='busy', after='30s')")
    settlements = run(made, {}, {})

    assert [(s.status, s.delay, s.attempts, s.batch_limit) for s in settlements] == [(Status.PENDING, 30.0, 0, 0)] * 2


def test_a_payload_that_json_cannot_say_fails_alone(pair: MakePair, tmp_path: Path) -> None:
    made = raw(pair, tmp_path, "[result(job) for job in jobs]")
    refused, other = BatchExecutor(made.executor).run([*claims({}), Claim(9, 1, "tag", "NaN", 1, None, 0)])

    assert (refused.job_id, refused.status, other.status) == (9, Status.FAILED, Status.DONE)
    assert refused.failure is not None
    assert refused.failure.message == "the payload is not valid JSON: NaN is not part of JSON"


def test_a_program_that_takes_one_job_at_a_time_is_refused_in_words(pair: MakePair, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("from job_handler import serve\nserve(lambda payload, ctx: None)\n")
    with pytest.raises(HandlerError, match='it takes one job at a time; its hello must say "batches": true'):
        pair(sys.executable, "one.py", keys=KEYS).set_up()


# The Python helper

HELPED = """
import os, sys, time
from job_handler import Fail, Retry, serve

class OutOfMemoryError(Exception):
    pass

class Tagger:
    def handle_batch(self, payloads, ctx):
        with open("sizes", "a") as sizes:
            sizes.write(f"{len(payloads)}\\n")
        for payload, job in zip(payloads, ctx.jobs):
            do = payload.get("do")
            if do == "exit":
                os._exit(1)
            elif do == "hang":
                time.sleep(60)
            elif do == "raise":
                raise ValueError("somebody's payload")
            elif do == "wait for cancel":
                while not job.cancelled:
                    time.sleep(0.005)
            elif do == "enqueue":
                job.enqueue("later", {"of": job.job_id}, delay="1h")
        if ctx.options.get("limit") and len(payloads) > ctx.options["limit"]:
            raise OutOfMemoryError("too many")
        return [Fail("mine") if payload.get("do") == "own error" else [os.getpid(), job.job_id]
                for payload, job in zip(payloads, ctx.jobs)]

serve(Tagger)
"""
POOL = """
[pools.tag]
command = ["PYTHON", "helped.py"]
workers = 1
batch_size = 16
batch_wait = "50ms"
max_crashes = 2
retry = { max_attempts = 1 }
"""


def sizes(site: Site) -> list[int]:
    return [int(line) for line in (site.folder / "sizes").read_text().split()]


def site_with(make_site: MakeSite, *lines: str, pool: str = POOL) -> Site:
    return program_site(make_site, pool + "\n".join(lines) + "\n", helped=HELPED)


def test_a_program_gets_the_jobs_of_a_batch_together(make_site: MakeSite) -> None:
    site = site_with(make_site)
    does = ["own error", "enqueue", *[None] * 30]
    jobs = site.queue.enqueue_many("tag", [{"do": do} for do in does])
    site.start()
    assert ended(site, jobs[0]).last_error == "mine"
    assert [ended(site, job).result[1] for job in jobs[1:]] == jobs[1:]
    assert sizes(site) == [16, 16]
    assert site.rows("SELECT payload FROM jobs WHERE type = 'later'") == [(f'{{"of":{jobs[1]}}}',)]


@pytest.mark.fault(102)
@pytest.mark.parametrize(
    ("do", "status", "kind"),
    [("exit", Status.QUARANTINED, "crash"), ("raise", Status.FAILED, "exception"), ("hang", Status.FAILED, "timeout")],
)
def test_the_job_of_a_batch_that_harms_its_program_is_found_and_charged_alone(
    make_site: MakeSite, do: str, status: Status, kind: str
) -> None:
    site = site_with(make_site, 'timeout = "500ms"')
    jobs = site.queue.enqueue_many("tag", [{"do": do} if n == 5 else {} for n in range(8)])
    site.start()
    for job in jobs:
        assert ended(site, job).status is (status if job == jobs[5] else Status.DONE)
    assert set(site.rows("SELECT job_id, kind FROM job_errors")) == {(jobs[5], kind)}
    others = set(site.rows("SELECT attempts, crashes FROM jobs WHERE type = 'tag' AND id <> ?", jobs[5]))
    assert others == {(1, 0)}
    assert sizes(site)[0] == 8


def test_a_program_is_told_which_job_of_its_batch_is_cancelled(make_site: MakeSite) -> None:
    site = site_with(make_site)
    jobs = site.queue.enqueue_many("tag", [{}, {"do": "wait for cancel"}, {}])
    site.start()
    wait_for(lambda: site.count("running") == 3, "the batch to be claimed")
    site.queue.cancel(jobs[1])
    assert {ended(site, job).status for job in jobs} == {Status.DONE}
    assert sizes(site) == [3]


@pytest.mark.fault(101)
def test_a_program_whose_batches_run_out_of_memory_gets_smaller_ones(make_site: MakeSite) -> None:
    pool = POOL.replace("batch_size = 16", 'batch_size = "auto"')
    site = site_with(make_site, "options = { limit = 6 }", pool=pool)
    jobs = site.queue.enqueue_many("tag", [{}] * 150)
    site.start()
    pids = {ended(site, job).result[0] for job in jobs}
    assert len(pids) == 1
    assert site.rows("SELECT count(*) FROM job_errors") == [(0,)]
    assert set(site.rows("SELECT attempts, crashes FROM jobs WHERE type = 'tag'")) == {(1, 0)}
    assert sum(size > 6 for size in sizes(site)) <= 5


def test_jobs_for_a_program_are_grouped_by_a_field(make_site: MakeSite) -> None:
    site = site_with(make_site, 'batch_key = "model"')
    jobs = site.queue.enqueue_many("tag", [{"model": n % 2} for n in range(160)])
    site.start()
    assert {ended(site, job).status for job in jobs} == {Status.DONE}
    assert 16 in sizes(site)


def test_the_chunks_of_a_batch_are_those_of_its_jobs_and_a_large_one_is_dropped(pair: MakePair, tmp_path: Path) -> None:
    made = raw(
        pair,
        tmp_path,
        "for job in jobs:",
        "    say(type='emit', id=job['id'], chunk={'of': job['id']})",
        "say(type='emit', id=jobs[0]['id'], chunk='x' * 20000)",
        "for job in jobs:",
        "    result(job)",
    )
    emitted: list[tuple[int, bytes]] = []
    made.board.emit = lambda run, data: emitted.append((run.job_id, data))  # type: ignore[method-assign]
    assert [each.status for each in run(made, 1, 2)] == [Status.DONE] * 2
    assert emitted == [(70, b'{"of":2}'), (71, b'{"of":3}')]


def test_a_chunk_of_a_whole_batch_breaks_the_protocol(pair: MakePair, tmp_path: Path) -> None:
    made = raw(pair, tmp_path, "say(type='emit', id=batch, chunk='x')", "time.sleep(60)")
    [only] = run(made, 1)
    assert only.failure is not None
    assert "sent an emit with an invalid id, 1" in only.failure.message
