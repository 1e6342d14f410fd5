"""A pool without workers keeps the last code that worked until newer code has worked."""

from __future__ import annotations

import time

import pytest

from tests.faults.new_code import answer, reload, shown, write_code
from tests.samples import sampled
from tests.site_under_test import MakeSite, Site, kill, wait_for

JOBS = """
import time
from ledger import record

VERSION = 1

class Model:
    def setup(self, ctx):
        self.model = b"m" * (ctx.options.get("mib", 0) << 20)
        set_up()
    def handle(self, payload, ctx):
        if ctx.job_id:
            record("start", ctx)
            record("end", ctx)
        return VERSION

class Other(Model): pass

def set_up(): pass
"""
CANARY = "canary = { payload = {}, expect = 1 }"
SLEEPY = 'min_workers = 0\nmax_workers = 1\nscale_down_delay = "100ms"'
NAMES = ("caption", "embed", "tag")


def pool(name: str, more: str = "", *, mib: int = 0, handler: str = "jobs:Model") -> str:
    return f'[pools.{name}]\nhandler = "{handler}"\noptions = {{ mib = {mib} }}\n{SLEEPY}\n{more}\n'


def machine(mib: int) -> str:
    return f'[machine]\nmemory = "{mib}MiB"\nmin_residency = "1s"\nmax_wait = "2s"\n'


def code(site: Site, version: int, more: str = "") -> None:
    write_code(site, JOBS.replace("VERSION = 1", f"VERSION = {version}") + more)


def asleep(site: Site) -> None:
    wait_for(lambda: not site.workers(), "all pools to be at zero")


def started(make_site: MakeSite, config: str) -> Site:
    """Each pool has worked once, and is at zero."""
    site = make_site(config, JOBS)
    site.start()
    for name in [name for name in NAMES if f"pools.{name}]" in config]:
        assert answer(site, name) == 1
    asleep(site)
    return site


@pytest.mark.fault(98)
def test_other_pools_that_need_the_memory_do_not_end_the_last_code_that_worked(make_site: MakeSite) -> None:
    pools = "".join(pool(name, CANARY if name == "tag" else "", mib=60) for name in NAMES)
    site = started(make_site, pools + machine(170))
    answer(site, "tag")  # the latest one: its template is there at the reload
    asleep(site)
    code(site, 2)
    told = reload(site, "--wait")
    assert (told.returncode, "tag: the new code failed its canary: " in told.stderr) == (
        1,
        True,
    ), told
    for _ in range(3):
        for name in ("caption", "embed"):
            assert answer(site, name) == 2
        assert answer(site, "tag") == 1
    found = shown(site, "tag")
    assert (found["broken"], "; the old code keeps running" in found["problem"]) == (False, True), found
    assert not site.event("old_code_unloaded")
    site.configure(pools.replace("expect = 1", "expect = 3") + machine(170))
    code(site, 3)
    assert reload(site, "--wait").returncode == 0
    assert answer(site, "tag") == 3


@pytest.mark.fault(54)
@pytest.mark.parametrize(
    ("more", "why"),
    sampled(
        [
            ("this is no Python\n", "the new code cannot be loaded: jobs:Model: importing it failed: SyntaxError"),
            ("del Model\n", "the new code cannot be loaded: jobs:Model: the module jobs has no 'Model'"),
            ("import os; os._exit(3)\n", "the new code cannot be loaded: the template ended while it was loading"),
        ],
        quick=2,
    ),
)
def test_code_that_a_pool_at_zero_cannot_load_leaves_the_old_code_in_use(
    make_site: MakeSite, more: str, why: str
) -> None:
    site = started(make_site, pool("tag"))
    code(site, 2, more)
    assert reload(site, "--wait").returncode == 0
    for _ in range(2):
        assert answer(site, "tag") == 1
        asleep(site)
    failed = site.told("new_code_failed", pool="tag", old_code_serves=True)
    assert failed is not None
    assert why in failed["problem"]
    status = site.command("status").stdout
    assert "BROKEN" not in status
    assert "works, but: the new code cannot be loaded" in " ".join(status.split())
    code(site, 3)
    assert reload(site, "--wait").returncode == 0
    assert answer(site, "tag") == 3
    site.told("new_code_accepted", pool="tag")
    assert not shown(site, "tag")["problem"]
    site.verdict()


@pytest.mark.fault(54)
def test_of_pools_with_one_image_only_the_one_whose_handler_is_gone_has_failed(make_site: MakeSite) -> None:
    site = started(make_site, pool("tag") + pool("embed", handler="jobs:Other"))
    code(site, 2, "del Other\n")
    assert reload(site, "--wait").returncode == 0
    assert (answer(site, "embed"), answer(site, "tag")) == (1, 2)
    failed = site.told("new_code_failed", pool="embed")
    assert failed is not None
    assert "the new code cannot be loaded: jobs:Other: the module jobs has no 'Other'" in failed["problem"]
    assert not shown(site, "tag")["problem"]


