"""Pools that share the memory of a machine and of devices: what does not fit at once runs in turns."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from supervisor.system import kernel
from supervisor.system.scoreboard import Scoreboard
from tests.faults.cgroups import Cgroup, cgroup
from tests.site_under_test import Site, kill, wait_for

MakeSite = Callable[..., Site]
MIB = 1 << 20
LOADED = 64 * MIB  # a worker without its model has half of that
POOLS = ("caption", "embed", "tag")
# On a device, the worker writes what it uses there to a file, which the stand-in for nvidia-smi reads.
MODELS = """
import os, time
from ledger import record

class Model:
    def setup(self, ctx):
        with open("loads", "a") as file:
            file.write(f"{ctx.options['name']} {time.monotonic()}\\n")
        self.mib, self.model = ctx.options["mib"], None
        time.sleep(ctx.options["slow"])
        if not ctx.options["lazy"]:
            self.load()
        if ctx.device is not None:
            with open(f"on-device/{os.getpid()}", "w") as file:
                file.write(f"{os.getpid()}, {ctx.options['on_device']}, {ctx.device}\\n")
    def load(self):
        self.model = b"m" * (self.mib << 20)
    def handle(self, payload, ctx):
        record("start", ctx)
        if self.model is None:
            self.load()
        if payload.get("mib"):
            self.more = b"m" * (payload["mib"] << 20)
        time.sleep(payload.get("seconds", 0.02))
        record("end", ctx)
        return os.getpid()
"""
SMI = """#!/bin/sh
for file in FOLDER/on-device/*; do
  [ -d "/proc/${file##*/}" ] && cut -d, -f1,2 "$file"
done
exit 0
"""


def pools(mib: int = 60, low: int = 1, high: int = 1, slow: float = 0.0, lazy: bool = False, **more: str) -> str:
    return "".join(
        f'[pools.{name}]\nhandler = "jobs:Model"\nmin_workers = {low}\nmax_workers = {high}\n'
        f'options = {{ mib = {mib}, name = "{name}", on_device = 6000, '
        f"slow = {slow}, lazy = {str(lazy).lower()} }}\n" + "".join(f"{key} = {value}\n" for key, value in more.items())
        for name in POOLS
    )


def machine(memory: str, min_residency: float = 1.0, max_wait: float = 3.0) -> str:
    return f'[machine]\nmemory = "{memory}"\nmin_residency = "{min_residency}s"\nmax_wait = "{max_wait}s"\n'


def loads(site: Site) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in POOLS}
    for line in (site.folder / "loads").read_text().splitlines():
        name, at = line.split()
        found[name].append(float(at))
    return found


def never_twice_within(site: Site, residency: float) -> bool:
    """Whether no model was loaded again within that time."""
    return all(later - earlier >= residency for at in loads(site).values() for earlier, later in pairwise(at))


def needs(site: Site) -> dict[str, dict[str, int]]:
    """The bytes that a worker of each pool needs, as the one supervisor has measured them."""
    [path] = site.scoreboards()
    board = Scoreboard.open(path)
    return {} if board is None else dict(board.supervisor_status().get("memory", {}).get("needs", {}))


def settled(site: Site, jobs: list[int], patience: float = 60.0) -> None:
    for job in jobs:
        assert site.done(job, patience).status == "done"
        assert site.job(job).crashes == 0


class Peak:
    """The most pools that had a model in memory at the same time, and the most on one device, whenever it was looked. A
    worker that leaves gives its model back before its process ends.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.most = 0
        self.on_device: dict[str, int] = {}

    def look(self) -> bool:
        slots = self.site.workers()  # that of a dead worker is freed a moment later
        loaded = [slot for slot in slots if kernel.resident_of_family(slot.pid) > LOADED]
        self.most = max(self.most, len({slot.name.rpartition("-")[0] for slot in loaded}))
        models = [path for path in self.site.folder.glob("on-device/*") if kernel.resident_of_family(int(path.name))]
        for device, count in Counter(path.read_text().split()[-1] for path in models).items():
            self.on_device[device] = max(self.on_device.get(device, 0), count)
        return True


def in_bursts(site: Site, rounds: int = 2, each: int = 12) -> tuple[list[int], Peak]:
    """Jobs by type, one type after another, so that each burst meets a full budget."""
    peak, jobs = Peak(site), []
    for _ in range(rounds):
        for name in POOLS:
            burst = site.queue.enqueue_many(name, [{}] * each)
            wait_for(lambda last=burst[-1]: peak.look() and site.job(last).status == "done", name, 60)
            jobs += burst
    return jobs, peak


def test_three_models_of_which_two_fit_serve_bursts_in_turns(make_site: MakeSite) -> None:
    site = make_site(pools() + machine("170MiB"), MODELS)
    supervisor = site.start()

    jobs, peak = in_bursts(site)

    settled(site, jobs)
    assert peak.most <= 2
    assert site.supervisor_status(supervisor)["memory"]["budget"] == 170 * MIB
    assert never_twice_within(site, 1.0), loads(site)
    assert not site.event("worker_died")
    assert re.search(r"^memory: \d+MiB of 170MiB: ", site.command("status").stdout, re.M)
    assert any(re.search(r"makes room for (caption|embed|tag)", e.get("why", "")) for e in site.events())


