"""Divides the memory of the machine and of devices between the pools, with the measurements of their workers.

How much memory of their devices workers use, `nvidia-smi` tells. NVIDIA's library is not loaded here: whoever has its
device files open cannot be forked. The program runs beside the supervisor, which takes its answer at a later tick.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from supervisor.config.settings import MachineSettings
from supervisor.domain.memory_division import divide
from supervisor.domain.memory_shares import (
    MACHINE,
    Need,
    Patience,
    RecentPeak,
    Residency,
    Template,
    Tenant,
    Workers,
    own_budget,
)
from supervisor.supervision.plan import Missing, allowed
from supervisor.supervision.pool import Pool
from supervisor.supervision.pools import Pools
from supervisor.supervision.templates import Templates
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel, resources
from supervisor.system.child import Subprocess
from supervisor.telemetry import events

_PROGRAM = "nvidia-smi"
_QUERY = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
_LINE = re.compile(rb"^\s*(\d{1,12})\s*,\s*(\d{1,12})\s*$", re.MULTILINE)  # pid, MiB
_EVERY = 10.0  # seconds between two looks at devices with busy workers
_PATIENCE = 20.0  # seconds for an answer
_RESERVE = 0.1  # of the machine's memory, for others, if no budget is stated


class MemoryShares:
    """As long as all pools fit at their largest sizes, it only measures each of them once. Times are monotonic
    seconds.
    """

    def __init__(self, pools: Pools, templates: Templates) -> None:
        self._pools = pools
        self._templates = templates
        self._meter = DeviceMeter()
        self._machine = MachineSettings()
        self._budgets: dict[str, int] = {}
        self._images: dict[str, str] = {}
        self._scarce = self._divided = False

    def configure(self, machine: MachineSettings) -> None:
        """Apply the configuration, after that of the pools."""
        self._machine = machine
        memory = machine.memory or int(resources.available() * (1 - _RESERVE))
        own = {own_budget(name): pool.settings.memory_budget for name, pool in self._pools.items()}
        self._budgets = {MACHINE: memory, **machine.devices, **{name: size for name, size in own.items() if size}}
        self._images = {name: min(self._pools.sharing(pool), default=name) for name, pool in self._pools.items()}
        self._measure()

    # What is measured

    def learn(self, worker: WorkerProcess) -> None:
        """A worker has been set up."""
        self._meter.look(self._devices_of(self._pools[worker.release.pool]))
        self._measure()

    def look_around(self, now: float) -> None:
        """Once a tick: a model may be loaded with the first job."""
        running = self._pools.running()
        on_device: dict[str, list[int]] = {}
        for worker in (one for one in self._meter.take(running) if one.is_typical):
            on_device.setdefault(worker.release.pool, []).append(worker.watched.on_device)
        for name, used in on_device.items():
            size = self._pools[name].size
            size.on_device = (size.on_device or RecentPeak()).seen(used, now)
        self._meter.repeat(running, now, busy=any(p.scale.busy and self._devices_of(p) for p in self._pools.values()))
        self._measure()

    def _measure(self) -> None:
        """Note what each pool needs, and whether there may be too little for all at their largest. Templates are
        measured also without workers: after a reload, one loads the new code, and perhaps a model, at once.
        """
        for template in self._templates:
            if template.ready and not (template.memory or template.child.gone):
                template.memory = kernel.memory_shared_with_children(template.child.pid)
        most, images = Counter[str](), Counter[str]()
        for name, pool in self._pools.items():
            self._note_need(pool)
            need, image = self._need(pool) or Need(0), self._images.get(name, name)
            workers = max(pool.settings.max_workers, pool.scale.fixed or 0, len(pool.workers))
            workers += pool.settings.spares + 1  # one may be replaced
            most[MACHINE] += workers * need.worker
            most[own_budget(name)] = workers * need.worker
            most.update(dict.fromkeys(self._devices_of(pool), workers * need.device))
            images[image] = max(images[image], need.template)
        most[MACHINE] += images.total()
        unknown = any(self._need(pool) is None for pool in self._pools.values())
        self._scarce = unknown or any(most[name] > budget for name, budget in self._budgets.items())
        for pool in self._pools.values():
            pool.size.metered = self._scarce or not pool.size.memory.value

    def _note_need(self, pool: Pool) -> None:
        """If its size has been measured since the last reload."""
        size, before = pool.size, pool.size.known or Need(0)
        if size.memory.value and (size.on_device is not None or not self._devices_of(pool) or self._meter.broken):
            current = [t for t in self._templates if t.current and not t.dismissed]  # one from before a reload differs
            image = self._images[pool.name]
            size.known = Need(
                size.memory.value if size.has_settled else max(size.memory.value, before.worker),
                max((t.memory for t in current if self._image_of(t.spec.pools) == image), default=0) or before.template,
                before.device if size.on_device is None else size.on_device.value,
            )

    def _need(self, pool: Pool) -> Need | None:
        """As measured, perhaps before the last reload; None if it never was and the budget is stated."""
        stated = self._is_shared(pool) or pool.settings.memory_budget
        return pool.size.known or (None if stated else Need(pool.size.memory.value))

    def _is_shared(self, pool: Pool) -> bool:
        """Whether it has a part of a stated budget of others."""
        return self._machine.memory is not None or bool(self._devices_of(pool))

    def _devices_of(self, pool: Pool) -> set[str]:
        return self._machine.devices.keys() & set(pool.settings.gpus)

    def _image_of(self, pools: Mapping[str, Any]) -> str:
        return next((self._images[name] for name in pools if name in self._images), next(iter(pools)))

    # What is decided

    def divide(self, now: float) -> None:
        """Give each pool its share, after it has decided what it wants."""
        if not self._scarce:
            self._give_way()
            return
        self._divided = True
        self._measure()
        guess = self._largest()
        tenants = [self._tenant(pool, self._expected(pool, guess), now) for pool in self._pools.values()]
        grants = divide(
            tenants,
            self._budgets,
            self._loaded_templates(guess),
            Patience(self._machine.min_residency, self._machine.max_wait),
            now,
        )
        for name, grant in grants.items():
            pool = self._pools[name]
            pool.residency = pool.residency.decided(now, grant)
            pool.take(None if self._backs_off(pool, now) else grant)
        unloaded = {name for name, grant in grants.items() if grant.unloaded}
        without_old_code = {name for name, grant in grants.items() if grant.without_old_code}
        if unloaded or without_old_code:
            self._templates.unload(unloaded | without_old_code, without_old_code, self._pools.templates())

    def _give_way(self) -> None:
        """There is enough for all again."""
        if self._divided:
            self._divided = False
            for pool in self._pools.values():
                pool.residency = Residency()
                pool.take(None)

    def _largest(self) -> Need:
        """As what has not been measured counts: until anything was on a device, as all of it."""
        known = [(pool, need) for pool in self._pools.values() if (need := self._need(pool)) is not None]
        on_device = [need.device for pool, need in known if self._devices_of(pool)]
        return Need(
            max((need.worker for _, need in known), default=0),
            max((need.template for _, need in known), default=0),
            max(on_device or self._machine.devices.values(), default=0),
        )

    def _expected(self, pool: Pool, guess: Need) -> Need:
        return self._need(pool) or (guess if self._is_shared(pool) else Need(0))

    def _tenant(self, pool: Pool, need: Need, now: float) -> Tenant:
        living, scale, current = pool.workers.living(), pool.scale, pool.code.current
        staying = [worker for worker in living if not worker.leaving]
        wanted = 0 if self._backs_off(pool, now) else 1 if pool.needs_canary_worker else scale.target
        measured, idle = self._need(pool) is not None, not (scale.due or scale.busy)
        # One that left before it was measured might never be, if others take its place each time.
        ready = any(worker.is_ready and (measured or not worker.is_typical) for worker in staying)
        pool.residency = pool.residency.seen(now, wanted=wanted, staying=len(staying), ready=ready, idle=idle)
        waited = scale.waiting.oldest_age + now - scale.waiting.at if scale.due else 0.0
        due = scale.due
        if pool.needs_canary_worker and not current.failed and not due:  # it waits for a worker like a job
            due, waited = 1, now - current.reloaded_at
        return Tenant(
            pool.name,
            wanted,
            need,
            self._workers(pool, need),
            self._images.get(pool.name, pool.name),
            pool.spares_wanted,
            due,
            scale.busy,
            waited,
            pool.residency,
            replacing=any(worker.stale for worker in staying),
            patient=current.failed and not all(worker.release.current for worker in staying),
            measured=measured,
            alone=not self._is_shared(pool),
        )

    def _backs_off(self, pool: Pool, now: float) -> bool:
        """It starts nobody now, so it needs no memory."""
        code = pool.code.old
        old = not pool.needs_canary_worker and code is not None and self._templates.forking(code) is not None
        return not (pool.workers.living() or any(allowed(pool, Missing(1, int(old)), now)))

    def _workers(self, pool: Pool, expected: Need) -> dict[str, Workers]:
        """Its workers on each device. What is still being loaded counts as it is expected."""
        found, living = {}, pool.workers.living()
        for device in pool.settings.gpus or ("",):
            there = [worker for worker in living if (worker.request.device or "") == device]
            leaving = sum(worker.leaving for worker in there)
            used = sum(_at_least(worker, worker.watched.unique, expected.worker) for worker in there)
            most = min(expected.device, self._budgets.get(device, expected.device))
            on_device = sum(_at_least(worker, worker.watched.on_device, most) for worker in there if device)
            found[device] = Workers(len(there) - leaving, leaving, used, on_device)
        return found

    def _loaded_templates(self, guess: Need) -> dict[str, Template]:
        """By image. One that is loading its code, and perhaps a model, counts as it is expected."""
        found: dict[str, Template] = {}
        for template in self._templates:
            image = self._image_of(template.spec.pools)
            before = found.get(image, Template(0, ending=True))
            used, pools = template.memory, [self._pools[name] for name in template.spec.pools if name in self._pools]
            if template.loading and not template.child.gone:
                used = max((self._expected(pool, guess).template for pool in pools), default=0)
            kept = template.memory if template.kept_for else 0
            found[image] = Template(before.used + used, before.ending and template.retired, before.kept + kept)
        return found

    def status(self) -> dict[str, Any]:
        """For `status`: bytes used by each pool, by templates and on each device, as far as they are measured."""
        workers = {name: self._workers(pool, self._need(pool) or Need(0)) for name, pool in self._pools.items()}
        devices = {
            device: {
                "budget": budget,
                "used": sum(found[device].on_device for found in workers.values() if device in found),
            }
            for device, budget in self._machine.devices.items()
        }
        return {
            "budget": self._budgets[MACHINE],
            "stated": self._machine.memory is not None,
            "pools": {name: sum(there.used for there in found.values()) for name, found in workers.items()},
            "templates": sum(template.memory for template in self._templates),
            "needs": {name: pool.size.known._asdict() for name, pool in self._pools.items() if pool.size.known},
            "devices": devices,
        }


def _at_least(worker: WorkerProcess, measured: int, expected: int) -> int:
    """Bytes. In its set-up, and if it loads its model with the first job, it may still grow to what is expected."""
    return measured if measured and worker.watched.has_settled else max(measured, expected)


class DeviceMeter:
    """Runs the program only while a device with a budget is used. `broken`: it gives no answer, or one that cannot be
    right. It is tried again, as often as one that works.
    """

    def __init__(self) -> None:
        self.broken = False
        self._running: Subprocess | None = None
        self._again = False
        self._asked_at = -_EVERY
        self._asked_for: set[str] = set()  # incarnations of workers that had been set up

    def look(self, devices: Collection[str]) -> None:
        """Measure soon, if there is anything to measure."""
        self._again = self._again or bool(devices)

    def repeat(self, workers: Iterable[WorkerProcess], now: float, *, busy: bool) -> None:
        """Start the program if it is time to, for these workers; `busy`: some may have grown."""
        if self._running is not None and now - self._asked_at > _PATIENCE:
            self._running.kill()  # one that hangs in a driver does not end by that
            self._give_up(f"it gave no answer within {_PATIENCE:g} s")
        due = self._again or (busy and now - self._asked_at >= _EVERY)
        if due and self._running is None:
            self._again, self._asked_at = False, now
            self._asked_for = {worker.request.incarnation for worker in workers if worker.is_ready}
            try:
                self._running = Subprocess((shutil.which(_PROGRAM) or _PROGRAM, *_QUERY))
            except OSError as error:
                self._give_up(f"it cannot be started: {error.strerror}")

    def take(self, workers: Iterable[WorkerProcess]) -> list[WorkerProcess]:
        """Note the answer, if it has come, in the workers for which it was asked, and return these."""
        program = self._running
        if program is None or program.status is None:
            return []
        self._running = None
        answer = program.output()
        if program.status != 0:  # part of an answer is none: who is missing there may use the device
            self._give_up(f"it ended with {program.status}")
            return []
        used = parsed(answer)
        measured = [one for one in workers if one.request.incarnation in self._asked_for and _is_whole(one)]
        for worker in measured:
            worker.watched.on_device = sum(used[member] for member in kernel.family(worker.process.pid))
        if any(worker.watched.on_device for worker in measured):
            self.broken = False
        elif any(worker.slot.read().done for worker in measured):  # before its first job, a model may not be loaded
            self._give_up("it names none of the workers")
        return measured

    def _give_up(self, why: str) -> None:
        if not self.broken:
            self.broken = True
            hint = "the budgets of [devices] are not kept; in a container, it may not see the processes"
            events(process="supervisor").warning("devices_unmeasured", program=_PROGRAM, problem=why, hint=hint)


def _is_whole(worker: WorkerProcess) -> bool:
    """Whether it uses nothing if it is missing in an answer: a process that is ending frees its memory before it frees
    what it has on a device.
    """
    return worker.request.device is not None and kernel.resident_of_family(worker.process.pid) > 0


def parsed(answer: bytes) -> Counter[int]:
    """Bytes by process. Lines that give no number, like `[N/A]`, are left out."""
    used = Counter[int]()
    for pid, size in _LINE.findall(answer):
        used[int(pid)] += int(size) << 20
    return used
