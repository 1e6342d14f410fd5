"""Limits of memory that a worker or a pool cannot keep to are told, and met one worker at a time."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from typing import Any

from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]
MIB = 1 << 20

LARGE = """
import os, sys

class Large:
    def setup(self, ctx): self.model = b"m" * (ctx.options["mib"] << 20)
    def handle(self, payload, ctx):
        from ledger import record
        record("start", ctx); record("end", ctx)
        return os.getpid()
"""
BUDGETED = """
[pools.large]
handler = "jobs:Large"
min_workers = 0
max_workers = 4
scale_down_delay = "0s"
memory_budget = "260MiB"
options = { mib = 100 }
"""
SERVE = "import sys; sys.path.insert(0, '.')\nfrom job_handler import serve\nfrom jobs import Large\nserve(Large)\n"


def test_max_memory_below_a_worker_s_own_size_is_refused_with_the_size_it_has(make_site: MakeSite) -> None:
    large = '[pools.large]\nhandler = "jobs:Large"\nworkers = 2\nmax_memory = "{}MiB"\noptions = {{ mib = 100 }}\n'
    site = make_site(large.format(60), LARGE)
    supervisor = site.start()
    job = site.queue.enqueue("large")
    detail = wait_for(lambda: site.event("worker_died", reason="setup_failed"), "it to be refused")["detail"]
    found = re.fullmatch(
        r"max_memory = 60MiB is less than the (\d+)MiB that a worker uses after its set-up: raise it above that", detail
    )
    assert found, detail
    assert 100 <= int(found[1]) < 150
    wait_for(
        lambda: "max_memory" in site.supervisor_status(supervisor)["pools"]["large"]["problem"], "status to say so"
    )
    assert site.job(job).attempts == 0
    site.configure(large.format(int(found[1]) + 50))
    supervisor.send_signal(signal.SIGHUP)
    site.done(job)


def test_the_program_counts_with_its_worker(make_site: MakeSite) -> None:
    config = (
        f'command = ["{sys.executable}", "serve.py"]\nworkers = 1\nmax_memory = "60MiB"\noptions = {{ mib = 100 }}\n'
    )
    site = make_site(f"[pools.large]\n{config}", LARGE)
    (site.folder / "serve.py").write_text(SERVE)
    site.start()
    assert "max_memory = 60MiB" in wait_for(lambda: site.event("worker_died"), "it to be refused")["detail"]


def scaled(site: Site) -> list[tuple[int, str]]:
    """The targets of the one pool so far, with the reasons."""
    return [(e["target"], e["why"]) for e in site.events() if e.get("event") == "pool_scaled"]


def test_a_budget_is_kept_from_the_first_worker_on_and_the_size_is_remembered(make_site: MakeSite) -> None:
    site = make_site(BUDGETED, LARGE)
    supervisor = site.start()

    def work() -> list[tuple[int, str]]:
        """How the pool grows from nothing; afterwards it has no worker again."""
        before = len(scaled(site))
        for job in site.queue.enqueue_many("large", [{}] * 40):
            site.done(job)
        wait_for(lambda: not site.workers("large"), "no worker")
        return scaled(site)[before:]

    def news(key: str) -> Any:
        return site.supervisor_status(supervisor)["pools"]["large"][key]

    grown = work()
    assert grown[0] == (1, "waits until the size of large has been measured")
    assert max(target for target, _ in grown) <= 2
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: site.event("reloaded"), "the reload")
    remembered = work()
    assert max(target for target, _ in remembered) == 2
    assert re.search(r"waits for \d+MiB of memory_budget: (large|nobody) uses", str(remembered))
    assert "measured" not in str(remembered)
    wait_for(lambda: news("size") == 0, "status to show it")
