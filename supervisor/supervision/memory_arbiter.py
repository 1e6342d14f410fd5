"""Divides the memory of the machine and of devices between the pools, with the measurements of their workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.config.settings import MachineSettings
from supervisor.domain.arbiter import arbitrate
from supervisor.domain.memory import MACHINE, Crew, Demand, Need, Patience, Template
from supervisor.domain.recent_peak import RecentPeak
from supervisor.domain.residency import Residency
from supervisor.domain.scaling import Missing
from supervisor.supervision.device_memory import DeviceMeter
from supervisor.supervision.known_sizes import KnownSizes
from supervisor.supervision.plan import allowed, needs_image_trial
from supervisor.supervision.pool import Pool, is_typical, spares_wanted
from supervisor.supervision.pool_workers import is_idle
from supervisor.supervision.pools import Pools
from supervisor.supervision.templates import Templates
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel, memory_limit
from supervisor.telemetry import events

_RESERVE = 0.1  # of the machine's memory, for others, if no budget is stated
_HIGH = 5.0  # percent of the time that all processes wait for memory
_RELIEF_EVERY = 10.0  # seconds; the kernel's average covers as many


class MemoryArbiter:
    """As long as all pools fit at their largest sizes, it only measures each of them once. Times are monotonic seconds.

    `pressure_file` is the kernel's account of its lack of memory, None if there is none.
    """

    def __init__(
        self,
        pools: Pools,
        templates: Templates,
        sizes: KnownSizes,
        meter: DeviceMeter,
        *,
        pressure_file: Path | None = None,
    ) -> None:
        self._pools = pools
        self._templates = templates
        self._sizes = sizes
        self._meter = meter
        self._pressure_file = pressure_file
        self._log = events(process="supervisor")
        self._machine = MachineSettings()
        self._budgets: dict[str, int] = {}
        self._images: dict[str, str] = {}
        self._scarce = False
        self._pressed_until = self._relieved_at = 0.0
        self._relieve = self._dividing = False

    def configure(self, machine: MachineSettings) -> None:
        """Apply the configuration, after that of the pools."""
        self._machine = machine
        memory = machine.memory or int(memory_limit.available() * (1 - _RESERVE))
        self._budgets = {MACHINE: memory, **machine.devices}
        self._images = {name: min(self._pools.sharing(pool), default=name) for name, pool in self._pools.items()}
        self._look_again()

    # What is measured

    def learn(self, worker: WorkerProcess) -> None:
        """A worker has been set up."""
        pool = self._pools[worker.pool]
        self._measure_templates()
        self._meter.look(self._devices_of(pool))
        self._note(pool)
        self._look_again()

    def look_around(self, now: float) -> None:
        """Once a tick."""
        running = self._pools.running()
        on_device: dict[str, list[int]] = {}
        for worker in filter(is_typical, self._meter.take(running)):
            on_device.setdefault(worker.pool, []).append(worker.memory.on_device)
        for name, used in on_device.items():
            pool = self._pools[name]
            pool.size.on_device = (pool.size.on_device or RecentPeak()).seen(used, now)
            self._note(pool)
        self._meter.repeat(running, now, busy=any(p.scale.busy and self._devices_of(p) for p in self._pools.values()))
        self._measure_templates()
        for pool in self._pools.values():
            self._note(pool)  # a model may be loaded with the first job
        self._sizes.save()
        self._look_again()
        self._feel_pressure(now)

    def _measure_templates(self) -> None:
        """Also those without workers: after a reload, a template loads the new code, and perhaps a model, at once."""
        for template in self._templates:
            if template.ready and not (template.memory or template.gone):
                template.memory = kernel.memory_shared_with_children(template.pid)

    def _note(self, pool: Pool) -> None:
        if self._is_measured(pool):
            self._sizes.learn(pool.settings, self._measured(pool))

    def _is_measured(self, pool: Pool) -> bool:
        on_device = pool.size.on_device is not None or not self._devices_of(pool) or self._meter.broken
        return pool.size.memory.value > 0 and on_device

    def _devices_of(self, pool: Pool) -> set[str]:
        return self._machine.devices.keys() & set(pool.settings.gpus)

    def _measured(self, pool: Pool) -> Need:
        image = self._images[pool.name]
        current = [t for t in self._templates if t.current and not t.dismissed]  # one from before a reload may differ
        shared = max((t.memory for t in current if self._image_of(t.spec.pools) == image), default=0)
        known = self._sizes.of(pool.settings)
        on_device = known.device if known else 0
        if pool.size.on_device is not None:
            on_device = pool.size.on_device.value
        worker = pool.size.memory.value
        if known is not None and not pool.size.has_settled:
            worker = max(worker, known.worker)
        return Need(worker, shared or (known.template if known else 0), on_device)

    def _need(self, pool: Pool) -> Need | None:
        """Measured in this run, else before; None if neither and the budget is stated."""
        if self._is_measured(pool):
            return self._measured(pool)
        known = self._sizes.of(pool.settings)
        if known is not None:
            return known
        return None if self._machine.memory or self._devices_of(pool) else Need(pool.size.memory.value)

    def _look_again(self) -> None:
        """Whether there may be too little for all pools at their largest."""
        most = dict.fromkeys(self._budgets, 0)
        images: dict[str, int] = {}
        unknown = False
        for name, pool in self._pools.items():
            need = self._need(pool)
            unknown = unknown or need is None
            need = need or Need(0)
            workers = max(pool.settings.max_workers, pool.scale.fixed or 0, len(pool.workers))
            workers += pool.settings.spares + 1  # one may be replaced
            most[MACHINE] += workers * need.worker
            for device in self._devices_of(pool):
                most[device] += workers * need.device
            image = self._images.get(name, name)
            images[image] = max(images.get(image, 0), need.template)
        most[MACHINE] += sum(images.values())
        self._scarce = unknown or any(most[name] > budget for name, budget in self._budgets.items())
        for pool in self._pools.values():
            pool.size.metered = self._scarce or not pool.size.memory.value

    def _feel_pressure(self, now: float) -> None:
        file = self._pressure_file
        if file is None or (file == memory_limit.OF_MACHINE and self._machine.memory is None):
            return  # others on this machine may be the cause
        if memory_limit.pressure(file) < _HIGH:
            return
        self._pressed_until = now + self._machine.min_residency
        if now - self._relieved_at >= _RELIEF_EVERY:
            self._relieve = True

    # What is decided

    def divide(self, now: float) -> None:
        """Give each pool its share, after it has decided what it wants."""
        pressed = now < self._pressed_until
        if not (self._scarce or pressed):
            self._give_way()
            return
        self._dividing = True
        self._measure_templates()
        demands = [self._demand(pool, now) for pool in self._pools.values()]
        templates = self._loaded_templates()
        patience = Patience(self._machine.min_residency, self._machine.max_wait)
        grants = arbitrate(demands, self._budgets, templates, patience, now, pressed=pressed, relieve=self._relieve)
        if self._relieve:
            self._relieve, self._relieved_at = False, now
        unloaded, without_old_code = set(), set()
        for demand in demands:
            pool, grant = self._pools[demand.name], grants[demand.name]
            pool.residency = pool.residency.decided(now, grant)
            pool.take(None if self._backs_off(pool, now) else grant)
            if grant.unloaded:
                unloaded.add(pool.name)
            if grant.without_old_code:
                without_old_code.add(pool.name)
        if unloaded or without_old_code:
            self._templates.unload(unloaded | without_old_code, without_old_code, self._pools.workers())

    def _give_way(self) -> None:
        """There is enough for all again."""
        if self._dividing:
            self._dividing = False
            for pool in self._pools.values():
                pool.residency = Residency()
                pool.take(None)

    def _demand(self, pool: Pool, now: float) -> Demand:
        living = pool.workers.living()
        staying = [worker for worker in living if not worker.leaving]
        wanted = 0 if self._backs_off(pool, now) else 1 if pool.needs_canary_worker else pool.scale.target
        idle = not (pool.scale.due or pool.scale.busy)
        found = pool.residency = pool.residency.seen(
            now, wanted=wanted, staying=len(staying), ready=any(w.is_ready for w in staying), idle=idle
        )
        need = self._need(pool)
        scale, waiting, current = pool.scale, pool.scale.waiting, pool.code.current
        proof = pool.needs_canary_worker and not current.failed  # that waits for a worker like a job
        return Demand(
            pool.name,
            wanted,
            need,
            {device: _crew(device, living, need or Need(0)) for device in pool.settings.gpus or ("",)},
            self._images.get(pool.name, pool.name),
            max(scale.due, int(proof)),
            scale.busy,
            waiting.oldest_age + now - waiting.at if scale.due else now - current.reloaded_at if proof else 0.0,
            found.idle_since,
            max((worker.asked_at for worker in staying if is_idle(worker)), default=None),
            found.loaded_at,
            found.absent_since,
            found.resident,
            found.starting,
            spares=spares_wanted(pool),
            replacing=any(worker.stale for worker in staying),
            patient=current.failed and not all(worker.release.current for worker in staying),
            untried=needs_image_trial(pool),
        )

    def _backs_off(self, pool: Pool, now: float) -> bool:
        """It starts nobody now, so it needs no memory."""
        code = pool.code.old
        old = not pool.needs_canary_worker and code is not None and self._templates.forking(code) is not None
        return not (pool.workers.living() or any(allowed(pool, Missing(1, int(old)), now)))

    def _loaded_templates(self) -> dict[str, Template]:
        found: dict[str, Template] = {}
        for template in self._templates:
            image = self._image_of(template.spec.pools)
            before = found.get(image, Template(0, ending=True))
            kept = template.memory if template.kept_for else 0
            ending = before.ending and template.retired
            loading = before.loading or not (template.ready or template.gone or template.why_broken)
            found[image] = Template(before.used + template.memory, ending, before.kept + kept, loading)
        return found

    def _image_of(self, pools: Mapping[str, Any]) -> str:
        return next((self._images[name] for name in pools if name in self._images), next(iter(pools)))

    def status(self) -> dict[str, Any]:
        """For `status`: bytes used by each pool, by templates and on each device, as far as they are measured."""
        crews = {
            name: {d: _crew(d, pool.workers.living(), self._need(pool) or Need(0)) for d in pool.settings.gpus or ("",)}
            for name, pool in self._pools.items()
        }
        devices = {
            device: {
                "budget": budget,
                "used": sum(found[device].on_device for found in crews.values() if device in found),
            }
            for device, budget in self._machine.devices.items()
        }
        return {
            "budget": self._budgets[MACHINE],
            "stated": self._machine.memory is not None,
            "pools": {name: sum(crew.used for crew in found.values()) for name, found in crews.items()},
            "templates": sum(template.memory for template in self._templates),
            "devices": devices,
        }


def _crew(device: str, living: list[WorkerProcess], need: Need) -> Crew:
    """The workers on one device. What is still being loaded counts as it is expected."""
    there = [worker for worker in living if (worker.device or "") == device]
    leaving = sum(worker.leaving for worker in there)
    used = sum(_at_least(worker, worker.memory.unique, need.worker) for worker in there)
    on_device = sum(_at_least(worker, worker.memory.on_device, need.device) for worker in there) if device else 0
    return Crew(len(there) - leaving, leaving, used, on_device)


def _at_least(worker: WorkerProcess, measured: int, expected: int) -> int:
    """Bytes. In its set-up, and if it loads its model with the first job, it may still grow to what is expected."""
    return measured if measured and worker.memory.has_settled else max(measured, expected)
