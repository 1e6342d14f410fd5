"""Devices, threads, cores and priority: each worker, or its program, has what its pool says."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.site_under_test import Site, kill, wait_for

MakeSite = Callable[..., Site]

LOOK = """
import os

def seen(ctx):
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    return {"pid": os.getpid(), "device": ctx.device, "nice": os.nice(0), "cores": sorted(os.sched_getaffinity(0)),
        **{name: os.environ.get(name) for name in names}}

AT_IMPORT = dict(os.environ)

class Look:
    def setup(self, ctx):
        self.at_setup = seen(ctx)
    def handle(self, payload, ctx):
        found = {name: AT_IMPORT.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")}
        return {**seen(ctx), "at_setup": self.at_setup, "at_import": found}
"""
SERVE = "import sys; sys.path.insert(0, '.')\nfrom job_handler import serve\nfrom jobs import Look\nserve(Look)\n"


def look_site(make_site: MakeSite, config: str) -> Site:
    """An installation whose handler, or program (PROGRAM), tells what it has."""
    site = make_site(config.replace("PROGRAM", f'command = ["{sys.executable}", "serve.py"]'), LOOK)
    (site.folder / "serve.py").write_text(SERVE)
    return site


def status(site: Site, *arguments: str) -> str:
    return site.command("status", *arguments).stdout


def devices(site: Site) -> dict[str, str]:
    """The device of each worker, by its name, as `status` has it: the supervisor's news may be a second old."""
    workers = json.loads(status(site, "--json"))["workers"]
    return {worker["name"]: worker["device"] for worker in workers if worker["device"]}


def columns(site: Site) -> list[str]:
    """Of the table of workers."""
    [line] = [line for line in status(site).splitlines() if {"WORKER", "PID", "STATE"} <= set(re.findall(r"\w+", line))]
    return re.findall(r"\w+", line)


def see(site: Site, pool: str) -> dict[str, Any]:
    found: dict[str, Any] = site.done(site.queue.enqueue(pool)).result
    return found


def test_devices_are_shared_out_and_a_replacement_keeps_its_predecessor_s(make_site: MakeSite) -> None:
    site = look_site(make_site, '[pools.look]\nhandler = "jobs:Look"\nworkers = 3\ngpus = [5, "GPU-b"]\n')
    supervisor = site.start()
    shared = {"look-1": "5", "look-2": "GPU-b", "look-3": "5"}
    wait_for(lambda: devices(site) == shared, "three workers")
    found = see(site, "look")
    assert found["device"] == found["CUDA_VISIBLE_DEVICES"] == found["at_setup"]["CUDA_VISIBLE_DEVICES"]
    assert found["at_import"]["CUDA_VISIBLE_DEVICES"] == os.environ.get("CUDA_VISIBLE_DEVICES")
    pids = {worker.name: worker.pid for worker in site.workers("look")}
    assert shared[next(name for name, pid in pids.items() if pid == found["pid"])] == found["device"]
    assert "DEVICE" in columns(site)
    assert "GPU-b" in status(site)

    for name in ("look-1", "look-2"):
        kill(pids[name])
        wait_for(lambda name=name: _pid(site, name) not in (None, pids[name]), "another in its place")
    wait_for(lambda: devices(site) == shared, "the same devices")

    # Each is stale now. The eldest is look-3 and has a successor first, of a name that was not there before.
    old = {worker.pid for worker in site.workers("look")}
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: devices(site).get("look-4") == shared["look-3"], "the successor to have the same device")
    wait_for(lambda: not old & {w.pid for w in site.workers("look")}, "all to be replaced")
    wait_for(lambda: Counter(devices(site).values()) == {"5": 2, "GPU-b": 1}, "the same devices")


def _pid(site: Site, name: str) -> int | None:
    return next((worker.pid for worker in site.workers(name)), None)


def test_without_devices_nobody_has_one_and_status_has_no_column_for_them(make_site: MakeSite) -> None:
    site = look_site(make_site, '[pools.look]\nhandler = "jobs:Look"\nworkers = 1\n')
    site.start()
    assert see(site, "look")["device"] is None
    assert devices(site) == {}
    assert "DEVICE" not in columns(site)


