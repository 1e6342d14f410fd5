"""Whoever reads what jobs print, or has ceased to: printing is never an error of the job, and blocks none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

from supervisor import Status
from tests import forkserver
from tests.samples import sampled
from tests.site_under_test import MakeSite, wait_for
from tests.stopwatch import Stopwatch

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\nretry = { max_attempts = 1 }\n'
HANDLERS = """
import logging, os, subprocess, sys
from ledger import record

print("at the import", flush=True)
logging.basicConfig(stream=sys.stdout, level="INFO")

def work(payload, ctx):
    record("start", ctx)
    for _ in range(payload.get("lines", 20)):
        print("x" * 1000, flush=True)
        logging.info("logged")
        ctx.log.info("an event")
    print("an error", file=sys.stderr)
    os.write(1, b"written")
    os.write(2, b"written")
    subprocess.run(["sh", "-c", "echo of a program; echo error >&2"], check=True)
    if payload.get("closes"):
        sys.stdout.close()
        sys.stderr.close()
    record("end", ctx)
    return "printed"
"""


def nobody_reads() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    both(writer)


def closed() -> None:
    os.close(1)


def both_closed() -> None:
    os.closerange(1, 3)


def full_disk() -> None:
    both(os.open("/dev/full", os.O_WRONLY))


def both(descriptor: int) -> None:
    for number in (1, 2):
        os.dup2(descriptor, number)


@pytest.mark.fault(73)
@pytest.mark.parametrize(
    ("how", "start"),
    sampled(
        [
            *((closed, "fork"), (full_disk, "fork"), (nobody_reads, "spawn"), (both_closed, "spawn")),
            *((nobody_reads, "fork"), (both_closed, "fork"), (closed, "spawn"), (full_disk, "spawn")),
        ],
        quick=4,
    ),
)
def test_jobs_that_print_succeed_whatever_stdout_is(make_site: MakeSite, how: Callable[[], None], start: str) -> None:
    site = make_site(f'{POOL}start = "{start}"\n', HANDLERS)
    supervisor = site.start(wait=False, preexec_fn=how)
    for payload in ({}, {"closes": True}, {}):
        assert site.done(site.queue.enqueue("work", payload)).result == "printed"
    [(log,)] = site.rows("SELECT log FROM job_runs WHERE job_id = (SELECT max(id) FROM jobs)")
    assert log.count("x" * 1000) == 20
    assert site.stop(supervisor) == 0
    site.verdict()


SPEAKS = """
import logging, sys, warnings

WORDS = "é \\udce9"
print("import", WORDS)
logging.basicConfig(stream=sys.stdout, format="%(message)s")

def work(payload, ctx):
    print("out", WORDS)
    print("err", WORDS, file=sys.stderr)
    logging.warning("logged %s", WORDS)
    warnings.warn(f"warned {WORDS}")
    if "structlog" in sys.modules:  # in a worker
        structlog = sys.modules["structlog"]
        structlog.get_logger().info(f"event {WORDS}")
        own = structlog.wrap_logger(structlog.PrintLogger(), [lambda logger, level, event: event["event"]])
        own.info(f"own {WORDS}")
    return "é"
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PROGRAM = f"""
[pools.work]
command = ["{sys.executable}", "-m", "job_handler", "jobs:work"]
env = {{ {", ".join(f'{name} = "{value}"' for name, value in ASCII.items())} }}
"""


@pytest.mark.fault(73)
@pytest.mark.parametrize(
    ("pool", "sources"),
    [
        *((f'{POOL}start = "{start}"\n', "out err logged warned event own") for start in ("fork", "spawn")),
        (PROGRAM, "out err logged warned"),
    ],
    ids=["fork", "spawn", "program"],
)
def test_whatever_a_job_prints_is_utf_8_or_escaped(make_site: MakeSite, pool: str, sources: str) -> None:
    site = make_site(pool, SPEAKS)
    environment = {**os.environ, **ASCII}
    site.start(env=environment)
    assert forkserver.run(["check", "-c", str(site.config)], cwd=site.folder, env=environment).returncode == 0
    assert site.done(site.queue.enqueue("work")).result == "é"
    [(log,)] = site.rows("SELECT log FROM job_runs")
    assert [source for source in sources.split() if f"{source} é \\udce9" not in log] == []
    assert "import é \\udce9" in site.log.read_text("utf-8")


FLOOD = """
import ctypes, os, sys
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    line = "x" * 99_999 + "\\n"
    for _ in range(payload.get("print", 0)):
        sys.stdout.write(line)
        sys.stderr.write(line)
    record("end", ctx)
"""


@pytest.mark.fault(52)
def test_a_job_that_prints_without_end_costs_only_its_own_time(
    make_site: MakeSite,
) -> None:
    other = '[pools.other]\nhandler = "jobs:work"\nworkers = 1\ntimeout = "5s"\n'
    site = make_site(f'{POOL}timeout = "3s"\n{other}', FLOOD)  # in a second a busy machine may print too little
    site.start()
    flood = site.queue.enqueue("work", {"print": 1_000_000})
    site.running_pid(flood)
    for _ in range(20):
        watch = Stopwatch()
        site.done(site.queue.enqueue("other"))
        assert watch.seconds() < 2
    assert site.queue.wait(flood, timeout=20).status is Status.FAILED
    site.done(site.queue.enqueue("work"))
    site.verdict(failed=[flood])
    [(log,)] = site.rows("SELECT length(log) FROM job_runs WHERE job_id = ?", flood)
    assert log < 100_000
    assert site.log.stat().st_size < 20 << 20
    dropped = wait_for(lambda: site.event("output_dropped"), "to be told how much was dropped")
    assert dropped["bytes"] > 1 << 20


ARRANGES = """
import io, structlog, sys

class Unspeakable:
    def __repr__(self):
        raise RuntimeError("a detached row")

def work(payload, ctx):
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stderr.reconfigure(line_buffering=True)
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", write_through=True)
    circle, deep = {}, []
    circle["itself"] = circle
    for _ in range(5000):
        deep = [deep]
    for value in (circle, Unspeakable(), 10**5000, deep, "plain"):
        for log in (ctx.log, structlog.get_logger()):
            log.info("shown", value=value)
    print("said é", flush=True)
"""


@pytest.mark.fault(73)
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("form", ["json", "console"])
def test_a_job_may_arrange_its_streams_and_log_what_cannot_be_shown(make_site: MakeSite, start: str, form: str) -> None:
    """The supervisor's own output goes to a file, as under nohup or cron, and that of its workers to a pipe."""
    site = make_site(f'{POOL}start = "{start}"\n', ARRANGES)
    site.config.write_text(site.config.read_text().replace('format = "json"', f'format = "{form}"'))
    site.start(wait=False, program=(sys.executable, "-m", "supervisor"))
    job = site.done(site.queue.enqueue("work"))
    assert job.attempts == 1
    [(log,)] = site.rows("SELECT log FROM job_runs")
    assert (log.count("info shown"), log.count("value=plain")) == (10, 2)
    assert "Unspeakable that cannot be shown" in log
    wait_for(lambda: "said é" in site.log.read_text("utf-8"), "what it has printed")
