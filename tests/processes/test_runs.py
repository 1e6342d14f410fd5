"""What real runs use and say stands with their jobs, and what is printed still goes where it went."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor import Status
from supervisor.system.run_log import MOST_BYTES, said
from supervisor.system.scoreboard import run_logs_of
from tests.faults.programs import RECORD, program_site
from tests.site_under_test import Site, kill, wait_for

MakeSite = Callable[..., Site]

TALK = """
import asyncio, logging, os, sys, threading, time
from ledger import record
import structlog

logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(message)s")  # takes sys.stderr as it is now

def talk(payload, ctx):
    print("printed")
    print("to stderr", file=sys.stderr)
    logging.getLogger("library").info("by a library")
    ctx.log.info("tagging", path="a cat.jpg", count=3)
    structlog.get_logger(module="tags").info("by structlog", answer=42)
    thread = threading.Thread(target=print, args=("in a thread",))
    thread.start()
    thread.join()
    try:
        1 / 0
    except ZeroDivisionError:
        ctx.log.exception("went on")
    if payload.get("fail"):
        raise ValueError("talked enough")

async def whisper(payload, ctx):
    await asyncio.sleep(0)
    print("whispered")
    ctx.log.warning("low")
    return {"said": True}

def shout(payload, ctx):
    for number in range(100_000):
        print(f"{number:08} " + "x" * 90)
    return {"shouted": True}

def spin(payload, ctx):
    end = time.process_time() + 0.2
    hoard = b"x" * (64 << 20)
    while time.process_time() < end:
        pass

def noop(payload, ctx):
    pass

def slow(payload, ctx):
    print("before the end")
    time.sleep(60)

def die(payload, ctx):
    record("start", ctx)
    print("on stdout, which is not flushed")
    ctx.log.info("tagging")
    print("last words", file=sys.stderr, flush=True)
    time.sleep(0.05)
    if ctx.token == 1:
        os.kill(os.getpid(), 9)
    record("end", ctx)