@pytest.mark.parametrize("how", ['handler = "jobs:Look"\nstart = "spawn"', "PROGRAM"])
def test_a_fresh_interpreter_and_a_program_have_their_device_from_the_start(make_site: MakeSite, how: str) -> None:
    site = look_site(make_site, f'[pools.look]\n{how}\nworkers = 1\ngpus = ["MIG-1/2"]\nthreads = 3\n')
    site.start()
    found = see(site, "look")
    assert found["at_import"] == {"CUDA_VISIBLE_DEVICES": "MIG-1/2", "OMP_NUM_THREADS": "3"}
    assert found["device"] == found["at_setup"]["device"] == "MIG-1/2"


KINDS = {
    "forked": ('handler = "jobs:Look"', "1"),
    "late": ('handler = "jobs:Look"\npreload = false', None),
    "spawned": ('handler = "jobs:Look"\nstart = "spawn"', None),
    "program": ("PROGRAM", None),
    "told": ('handler = "jobs:Look"\nthreads = 5', "5"),
    "env": ('handler = "jobs:Look"\nthreads = 5\nenv = { OMP_NUM_THREADS = "6" }', "6"),
}


def test_each_kind_of_worker_has_the_threads_cores_and_priority_of_its_pool(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    core = max(os.sched_getaffinity(0))
    pools = "".join(f"[pools.{name}]\n{keys}\n" for name, (keys, _) in KINDS.items())
    site = look_site(make_site, f"[defaults]\nworkers = 1\nnice = 7\ncpu_affinity = [{core}]\n{pools}")
    site.start()
    for name, (_, threads) in KINDS.items():
        found = see(site, name)
        assert (found["nice"], found["cores"]) == (max(7, os.nice(0)), [core]), name
        # One core for six workers: whoever may have a share gets one thread as well.
        assert found["OMP_NUM_THREADS"] == (threads or "1"), name
        if name in ("forked", "told", "env"):
            assert found["at_import"]["OMP_NUM_THREADS"] == (threads or "1"), name


BURN = """
import time
from pathlib import Path

def burn(payload, ctx):
    Path(payload["here"], ctx.type).touch()
    while len(list(Path(payload["here"]).iterdir())) < 2:
        time.sleep(0.005)
    before, until = time.process_time(), time.monotonic() + 1.5
    while time.monotonic() < until:
        pass
    return time.process_time() - before
"""


def test_pools_share_a_core_by_their_nice_values(make_site: MakeSite, tmp_path: Path) -> None:
    keys = f'handler = "jobs:burn"\nworkers = 1\ncpu_affinity = [{max(os.sched_getaffinity(0))}]\n'
    site = make_site(f"[pools.first]\n{keys}[pools.second]\n{keys}nice = 19\n", BURN)
    site.start()
    here = tmp_path / "here"
    here.mkdir()
    jobs = [site.queue.enqueue(pool, {"here": str(here)}) for pool in ("first", "second")]
    first, second = (site.done(job).result for job in jobs)
    expected = 1.25 ** (19 - os.nice(0))  # by each step, a quarter more
    assert first > second * expected**0.5


def test_a_worker_alone_may_use_all_cores_but_not_if_it_was_forked_from_an_image(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for how, threads in (("preload = false", len(os.sched_getaffinity(0))), ("preload = true", 1)):
        site = look_site(make_site, f'[pools.look]\nhandler = "jobs:Look"\nworkers = 1\n{how}\n')
        supervisor = site.start()
        assert see(site, "look")["OMP_NUM_THREADS"] == str(threads)
        site.stop(supervisor)


@pytest.mark.parametrize("command", ["check", "run"])
def test_cores_that_are_not_there_are_told_with_their_line(make_site: MakeSite, command: str) -> None:
    site = look_site(make_site, '[pools.look]\nhandler = "jobs:Look"\ncpu_affinity = [0, 4000]\n')
    ended = site.command(command, code=2)
    assert f"{site.config}:4: pools.look.cpu_affinity: core 4000 is not available; there are 0" in ended.stderr
