"""Handlers, set-up code and programs signal their process group: only what they have started is in it."""

from __future__ import annotations

import json

import pytest

from tests.site_under_test import MakeSite, Site, wait_for

HANDLERS = """
import os, signal, subprocess, sys, time
from ledger import record

def own_group(number):
    os.killpg(0, number)

def childs_group(number):
    child = subprocess.Popen(["sleep", "60"])
    os.killpg(os.getpgid(child.pid), number)

WAYS = {
    "kill 0": lambda: subprocess.run(["sh", "-c", "kill 0"]),
    "kill 0 at the exit of a script": lambda: subprocess.run(["sh", "-c", 'trap "kill 0" EXIT; true']),
    "the group of a child": lambda: childs_group(signal.SIGTERM),
    "killpg(0)": lambda: own_group(signal.SIGINT),
    "hang-up to the group": lambda: own_group(signal.SIGHUP),
}

def signals(way, ctx):
    record("start", ctx)
    WAYS[way]()
    record("end", ctx)

def kills(payload, ctx):
    record("start", ctx)
    own_group(signal.SIGKILL)

def work(payload, ctx):
    record("start", ctx)
    record("end", ctx)
"""
IN_SET_UP = """
import os, signal, subprocess
subprocess.run(["sh", "-c", "kill 0"])
os.killpg(0, signal.SIGINT)

class Set:
    def setup(self, ctx):
        subprocess.run(["sh", "-c", "kill 0"])

    def handle(self, payload, ctx):
        return os.getpid()
"""


def lives_on(site: Site, supervisor: object) -> None:
    assert supervisor.poll() is None  # type: ignore[attr-defined]
    assert not site.event("stopping")
    assert not site.event("reloaded")
    assert not site.event("template_died")


@pytest.mark.fault(47)
def test_a_handler_that_signals_its_process_group_ends_neither_the_supervisor_nor_a_neighbour(
    make_site: MakeSite,
) -> None:
    site = make_site('[pools.loud]\nhandler = "jobs:signals"\ntypes = ["signals"]\nworkers = 1\n', HANDLERS)
    supervisor = site.start()
    ways = ["kill 0", "kill 0 at the exit of a script", "the group of a child", "killpg(0)", "hang-up to the group"]
    for way in ways:
        site.done(site.queue.enqueue("signals", way))
    lives_on(site, supervisor)
    assert not site.event("worker_died")
    site.verdict()


@pytest.mark.fault(47)
def test_a_handler_that_kills_its_process_group_ends_its_own_worker_alone(make_site: MakeSite) -> None:
    pools = (
        '[pools.kills]\nhandler = "jobs:kills"\nworkers = 1\nmax_crashes = 1\n'
        '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'
    )
    site = make_site(pools, HANDLERS)
    supervisor = site.start()
    poison = site.queue.enqueue("kills")
    wait_for(lambda: site.job(poison).status.value == "quarantined", "the job to be quarantined")
    site.done(site.queue.enqueue("work"))
    lives_on(site, supervisor)
    wait_for(lambda: site.event("worker_died"), "its death to be logged")
    assert [event["pool"] for event in site.events() if event.get("event") == "worker_died"] == ["kills"]
    site.verdict(quarantined=[poison], hit=[poison])


@pytest.mark.fault(47)
@pytest.mark.parametrize("more", ["", "preload_setup = true\n", 'start = "spawn"\n'])
def test_set_up_code_that_signals_its_process_group_ends_nobody(make_site: MakeSite, more: str) -> None:
    site = make_site(f'[pools.calm]\nhandler = "jobs:Set"\nworkers = 1\n{more}', IN_SET_UP)
    supervisor = site.start()
    site.done(site.queue.enqueue("calm"))
    lives_on(site, supervisor)


@pytest.mark.fault(47)
def test_a_program_that_kills_its_process_group_ends_itself_alone(make_site: MakeSite) -> None:
    command = json.dumps(["sh", "-c", "read hello; kill -9 0"])
    site = make_site(f'[pools.program]\ncommand = {command}\n[pools.work]\nhandler = "jobs:work"\nworkers = 1\n')
    supervisor = site.start(wait=False)
    wait_for(lambda: site.event("worker_died", pool="program") or site.event("pool_broken", pool="program"), "its end")
    site.done(site.queue.enqueue("work"))
    lives_on(site, supervisor)


@pytest.mark.fault(47)
def test_an_orderly_stop_still_finds_what_handlers_started_in_groups_of_their_own(make_site: MakeSite) -> None:
    handlers = (
        "import subprocess\n"
        "def leaves(payload, ctx):\n"
        '    subprocess.Popen(["sleep", "300"], start_new_session=True)\n'
        '    subprocess.Popen(["sleep", "300"])\n'
    )
    site = make_site('[pools.leaves]\nhandler = "jobs:leaves"\nworkers = 1\n', handlers)
    supervisor = site.start()
    site.done(site.queue.enqueue("leaves"))
    assert site.stop(supervisor) == 0
    assert site.survivors(supervisor) == []