"""
POOL = "[pools.{name}]\nhandler = 'jobs:{name}'\nworkers = 1\nretry = {{ max_attempts = 1 }}\n"
COLUMNS = "attempt, outcome, worker, duration, cpu_time, peak_memory, log"


def pools(*names: str, **keys: str) -> str:
    return "\n".join(POOL.format(name=name) + keys.get(name, "") for name in names)


def runs(site: Site, job_id: int) -> list[dict[str, Any]]:
    found = site.rows(f"SELECT {COLUMNS} FROM job_runs WHERE job_id = ? ORDER BY token", job_id)
    return [dict(zip(COLUMNS.split(", "), row, strict=True)) for row in found]


def burst(site: Site, *, code: int = 0) -> None:
    assert site.start("--burst", wait=False).wait(60) == code, site.log.read_text()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_whatever_a_run_prints_and_logs_is_kept_in_its_order(make_site: MakeSite, start: str) -> None:
    site = make_site(pools("talk", "whisper", talk=f'start = "{start}"\n'), TALK)
    talked, failed = site.queue.enqueue("talk", {}), site.queue.enqueue("talk", {"fail": True})
    whispered = site.queue.enqueue("whisper", {})
    burst(site, code=1)

    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    for job_id, outcome in ((talked, "done"), (failed, "exception")):
        [run] = runs(site, job_id)
        assert (run["attempt"], run["outcome"], run["worker"]) == (1, outcome, "talk-1")
        log = re.sub(time, "TIME", run["log"])
        head, stack = log.split("TIME error went on\n")
        assert head == (
            "printed\nto stderr\nINFO:by a library\nTIME info tagging path='a cat.jpg' count=3\n"
            "TIME info by structlog module=tags answer=42\nin a thread\n"
        )
        assert stack.startswith("Traceback (most recent call last):\n")
        assert stack.endswith("ZeroDivisionError: division by zero\n")
    [run] = runs(site, whispered)
    assert re.sub(time, "TIME", run["log"]) == "whispered\nTIME warning low\n"
    # And all of it went where it goes, where others write, too: within its lines if need be.
    text = site.log.read_text()
    assert [text.count(word) for word in ("printed", "to stderr", "INFO:by a library", "whispered")] == [2, 2, 2, 1]
    assert text.count('"path": "a cat.jpg", "count": 3, "event": "tagging", "level": "info"') == 2


def test_ten_megabytes_are_bounded_and_lose_nothing_else(make_site: MakeSite) -> None:
    site = make_site(pools("shout", "whisper"), TALK)
    loud, quiet = site.queue.enqueue("shout", {}), site.queue.enqueue("shout", {})
    burst(site)

    for job_id in (loud, quiet):
        assert site.done(job_id).result == {"shouted": True}
        [run] = runs(site, job_id)
        assert MOST_BYTES - 300 < len(run["log"]) < MOST_BYTES + 100
        assert run["log"].startswith("00000000 xxx")
        assert run["log"].splitlines()[-1].startswith("00099999 xxx")
        assert re.search(r"^\[99\d\d\d\d\d bytes left out\]$", run["log"], re.MULTILINE)
    # Of such a flood the service's log gets its part a second, and is told of the rest.
    text = site.log.read_text()
    passed_on = len(re.findall(r"\b\d{8} x{90}\b", text))
    assert passed_on >= 5_000
    told = [line for line in text.splitlines() if '"event": "output_dropped"' in line]
    assert passed_on == 200_000 or told  # on a slow machine it may be no flood
    assert [line for line in told if not line.startswith("{")] == []  # what was passed on may end inside a line


def test_a_silent_run_is_measured_and_a_short_one_leaves_nothing(make_site: MakeSite) -> None:
    site = make_site(pools("spin", "noop"), TALK)
    spun = site.queue.enqueue("spin", {})
    short = site.queue.enqueue_many("noop", [{}] * 300)
    burst(site)

    [run] = runs(site, spun)
    assert (run["outcome"], run["log"]) == ("done", None)
    assert run["duration"] >= 0.2
    assert 0.19 <= run["cpu_time"] <= run["duration"] + 0.1
    assert 64 << 20 < run["peak_memory"] < 1 << 30
    # Of three hundred some may have waited for a processor.
    [(kept,)] = site.rows("SELECT count(*) FROM job_runs WHERE job_id >= ?", short[0])
    assert kept < 100


def test_a_run_that_died_with_its_worker_has_its_row(make_site: MakeSite) -> None:
    site = make_site(pools("die"), TALK)
    job = site.queue.enqueue("die", {})
    burst(site)

    died, again = runs(site, job)
    assert (died["attempt"], died["outcome"], again["attempt"], again["outcome"]) == (1, "crash", 1, "done")
    assert died["duration"] >= 0.05
    assert died["peak_memory"] > 1 << 20
    for run in (died, again):
        lines = run["log"].splitlines()
        assert (lines[0], lines[2]) == ("on stdout, which is not flushed", "last words")
        assert lines[1].endswith("Z info tagging")
    [(tail,)] = site.rows("SELECT stderr FROM job_errors WHERE job_id = ?", job)
    assert tail.endswith("last words\n")
    site.verdict(hit=[job])


def has_printed(board: Path, job: int) -> bool:
    """Whether the first run of a slow job has said all it says: print() writes its newline apart."""
    return any(said(run_logs_of(board), slot, job, 1) == "before the end\n" for slot in range(1, 9))


def test_a_run_whose_supervisor_was_killed_has_its_row(make_site: MakeSite) -> None:
    site = make_site(pools("slow"), TALK)
    job = site.queue.enqueue("slow", {})
    process = site.start()
    board = wait_for(site.scoreboards, "its scoreboard")[0]
    wait_for(lambda: has_printed(board, job), "it to print")
    kill(process.pid)
    process.wait()
    site.start()
    wait_for(lambda: runs(site, job), "its recovery")

    [run] = runs(site, job)
    assert (run["outcome"], run["worker"], run["log"]) == ("interrupted", "slow-1", "before the end\n")
    assert not run_logs_of(board).exists()


def test_a_run_that_is_cut_off_has_its_row_with_what_it_had_said(make_site: MakeSite) -> None:
    """At its time limit, or by a shutdown, which charges nothing."""
    limits = 'timeout = "300ms"\n', 'shutdown_grace = "100ms"\n'
    site = make_site(
        pools("slow", slow="".join(limits)) + pools("late").replace("jobs:late", "jobs:slow") + limits[1], TALK
    )
    over, cut = site.queue.enqueue("slow", {}), site.queue.enqueue("late", {})
    process = site.start()
    wait_for(lambda: site.job(over).status is Status.FAILED and site.workers("late")[0].job == cut, "both to run")
    [board] = site.scoreboards()
    wait_for(lambda: has_printed(board, cut), "the other to print")
    site.stop(process)

    assert not run_logs_of(board).exists()
    for job, outcome in ((over, "timeout"), (cut, "released")):
        [run] = runs(site, job)
        assert (run["outcome"], run["log"]) == (outcome, "before the end\n")
    assert (site.job(cut).status, site.job(cut).attempts) == (Status.PENDING, 0)


PROGRAM = (
    RECORD
    + """
def handle(payload, ctx):
    print("printed")
    ctx.log.info("tagging", path="cat.jpg")
    sys.stderr.write("x" * 99 + "\\n"); sys.stderr.flush()
    if payload.get("die"):
        os._exit(3)
    if payload.get("fail"):
        raise ValueError("talked enough")
    end = time.process_time() + 0.2
    hoard = b"x" * (payload.get("mib", 0) << 20)
    while time.process_time() < end:
        pass

serve(handle)
"""
)


def test_the_runs_of_a_program_are_kept_likewise(make_site: MakeSite) -> None:
    pool = '[pools.helped]\ncommand = ["PYTHON", "helped.py"]\nworkers = 1\nmax_crashes = 1\n'
    site = program_site(make_site, pool + "retry = { max_attempts = 1 }\n", helped=PROGRAM)
    payloads: list[dict[str, Any]] = [{"mib": 200}, {}, {"fail": True}, {"die": True}]
    jobs = site.queue.enqueue_many("helped", payloads)
    burst(site, code=1)

    large, small, failed, died = (runs(site, job)[0] for job in jobs)
    assert [run["outcome"] for run in (large, small, failed, died)] == ["done", "done", "exception", "crash"]
    for run in (large, small, failed, died):
        lines = run["log"].splitlines()
        assert sorted(line for line in lines if "tagging" not in line) == ["printed", "x" * 99]
        assert [line.split(" ", 1)[1] for line in lines if "tagging" in line] == [
            "info tagging fields={'path': 'cat.jpg'}"
        ]
    assert large["peak_memory"] > 200 << 20 > small["peak_memory"] > 1 << 20
    assert large["cpu_time"] >= 0.18
    assert small["cpu_time"] >= 0.18
    assert failed["cpu_time"] < 0.18
    assert died["peak_memory"] is not None
