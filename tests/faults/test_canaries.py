"""A worker is tried before it takes jobs: what fails its warm-up or canary never serves, and what served goes on."""

from __future__ import annotations

import signal

import pytest

from supervisor import Status
from supervisor.system import kernel
from tests.faults.new_code import reload, shown, write_code
from tests.samples import sampled
from tests.site_under_test import MakeSite, Site, kill, wait_for
from tests.stopwatch import Stopwatch

JOBS = """
import os
from ledger import record

def note(what):
    fd = os.open("calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{what} {os.getpid()}\\n".encode())
    os.close(fd)

def answer(payload, ctx):
    if ctx.job_id:
        record("start", ctx); record("end", ctx)
    else:
        note(payload["text"])
    return {"label": LABEL, "score": 0.913, "version": VERSION}

LABEL, VERSION = "cat", 1
"""
POOL = """
[pools.model]
handler = "jobs:answer"
{size}
canary = {{ payload = {{ text = "canary" }}, expect = {{ label = "cat", score = 0.91 }}, tolerance = 0.01 }}
"""


def code(site: Site, label: str, version: int, more: str = "") -> None:
    write_code(site, JOBS.replace('"cat", 1', f'"{label}", {version}') + more)


def calls(site: Site, what: str) -> list[int]:
    path = site.folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[1]) for line in lines if line.split()[0] == what]


def version(site: Site) -> int:
    result = site.done(site.queue.enqueue("model", {"text": "job"})).result
    return int(result["version"])


def problem(site: Site) -> str:
    return str(shown(site, "model")["problem"] or "")


@pytest.mark.fault(98)
def test_at_the_start_no_job_runs_before_the_canary_succeeds(make_site: MakeSite) -> None:
    site = make_site(POOL.format(size="workers = 1"), JOBS.replace("0.913", "0.7"))
    site.start()
    job = site.queue.enqueue("model", {"text": "job"})
    wait_for(lambda: "canary failed: " in problem(site), "the reason")
    assert site.job(job).status is Status.PENDING
    code(site, "cat", 2)
    assert reload(site, "--wait").returncode == 0
    assert site.done(job).result["version"] == 2


@pytest.mark.fault(98)
def test_new_code_without_an_image_is_tried_in_each_worker(make_site: MakeSite) -> None:
    site = make_site(POOL.format(size="workers = 1\npreload = false"), JOBS)
    site.start()
    assert version(site) == 1
    code(site, "dog", 2)  # and no reload
    [worker] = site.workers("model-")
    job = site.queue.enqueue("model", {"text": "job"}, delay="500ms")
    kill(worker.pid)
    wait_for(lambda: "canary failed" in problem(site), "the reason")
    assert site.job(job).status is Status.PENDING
    code(site, "cat", 3)
    assert site.done(job).result["version"] == 3


def test_a_worker_that_dies_before_anybody_has_seen_it_ready_has_proved_its_code(make_site: MakeSite) -> None:
    slow = JOBS.replace('note(payload["text"])', 'note(payload["text"]); __import__("time").sleep(1)')
    site = make_site(POOL.format(size="workers = 1"), slow)
    supervisor = site.start()
    wait_for(lambda: calls(site, "canary"), "its canary")
    [slot] = map(site.slot, site.workers("model-"))
    wait_for(lambda: slot.read().start, "the supervisor to watch it")  # it serves only then
    supervisor.send_signal(signal.SIGSTOP)
    [worker] = wait_for(lambda: [w for w in site.workers("model-") if w.state == 2], "an idle worker")
    kill(worker.pid)
    wait_for(lambda: kernel.start_ticks(worker.pid) is None, "its end")
    supervisor.send_signal(signal.SIGCONT)

    assert version(site) == 1
    assert calls(site, "canary") == [worker.pid]


