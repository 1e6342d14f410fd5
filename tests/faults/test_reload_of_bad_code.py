"""Code that cannot be loaded: the old code keeps running on, also when its workers die, and whoever reloads is told."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.faults.new_code import reload, write_code
from tests.site_under_test import MakeSite, wait_for

JOBS = """
import os
from ledger import record

def work(payload, ctx):
    record("start", ctx); record("end", ctx)
    return VERSION

def other(payload, ctx):
    record("start", ctx); record("end", ctx)

def crash(payload, ctx):
    record("start", ctx)
    if not os.path.exists("mended"):
        os._exit(3)
    record("end", ctx)

VERSION = 1
"""
CONFIG = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\n[pools.other]\nhandler = "jobs:other"\nworkers = 1\n'


def test_whoever_reloads_is_told_what_fails_without_asking(make_site: MakeSite) -> None:
    site = make_site(CONFIG, JOBS)
    site.start()
    site.done(site.queue.enqueue("work"))
    write_code(site, JOBS + "this is no Python")
    # Its answer comes after 2 seconds at most, whatever is known then; a busy machine may need another try.
    told = wait_for(lambda: (tried := reload(site)).returncode and tried, "what fails")
    assert told.returncode == 1
    assert "new code cannot be loaded: jobs:work: importing it failed: SyntaxError" in told.stderr
    write_code(site, JOBS)
    assert reload(site, "--wait").returncode == 0


@pytest.mark.fault(54)
def test_a_reload_by_a_signal_is_told_of_too_and_a_refused_one_keeps_all(make_site: MakeSite) -> None:
    site = make_site(CONFIG, JOBS)
    supervisor = site.start()
    site.config.write_text("[pools.work]\nhandler = 7\n")
    supervisor.send_signal(signal.SIGHUP)
    news = wait_for(lambda: site.supervisor_status(supervisor).get("reload"), "the news")
    assert (news["state"], news["number"]) == ("refused", None)
    assert news["problems"]


@pytest.mark.fault(74)
def test_a_pool_that_crashed_and_could_not_be_loaded_is_well_as_soon_as_it_is_mended(make_site: MakeSite) -> None:
    config = '[pools.crash]\nhandler = "jobs:crash"\nworkers = 1\nmax_crashes = 9\nretry = { base = "10ms" }\n'
    site = make_site(config + '[pools.other]\nhandler = "jobs:other"\nworkers = 1\n', JOBS)
    supervisor = site.start()
    job = site.queue.enqueue("crash")
    wait_for(lambda: "crash loop" in site.supervisor_status(supervisor)["pools"]["crash"]["problem"], "a crash loop")
    write_code(site, JOBS + "this is no Python")
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: "SyntaxError" in site.supervisor_status(supervisor)["pools"]["crash"]["problem"], "the error")
    (site.folder / "mended").touch()
    write_code(site, JOBS)
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: not site.supervisor_status(supervisor)["pools"]["crash"]["problem"], "it to be well")
    site.queue.wait(job, timeout=20)
    assert not any(pool["problem"] for pool in site.supervisor_status(supervisor)["pools"].values())


@pytest.mark.fault(74)
def test_a_handler_that_is_missing_breaks_its_own_pool_and_not_those_of_the_same_module(make_site: MakeSite) -> None:
    site = make_site(
        '[pools.missing]\nhandler = "jobs:missing"\nworkers = 1\n[pools.other]\nhandler = "jobs:other"\nworkers = 1\n',
        JOBS,
    )
    supervisor = site.start()
    site.done(site.queue.enqueue("other"))
    pools = wait_for(lambda: _with_problem(site.supervisor_status(supervisor)["pools"], "missing"), "the problem")
    assert "jobs:missing" in pools["missing"]["problem"]
    assert pools["missing"]["broken"]
    assert not pools["other"]["problem"]


def _with_problem(pools: dict[str, Any], name: str) -> dict[str, Any]:
    return pools if pools[name]["problem"] else {}
