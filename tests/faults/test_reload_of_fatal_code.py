"""New code fails before it is ready, in whatever way, also with the end of its process: the old code stays in use."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest

from tests.faults.new_code import answer, reload, shown, write_code
from tests.samples import sampled
from tests.site_under_test import MakeSite, Site, kill, wait_for

JOBS = """
import ctypes, os, signal, time
from ledger import record

def at_import(): pass
def at_set_up(): pass
def at_canary(): return "cat"

def give_up(*args): raise ValueError("bad")
def leave(*args): os._exit(3)
def segfault(*args): ctypes.string_at(0)
def kill_itself(*args): os.kill(os.getpid(), signal.SIGKILL)
def kill_template(*args): os.kill(os.getppid(), signal.SIGKILL); time.sleep(5)
def hang(*args): time.sleep(60)

class Model:
    def setup(self, ctx):
        self.weights = bytearray(os.urandom(1 << 20) * SIZE)
        at_set_up()
    def handle(self, payload, ctx):
        if not ctx.job_id:
            return {"label": at_canary()}
        record("start", ctx); record("end", ctx)
        return {"version": VERSION}

SIZE, VERSION = 1, 1
"""
POOL = """
[pools.model]
handler = "jobs:Model"
workers = 2
canary = { payload = {}, expect = { label = "cat" } }
startup_timeout = "20s"
"""


def code(site: Site, version: int, more: str = "", size: int = 1) -> None:
    text = JOBS.replace("SIZE, VERSION = 1, 1", f"SIZE, VERSION = {size}, {version}")
    write_code(site, f"{text}\n{more}\nat_import()\n")


def version(site: Site) -> Any:
    return answer(site, "model")["version"]


def serving_first_version(make_site: MakeSite, config: str = POOL, jobs: str = JOBS) -> Site:
    site = make_site(config, jobs)
    site.start()
    assert version(site) == 1
    return site


def serving(site: Site) -> set[int]:
    return {worker.pid for worker in site.workers("model-") if worker.state in (2, 3)}


def kill_those_that_serve(site: Site) -> None:
    """And wait until as many others serve."""
    before = wait_for(lambda: len(found := serving(site)) == 2 and found, "both workers")
    for pid in before:
        with contextlib.suppress(ProcessLookupError):
            kill(pid)
    wait_for(lambda: len(serving(site) - before) == 2, "replacements with the old code")


@pytest.mark.fault(54, 98, 110)
@pytest.mark.parametrize(
    ("end", "why"),
    sampled(
        [
            ("this is no Python", "cannot be loaded: jobs:Model: importing it failed: SyntaxError"),
            ("def at_canary(): return 'dog'", "failed its canary: "),
            ("at_import = leave", "cannot be loaded: the template ended while it was loading the handler"),
            ("at_set_up = segfault", "failed its set-up: the worker was killed by SIGSEGV"),
            ("at_canary = leave", "failed its canary: the worker's process ended with exit code 3"),
            ("at_set_up = leave", "failed its set-up: the worker's process ended with exit code 3"),
            ("at_canary = kill_itself", "failed its canary: the worker was killed by SIGKILL"),
        ],
        quick=5,
    ),
)
def test_new_code_that_fails_leaves_the_old_code_in_use_whatever_becomes_of_its_workers(
    make_site: MakeSite, end: str, why: str
) -> None:
    site = serving_first_version(make_site)
    code(site, 2, end)
    told = reload(site, "--wait")
    assert told.returncode == 1
    assert f"the new code {why}" in told.stderr
    assert "the old code keeps running" in told.stderr
    for _ in range(2):  # two kills were an outage
        kill_those_that_serve(site)
    found = shown(site, "model")
    assert (found["broken"], f"the new code {why}" in found["problem"]) == (False, True)
    assert version(site) == 1
    code(site, 3)
    told = reload(site, "--wait", "--json")
    [outcome] = json.loads(told.stdout)["reloads"].values()
    assert (told.returncode, outcome["state"]) == (0, "accepted")
    wait_for(lambda: version(site) == 3, "the good one")
    assert not shown(site, "model")["problem"]
    site.verdict(hit=site.queue.acknowledged)


@pytest.mark.fault(110)
@pytest.mark.parametrize("start", ['start = "spawn"', "preload = false"])
def test_so_is_such_code_without_an_image(make_site: MakeSite, start: str) -> None:
    site = serving_first_version(make_site, f"{POOL}{start}\n")
    code(site, 2, "at_canary = leave")
    told = reload(site, "--wait")
    assert (told.returncode, "failed its canary: the worker's process ended with exit code 3" in told.stderr) == (
        1,
        True,
    )
    assert version(site) == 1


@pytest.mark.fault(110)
@pytest.mark.parametrize("end", sampled(["leave", "kill_template", "give_up"], quick=2))
def test_with_memory_for_one_worker_the_old_one_serves_on(make_site: MakeSite, end: str) -> None:
    one = POOL.replace("workers = 2", "workers = 1").replace(
        'canary = { payload = {}, expect = { label = "cat" } }\n', ""
    )
    jobs = JOBS.replace("SIZE, VERSION = 1", "SIZE, VERSION = 50")
    site = serving_first_version(make_site, '[machine]\nmemory = "120MiB"\n' + one, jobs)
    code(site, 2, f"at_set_up = {end}", size=50)
    told = reload(site, "--wait")
    assert (told.returncode, "failed its set-up: " in told.stderr) == (1, True)
    wait_for(lambda: len(serving(site)) == 1, "the old code")
    [worker] = serving(site)
    for _ in range(8):
        assert version(site) == 1
        time.sleep(0.5)
    assert serving(site) == {worker}
    assert "the new code failed its set-up: " in shown(site, "model")["problem"]
    code(site, 3, size=50)
    assert reload(site, "--wait").returncode == 0
    wait_for(lambda: version(site) == 3, "the good one")


@pytest.mark.fault(111)
def test_new_code_that_kills_its_templates_leaves_the_old_one_in_use(make_site: MakeSite) -> None:
    site = serving_first_version(make_site)
    code(site, 2, "at_canary = kill_template")
    told = reload(site, "--wait")
    why = "the new code failed its canary: the template it was forked from died"
    assert (told.returncode, why in told.stderr) == (1, True)
    wait_for(lambda: len([e for e in site.events() if e["event"] == "template_died"]) >= 3, "some more tries")
    kill_those_that_serve(site)
    assert version(site) == 1
    code(site, 3, "at_canary = leave")  # and the next one fails differently
    assert reload(site, "--wait").returncode == 1
    kill_those_that_serve(site)
    assert version(site) == 1
    assert "failed its canary: the worker's process ended with exit code 3" in shown(site, "model")["problem"]
    code(site, 4)
    assert reload(site, "--wait").returncode == 0
    wait_for(lambda: version(site) == 4, "the good one")
    wait_for(lambda: len(serving(site)) == 2, "its second worker")
    assert not shown(site, "model")["problem"]


@pytest.mark.fault(111)
def test_a_pool_whose_set_up_kills_its_template_stops_no_other_pool_of_the_module(make_site: MakeSite) -> None:
    other = '[pools.other]\nhandler = "jobs:other"\nworkers = 1\ncanary = { payload = {} }\n'
    more = "\ndef other(payload, ctx):\n    time.sleep(0.3 if not ctx.job_id else 0)\n    return VERSION\n"
    site = serving_first_version(make_site, POOL + other, JOBS + more)
    code(site, 2, "at_canary = kill_template" + more)
    told = reload(site, "--wait", "--timeout", "20s")
    assert (told.returncode, "model: the new code failed its canary: " in told.stderr) == (1, True)
    wait_for(lambda: site.done(site.queue.enqueue("other", {})).result == 2, "the other pool's new code")
    assert version(site) == 1
    wait_for(lambda: not shown(site, "other")["problem"], "the state in status")


@pytest.mark.fault(112)
@pytest.mark.parametrize("hanging", ["at_canary = hang", "at_import = hang"])
def test_a_failure_of_a_superseded_version_does_not_count_for_the_current_one(
    make_site: MakeSite, hanging: str
) -> None:
    site = serving_first_version(make_site, POOL.replace("20s", "3s"))
    code(site, 2, hanging)
    reload(site)
    if "canary" in hanging:
        stuck = wait_for(lambda: [w.pid for w in site.workers("model-") if w.pid and w.state == 1], "the canary")
    code(site, 3)
    assert reload(site, "--wait").returncode == 0
    if "canary" in hanging:
        ended = wait_for(lambda: site.event("worker_died", reason="startup_timeout"), "the end of the hanging one")
        assert ended["pid"] in stuck
        time.sleep(2)  # until `status` knows
    else:
        time.sleep(4)
    found = shown(site, "model")
    assert (found["problem"] or None, found["broken"]) == (None, False)
    wait_for(lambda: version(site) == 3, "the good one")


@pytest.mark.fault(112)
def test_a_reload_during_a_hanging_canary_costs_no_worker_of_the_old_code(make_site: MakeSite) -> None:
    site = serving_first_version(make_site)
    before = wait_for(lambda: len(found := serving(site)) == 2 and found, "both workers")
    code(site, 2, "at_canary = hang")
    reload(site)
    wait_for(lambda: [w for w in site.workers("model-") if w.pid and w.state == 1], "the canary")
    code(site, 3, "at_canary = leave")
    told = reload(site, "--wait")
    assert (told.returncode, "failed its canary: the worker's process ended" in told.stderr) == (1, True)
    assert serving(site) == before


@pytest.mark.fault(112)
def test_a_superseded_version_that_is_ready_later_does_not_end_the_old_code(make_site: MakeSite) -> None:
    site = serving_first_version(make_site)
    code(site, 2, "def at_canary(): time.sleep(3); return 'cat'")
    reload(site)
    [late] = wait_for(lambda: [w.pid for w in site.workers("model-") if w.pid and w.state == 1], "the canary")
    code(site, 3, "at_canary = leave")
    assert reload(site, "--wait").returncode == 1
    wait_for(lambda: late not in {w.pid for w in site.workers("model-") if w.state == 1}, "the end of its canary")
    for _ in range(3):
        kill_those_that_serve(site)
    assert version(site) in (1, 2)
    wait_for(lambda: "the new code failed its canary: " in shown(site, "model")["problem"], "the state in status")