class TestWithinWhatTheKernelAllows:
    """Three models of 100 MiB, in a control group with room for two of them and the supervisor, not for three."""

    @pytest.fixture
    def room(self) -> Iterator[Cgroup]:
        with cgroup("memory") as group:
            group.limit(350 * MIB)
            yield group

    @pytest.mark.long
    @pytest.mark.timeout(180)
    def test_with_a_budget_it_kills_nobody_and_each_model_is_loaded_once_a_residency_at_most(
        self, room: Cgroup, make_site: MakeSite
    ) -> None:
        site = make_site(pools(mib=100) + machine("260MiB"), MODELS)
        site.start(preexec_fn=room.join)

        jobs, peak = in_bursts(site, rounds=5)
        together = [job for _ in range(3) for name in POOLS for job in site.queue.enqueue_many(name, [{}] * 40)]

        settled(site, [*jobs, *together])
        site.verdict()
        assert room.kills == 0
        assert peak.most <= 2
        assert never_twice_within(site, 1.0), loads(site)
        assert min(map(len, loads(site).values())) >= 2
        assert not site.event("worker_died")


def test_the_loaded_pools_go_on_until_another_has_waited_for_max_wait(make_site: MakeSite) -> None:
    site = make_site(pools() + machine("170MiB", max_wait=2.0), MODELS)
    supervisor = site.start()
    wait_for(lambda: len(site.workers()) == 2 and needs(site), "two of them")
    loaded = {slot.name.rpartition("-")[0] for slot in site.workers()}
    [other] = set(POOLS) - loaded
    for name in loaded:
        site.queue.enqueue_many(name, [{"seconds": 0.05}] * 200)

    asked, job = time.monotonic(), site.queue.enqueue(other)

    def why() -> str:
        return str(site.supervisor_status(supervisor)["pools"][other]["why"])

    wait_for(lambda: "waits for" in why(), "the reason")
    settled(site, [job])
    assert time.monotonic() - asked >= 1.9


@pytest.mark.parametrize("how", [{"slow": 1.5}, {"lazy": True}], ids=["slowly", "with the first job"])
def test_a_model_that_is_still_to_be_loaded_has_its_place_already(make_site: MakeSite, how: dict[str, Any]) -> None:
    """Its worker was measured before, or in the middle of its set-up."""
    site = make_site(pools(low=0, scale_down_delay='"100ms"', **how) + machine("100MiB", min_residency=4.0), MODELS)
    supervisor = site.start()
    for name in ("embed", "tag"):
        settled(site, site.queue.enqueue_many(name, [{"seconds": 0.5}] * 4))
        wait_for(lambda name=name: needs(site).get(name, {}).get("worker", 0) > 60 * MIB, "its size")
    wait_for(lambda: not site.workers(), "both to have left")

    peak = Peak(site)
    jobs = [site.queue.enqueue("embed", {"seconds": 1.0})]
    wait_for(lambda: site.workers(), "its worker")
    time.sleep(0.7)  # it is measured meanwhile
    jobs.append(site.queue.enqueue("tag"))

    wait_for(lambda: peak.look() and site.job(jobs[-1]).status == "done", "the other one to have its turn", 60)
    settled(site, jobs)
    assert peak.most == 1
    assert not [e for e in site.events() if "no memory is left" in e.get("why", "")]
    assert site.stop(supervisor) == 0


@pytest.mark.fault(99)
@pytest.mark.parametrize("victim", ["worker", "supervisor", "template"])
def test_turns_go_on_after_a_kill(make_site: MakeSite, victim: str) -> None:
    site = make_site(pools() + machine("170MiB"), MODELS)
    supervisor = site.start()
    jobs = [job for _ in range(2) for name in POOLS for job in site.queue.enqueue_many(name, [{"seconds": 0.1}] * 10)]
    busy = wait_for(lambda: [slot for slot in site.workers() if slot.job], "a job to run")
    if victim == "worker":
        kill(busy[0].pid)
    elif victim == "template":
        kill(site.supervisor_status(supervisor)["templates"][0])
    else:
        supervisor.kill()
        supervisor.wait()
        site.start()

    for job in jobs:
        site.done(job, 90)
    wait_for(lambda: len(site.workers()) <= 2, "as many as fit")