@pytest.mark.fault(54)
def test_what_a_reload_could_not_try_is_told_and_the_old_code_serves_if_it_fails_later(make_site: MakeSite) -> None:
    site = started(make_site, pool("tag"))
    code(site, 2, "def set_up(): raise ValueError('no weights')\n")
    told = reload(site, "--wait")
    assert told.returncode == 0
    assert "the code of tag was not tried: it has no workers; its next one loads it" in told.stdout
    assert "new code in" not in told.stdout
    assert answer(site, "tag") == 1
    failed = site.told("new_code_failed", pool="tag")
    assert failed is not None
    assert failed["problem"].startswith("the new code failed its set-up: ValueError: no weights")
    code(site, 3)
    assert reload(site, "--wait").returncode == 0
    wait_for(lambda: answer(site, "tag") == 3, "the good one")


@pytest.mark.fault(98)
def test_a_canary_that_has_failed_takes_no_memory_from_others(make_site: MakeSite) -> None:
    """It is tried again only where there is room."""
    config = pool("tag", CANARY, mib=60) + pool("embed", mib=60).replace("min_workers = 0", "min_workers = 1")
    site = make_site(config + machine(130), JOBS)
    site.start()
    assert (answer(site, "tag"), answer(site, "embed")) == (1, 1)
    code(site, 2)
    told = reload(site, "--wait")
    assert (told.returncode, "tag: the new code failed its canary" in told.stderr) == (1, True), told
    assert answer(site, "embed") == 2
    [worker] = wait_for(lambda: [one for one in site.workers("embed") if one.state == 2], "its worker to be idle")
    end = time.monotonic() + 6
    while time.monotonic() < end:
        assert [one.pid for one in site.workers("embed")] == [worker.pid]
        time.sleep(0.05)
    assert answer(site, "tag") == 1


@pytest.mark.parametrize("how", ["preload = false", 'start = "spawn"'])
def test_code_that_only_workers_load_is_not_said_to_be_in_use(make_site: MakeSite, how: str) -> None:
    site = started(make_site, pool("tag", how))
    code(site, 2, "del Model\n")
    told = reload(site, "--wait")
    why = "the code of tag was not tried: it has no workers; its next one loads it"
    assert (told.returncode, why in told.stdout) == (0, True), told
    site.queue.enqueue("tag", {})
    failed = site.told("new_code_failed", pool="tag", old_code_serves=False)
    assert failed is not None
    assert "no older code is loaded" in failed["problem"]


@pytest.mark.fault(98)
def test_a_reload_that_fails_in_one_pool_names_those_that_have_the_new_code(make_site: MakeSite) -> None:
    site = make_site(pool("tag", CANARY) + pool("embed").replace("min_workers = 0", "min_workers = 1"), JOBS)
    site.start()
    assert (answer(site, "tag"), answer(site, "embed")) == (1, 1)
    code(site, 2)
    told = reload(site, "--wait")
    assert told.returncode == 1
    assert "new code in embed; workers of the old code leave one at a time" in told.stdout
    assert "could not load" not in told.stdout
    assert "error: tag: the new code failed its canary: " in told.stderr
    assert (answer(site, "tag"), answer(site, "embed")) == (1, 2)


@pytest.mark.fault(98)
def test_old_code_that_leaves_no_room_for_another_pool_is_unloaded_and_that_is_told(make_site: MakeSite) -> None:
    models = pool("tag", f"preload_setup = true\n{CANARY}", mib=60) + pool("embed", mib=120)
    site = started(make_site, models + machine(175))
    answer(site, "tag")
    code(site, 2)
    told = reload(site, "--wait")
    assert (told.returncode, "; the old code keeps running" in told.stderr) == (1, True), told
    assert answer(site, "tag") == 1
    assert answer(site, "embed") == 2
    assert site.told("old_code_unloaded", pool="tag")
    found = wait_for(lambda: (one := shown(site, "tag"))["broken"] and one, "status to say so")
    assert "; no older code is loaded" in found["problem"]


@pytest.mark.fault(54)
def test_where_memory_is_scarce_new_code_is_tried_with_its_first_job_and_the_old_model_is_kept(
    make_site: MakeSite,
) -> None:
    """One of 60 MiB beside another one, and a pool that makes the memory scarce."""
    site = started(make_site, pool("tag", "preload_setup = true", mib=60) + pool("embed", mib=160) + machine(260))
    assert answer(site, "tag") == 1
    asleep(site)
    code(site, 2, "def set_up(): raise ValueError('no weights')\n")
    told = reload(site, "--wait")
    assert told.returncode == 0
    assert "was not tried: it has no workers" in told.stdout
    assert answer(site, "tag") == 1
    problem = wait_for(lambda: shown(site, "tag")["problem"], "the new code to fail")
    assert "the new code failed its set-up: ValueError: no weights" in problem


@pytest.mark.fault(54)
def test_the_old_code_of_a_pool_at_zero_that_dies_is_not_said_to_serve(make_site: MakeSite) -> None:
    site = started(make_site, pool("tag"))
    code(site, 2, "this is no Python\n")
    assert reload(site, "--wait").returncode == 0
    assert answer(site, "tag") == 1
    news = site.supervisor_status
    [old] = wait_for(
        lambda: len(found := news(site.supervisors[-1])["templates"]) == 1 and found, "the failed one to end"
    )
    kill(old)
    found = wait_for(lambda: (one := shown(site, "tag"))["broken"] and one, "status to say so")
    assert "; no older code is loaded" in found["problem"]