def test_only_the_first_workers_with_new_code_run_the_canary(make_site: MakeSite) -> None:
    site = make_site(POOL.format(size="workers = 1"), JOBS)
    site.start()
    assert version(site) == 1
    for _ in range(2):
        [worker] = wait_for(lambda: [w for w in site.workers("model-") if w.state == 2], "an idle worker")
        kill(worker.pid)
        assert version(site) == 1
    assert len(calls(site, "canary")) == 1
    assert reload(site, "--wait").returncode == 0
    assert len(calls(site, "canary")) == 2


@pytest.mark.fault(98)
def test_each_worker_is_warmed_up_before_it_is_ready(make_site: MakeSite) -> None:
    config = '[pools.model]\nhandler = "jobs:answer"\nworkers = 2\nwarmup = { payload = { text = "warm" } }\n'
    site = make_site(config, JOBS)
    site.start()
    workers = wait_for(lambda: len(found := [w for w in site.workers("model-") if w.state == 2]) == 2 and found, "both")
    assert set(calls(site, "warm")) == {worker.pid for worker in workers}
    code(site, "cat", 2, "\ndef answer(payload, ctx):\n    raise RuntimeError('no kernel image')\n")
    told = reload(site, "--wait")
    assert (told.returncode, "failed its warm-up: RuntimeError: no kernel image" in told.stderr) == (1, True)
    assert version(site) == 1


@pytest.mark.parametrize(
    "pool",
    sampled(
        [
            'handler = "jobs:later"\nconcurrency = 4',
            'handler = "jobs:Batches"\nbatch_size = 4',
            'command = ["python3", "-m", "job_handler", "jobs:Batches"]\nbatch_size = 4',
            'handler = "jobs:answer"\nmiddleware = ["jobs:Around"]',
            'command = ["python3", "-m", "job_handler", "jobs:simple"]',
            'handler = "jobs:later"',
            'handler = "jobs:answer"\nstart = "spawn"',
            'tasks = ["work"]',
        ],
        quick=5,
    ),
)
def test_every_kind_of_handler_can_be_tried(make_site: MakeSite, pool: str) -> None:
    more = """
async def later(payload, ctx):
    import asyncio
    await asyncio.sleep(0.001)
    return answer(payload, ctx)

class Batches:
    def handle_batch(self, payloads, ctx):
        return [{"label": "cat", "job": job.job_id} for job in ctx.jobs]

class Around:
    def around_run(self, run, ctx):
        note("middleware")
        return run()

def simple(payload, ctx):
    return {"label": "cat"}
"""
    trials = (
        'warmup = { payload = { text = "warm" } }\ncanary = { payload = { text = "x" }, expect = { label = "cat" } }'
    )
    site = make_site(f"[pools.model]\n{pool}\nworkers = 1\n{trials}\n", JOBS + more)
    (site.folder / "work.py").write_text(
        "from supervisor import task\n@task('model')\ndef model(text: str) -> dict:\n    return {'label': 'cat'}\n"
    )
    site.start()
    job = site.queue.enqueue("model", {"text": "job"})
    assert site.queue.wait(job, timeout=20).result["label"] == "cat", site.log.read_text()[-3000:]
    told = site.command("status").stdout
    assert "BROKEN" not in told


def test_a_reload_is_waited_for_no_longer_than_asked(make_site: MakeSite) -> None:
    slow = "\nclass Slow:\n    def setup(self, ctx):\n        import time\n        time.sleep(60)\n"
    slow += "    def handle(self, payload, ctx):\n        return 1\n"
    site = make_site('[pools.model]\nhandler = "jobs:answer"\nworkers = 1\n', JOBS + slow)
    site.start()
    assert version(site) == 1
    site.configure('[pools.model]\nhandler = "jobs:Slow"\nworkers = 1\n')
    watch = Stopwatch()
    told = reload(site, "--wait", "--timeout", "1s")
    assert (told.returncode, "is still reloading" in told.stdout) == (1, True)
    assert watch.seconds() < 15
    assert version(site) == 1
