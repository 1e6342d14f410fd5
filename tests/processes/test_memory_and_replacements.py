"""Spares, canaries and reloads of pools that share a memory in which not everything fits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from supervisor import Status
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]
MODELS = """
import os, time
from ledger import record

VERSION = 1

class Model:
    def setup(self, ctx):
        with open("loads", "a") as file:
            file.write(f"{ctx.options.get('name')} {VERSION}\\n")
        began = time.monotonic()
        self.model = b"m" * (ctx.options["mib"] << 20)
        time.sleep(ctx.options.get("seconds", 0))
        with open("set-ups", "a") as file:
            file.write(f"{began} {time.monotonic()}\\n")
    def handle(self, payload, ctx):
        if ctx.job_id:
            record("start", ctx)
        time.sleep(payload.get("seconds", 0.02))
        if ctx.job_id:
            record("end", ctx)
        return {"version": VERSION, "pid": os.getpid()}
"""


def pool(name: str, size: str = "workers = 1", mib: int = 60) -> str:
    return f'[pools.{name}]\nhandler = "jobs:Model"\noptions = {{ mib = {mib}, name = "{name}" }}\n{size}\n'


def machine(mib: int, min_residency: str = "1s", max_wait: str = "3s") -> str:
    return f'[machine]\nmemory = "{mib}MiB"\nmin_residency = "{min_residency}"\nmax_wait = "{max_wait}"\n'


CANARY = "canary = { payload = {}, expect = { version = %d } }"


def status(site: Site, name: str) -> dict[str, Any]:
    return next(one for one in json.loads(site.command("status", "--json").stdout)["pools"] if one["name"] == name)


def new_version(site: Site, number: int) -> None:
    time.sleep(1.1)  # compiled files are told apart by whole seconds
    (site.folder / "jobs.py").write_text(
        (site.folder / "jobs.py").read_text().replace(f"VERSION = {number - 1}", f"VERSION = {number}")
    )


def loads(site: Site) -> list[str]:
    return (site.folder / "loads").read_text().splitlines()


def workers(site: Site, name: str) -> int:
    """With spares."""
    return len(site.supervisor_status(site.supervisors[-1])["pools"][name]["memory"])


@pytest.mark.parametrize(
    ("size", "memory", "shown"),
    [
        ("spares = 4", machine(215), r"1/1, ([12]) of 4 spare .* no memory for [23] of 4 spares"),
        ('spares = 1\nmemory_budget = "100MiB"', "", "1/1, 0 of 1 spare .* no memory for 1 of 1 spares"),
    ],
)
def test_there_are_no_more_spares_than_the_memory_takes_and_status_says_why(
    make_site: MakeSite, size: str, memory: str, shown: str
) -> None:
    site = make_site(pool("tag", f"workers = 1\n{size}") + memory, MODELS)
    site.start()
    site.done(site.queue.enqueue("tag", {}))
    # The reasons are wrapped.
    wait_for(lambda: re.search(shown, " ".join(site.command("status").stdout.split())), "the reason")

    end = time.monotonic() + 4
    while time.monotonic() < end:
        assert workers(site, "tag") <= 3
        time.sleep(0.05)


def test_a_spare_makes_room_for_a_pool_with_jobs_and_comes_back(make_site: MakeSite) -> None:
    config = "".join(pool(name, "workers = 1\nspares = 1") for name in ("caption", "tag"))
    config += pool("embed", 'min_workers = 0\nmax_workers = 1\nscale_down_delay = "500ms"')
    site = make_site(config + machine(330, "60s", "60s"), MODELS)
    site.start()
    wait_for(lambda: workers(site, "caption") == 2 and workers(site, "tag") == 2, "the spares")
    busy = [site.queue.enqueue(name, {"seconds": 8}) for name in ("caption", "tag")]

    site.done(site.queue.enqueue("embed", {}))
    assert any(site.job(job).status is Status.RUNNING for job in busy)

    for job in busy:
        site.done(job)
    wait_for(lambda: workers(site, "caption") == 2 and workers(site, "tag") == 2, "the spares again")


@pytest.mark.parametrize("others", ["idle", "busy"])
def test_the_canary_of_a_pool_without_workers_gets_memory(make_site: MakeSite, others: str) -> None:
    """`reload --wait` waits for it."""
    sleepy = pool("tag", f'min_workers = 0\nmax_workers = 1\nscale_down_delay = "100ms"\n{CANARY % 1}')
    site = make_site(pool("caption", "workers = 1") + sleepy + machine(110), MODELS)
    site.start()
    site.done(site.queue.enqueue("tag", {}))
    wait_for(lambda: workers(site, "caption") and not workers(site, "tag"), "the other one")
    jobs = site.queue.enqueue_many("caption", [{"seconds": 0.1}] * 80) if others == "busy" else []

    reload = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "reload", "--wait", "--timeout", "15s", "-c", str(site.config)],
        stdout=subprocess.DEVNULL,
    )
    if others == "busy":
        wait_for(lambda: "MiB of memory: caption uses" in str(status(site, "tag")["why"]), "the reason")
    assert reload.wait(20) == 0

    for job in jobs:
        site.done(job, 40)


@pytest.mark.fault(98)
def test_with_memory_for_one_worker_the_old_code_serves_on_after_a_failed_canary(make_site: MakeSite) -> None:
    site = make_site(pool("tag", f"workers = 1\n{CANARY % 1}") + machine(115), MODELS)
    site.start()
    assert site.done(site.queue.enqueue("tag", {})).result["version"] == 1

    new_version(site, 2)
    told = site.command("reload", "--wait", code=None)

    assert told.returncode == 1
    assert "failed its canary" in told.stderr
    wait_for(lambda: workers(site, "tag") == 1 and status(site, "tag")["size"], "the old one again")
    before = len(loads(site))
    end = time.monotonic() + 8
    while time.monotonic() < end:
        assert site.done(site.queue.enqueue("tag", {})).result["version"] == 1
        time.sleep(0.05)
    assert len(loads(site)) <= before + 1, loads(site)
    assert "the old code keeps running" in status(site, "tag")["problem"]

    new_version(site, 3)
    site.configure(pool("tag", f"workers = 1\n{CANARY % 3}") + machine(115))
    assert site.command("reload", "--wait").returncode == 0
    assert site.done(site.queue.enqueue("tag", {})).result["version"] == 3


SLEEPY = 'min_workers = 0\nmax_workers = 1\npreload_setup = true\nscale_down_delay = "100ms"'


def test_a_model_that_is_being_loaded_into_a_template_counts(make_site: MakeSite) -> None:
    """Otherwise each of the next decisions would load another one beside it."""
    names = ("caption", "embed", "tag")
    loaded_at_once = "workers = 1\npreload_setup = true"
    config = "".join(pool(name, loaded_at_once).replace(" }", ", seconds = 0.4 }") for name in names) + machine(110)
    site = make_site(config, MODELS)
    supervisor = site.start()
    for name in names:
        site.done(site.queue.enqueue(name, {}))  # so that all sizes are known
    assert site.stop(supervisor) == 0
    (site.folder / "set-ups").unlink()

    supervisor = site.start()
    wait_for(lambda: sum(workers(site, name) for name in names), "a worker")
    wait_for(lambda: [status(site, name)["why"].startswith("needs") for name in names].count(True) == 2, "the others")

    assert len((site.folder / "set-ups").read_text().splitlines()) == 1


def test_a_worker_larger_than_the_budget_is_loaded_once(make_site: MakeSite) -> None:
    site = make_site(pool("tag", "workers = 1") + machine(40), MODELS)
    site.start()
    wait_for(lambda: workers(site, "tag"), "a worker")
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert len(loads(site)) == 1
        time.sleep(0.05)
    assert workers(site, "tag") == 1
    assert "and [machine] allows 40MiB" in site.command("status").stdout


def test_a_model_that_a_reload_loads_into_a_template_is_counted(make_site: MakeSite) -> None:
    site = make_site("".join(pool(name, SLEEPY) for name in ("caption", "embed", "tag")) + machine(170), MODELS)
    supervisor = site.start()
    for name in ("caption", "embed", "tag"):
        site.done(site.queue.enqueue(name, {}))

    assert site.command("reload", "--wait", "--timeout", "30s").returncode == 0

    wait_for(lambda: len(site.supervisor_status(supervisor)["templates"]) <= 2, "a template to end", 10)
    for name in ("caption", "embed", "tag"):
        site.done(site.queue.enqueue(name, {}))
