"""The supervisor sleeps when it has nothing to do, whatever has gone wrong before."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.site_under_test import MakeSite, kill, wait_for

TICKS = os.sysconf("SC_CLK_TCK")
JOBS = """
import os, time
from ledger import record

class Fails:
    def setup(self, ctx):
        time.sleep(3.0 if os.path.exists("slow") else 0.0)
        if not os.path.exists("mended"):
            raise RuntimeError("no model")
    def handle(self, payload, ctx):
        record("start", ctx)
        while not os.path.exists("over"):
            time.sleep(0.01)
        record("end", ctx)

def work(payload, ctx):
    record("start", ctx); record("end", ctx)
"""
FAILING = '[pools.fails]\nhandler = "jobs:Fails"\nworkers = 2\nshutdown_grace = "20s"\n'
AT_ZERO = """
[pools.none]
handler = "jobs:work"
min_workers = 0
max_workers = 2
idle_timeout = "300ms"
scale_down_delay = "0s"
"""


def cpu(pid: int, seconds: float) -> float:
    """The share of a core that a process uses meanwhile."""

    def used() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = used()
    time.sleep(seconds)  # this is what is measured
    return (used() - before) / TICKS / seconds


@pytest.mark.fault(67)
def test_a_failed_set_up_a_drain_after_it_an_address_that_is_taken_and_a_pool_at_zero_cost_nothing(
    make_site: MakeSite,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        site = make_site(f'{FAILING}{AT_ZERO}[admin]\nlisten = "127.0.0.1:{port}"\n', JOBS)
        supervisor = site.start()
        wait_for(lambda: site.event("admin_unavailable"), "the address to be taken")
        site.done(site.queue.enqueue("none"))
        assert cpu(supervisor.pid, 1.5) < 0.1
        wait_for(lambda: site.event("worker_died", reason="setup_failed"), "the failure")
        (site.folder / "slow").touch()
        wait_for(lambda: any(w.state == 1 for w in site.workers()), "the next try, which takes long")
        assert cpu(supervisor.pid, 1.0) < 0.1
        (site.folder / "mended").touch()
        site.running_pid(site.queue.enqueue("fails"))
        supervisor.send_signal(signal.SIGTERM)
        wait_for(lambda: site.event("stopping"), "the drain")
        assert cpu(supervisor.pid, 1.0) < 0.1
        (site.folder / "over").touch()
        assert supervisor.wait(20) == 0


@pytest.mark.fault(67)
def test_a_maintainer_that_dies_again_and_again_costs_the_supervisor_little(make_site: MakeSite) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 1\n', JOBS)
    supervisor = site.start()
    for _ in range(5):
        pid = wait_for(lambda: site.maintainer(supervisor), "a maintainer")
        kill(pid)
        wait_for(lambda pid=pid: site.maintainer(supervisor) != pid, "its successor")
    assert cpu(supervisor.pid, 1.0) < 0.3