class TestOnDevices:
    """Two devices, of which a stand-in for nvidia-smi tells what workers use."""

    @pytest.fixture
    def site(self, make_site: MakeSite) -> Site:
        config = pools(mib=1, gpus="[0, 1]") + machine("4GiB")
        config += '[devices.0]\nmemory = "8GiB"\n[devices.1]\nmemory = "8GiB"\n'
        site = make_site(config, MODELS)
        (site.folder / "on-device").mkdir()
        (site.folder / "bin").mkdir()
        program = site.folder / "bin" / "nvidia-smi"
        program.write_text(SMI.replace("FOLDER", str(site.folder)))
        program.chmod(0o755)
        return site

    @staticmethod
    def start(site: Site) -> Any:
        return site.start(env={**os.environ, "PATH": f"{site.folder / 'bin'}:{os.environ['PATH']}"})

    def test_no_device_ever_holds_two_models_and_each_is_loaded_once_a_residency_at_most(self, site: Site) -> None:
        # Its answer comes after a model has been loaded for min_residency, and after jobs have waited for max_wait.
        program = site.folder / "bin" / "nvidia-smi"
        program.write_text(program.read_text().replace("#!/bin/sh", "#!/bin/sh\nsleep 4"))
        supervisor = self.start(site)

        jobs, peak = in_bursts(site)
        together = [job for name in POOLS for job in site.queue.enqueue_many(name, [{}] * 40)]
        for job in together:
            wait_for(lambda job=job: peak.look() and site.job(job).status == "done", "it to be done", 60)

        settled(site, [*jobs, *together])
        site.verdict()
        assert peak.most <= 2
        assert set(peak.on_device.values()) == {1}
        assert never_twice_within(site, 1.0), loads(site)
        wait_for(lambda: len(needs(site)) == 3, "the sizes")
        wait_for(lambda: len({slot.name for slot in site.workers()}) == 2, "two of them")
        used = site.supervisor_status(supervisor)["memory"]["devices"]
        assert used == {name: {"budget": 8 << 30, "used": 6000 * MIB} for name in ("0", "1")}
        assert not site.event("worker_died")
        assert "memory of device 0: 5.86GiB of 8GiB" in site.command("status").stdout

    @pytest.mark.long
    @pytest.mark.timeout(180)
    def test_models_that_have_become_smaller_have_their_new_sizes_after_a_reload(self, site: Site) -> None:
        self.start(site)

        def known() -> set[tuple[int, int]]:
            """MiB of each model, in tens, and on its device."""
            return {(round(one["worker"] / (10 * MIB)), one["device"] // MIB) for one in needs(site).values()}

        def learnt(condition: Callable[[], bool]) -> bool:
            """A worker that leaves before the program has answered is not measured."""
            settled(site, in_bursts(site, rounds=1, each=2)[0])
            return condition()

        def complete() -> bool:
            return len(known()) == 1 and {on_device for _, on_device in known()} == {6000}

        wait_for(lambda: learnt(complete), "the sizes", 60)
        [(before, _)] = known()
        code = site.folder / "jobs.py"
        code.write_text(code.read_text().replace('ctx.options["mib"]', "60"))
        assert site.command("reload", "--wait", "--timeout", "30s").returncode == 0
        wait_for(lambda: learnt(lambda: min(known())[0] >= before + 5), "the larger ones", 60)

        code.write_text(code.read_text().replace("60", "1").replace("ctx.options['on_device']", "3000"))
        assert site.command("reload", "--wait", "--timeout", "30s").returncode == 0
        wait_for(lambda: learnt(lambda: known() == {(before, 3000)}), "the smaller ones", 60)

    def test_the_death_of_a_template_makes_no_model_small(self, site: Site) -> None:
        """What its workers left behind is killed then, but not the program that is measuring."""
        program = site.folder / "bin" / "nvidia-smi"
        program.write_text(program.read_text().replace("#!/bin/sh", "#!/bin/sh\nsleep 0.3"))
        supervisor = self.start(site)
        settled(site, [site.queue.enqueue(name) for name in POOLS])

        for _ in range(3):
            for name in POOLS:
                job = site.queue.enqueue(name)
                wait_for(lambda job=job: site.job(job).status == "done", "it to be done", 60)
                for pid in site.supervisor_status(supervisor)["templates"]:
                    with contextlib.suppress(ProcessLookupError):
                        kill(pid)
        for name in POOLS:
            site.done(site.queue.enqueue(name), 60)

        assert {one["device"] // MIB for one in needs(site).values()} == {6000}
        assert not site.event("devices_unmeasured")

    def test_without_the_program_the_budget_is_told_as_not_kept(self, site: Site) -> None:
        site.start(env={**os.environ, "PATH": "/nowhere"})
        settled(site, [site.queue.enqueue(name) for name in POOLS])
        told = wait_for(lambda: site.event("devices_unmeasured"), "a warning")
        assert "No such file" in told["problem"]


def test_a_reload_changes_the_budget(make_site: MakeSite) -> None:
    site = make_site(pools() + machine("1GiB"), MODELS)
    supervisor = site.start()
    wait_for(lambda: len(site.workers()) == 3, "all three")

    # Room for two workers and both templates: the old one stays until the new code has worked in each pool.
    site.configure(pools() + machine("200MiB"))
    supervisor.send_signal(signal.SIGHUP)

    wait_for(lambda: site.event("reloaded") and len(site.workers()) == 2, "one to leave")
    settled(site, [site.queue.enqueue(name) for name in POOLS])
