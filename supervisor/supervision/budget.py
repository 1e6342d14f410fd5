"""Divides the memory of the machine and of devices between the pools, with the measurements of their workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.config.settings import MachineSettings
from supervisor.domain.division import divide
from supervisor.domain.tenants import (
    MACHINE,
    Need,
    Patience,
    RecentPeak,
    Residency,
    Template,
    Tenant,
    Workers,
)
from supervisor.supervision.device_memory import DeviceMeter
from supervisor.supervision.plan import Missing, allowed
from supervisor.supervision.pool import Pool, is_typical, spares_wanted
from supervisor.supervision.pools import Pools
from supervisor.supervision.templates import Templates
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel, resources

_RESERVE = 0.1  # of the machine's memory, for others, if no budget is stated


class MemoryBudgets:
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
        self._budgets = {MACHINE: memory, **machine.devices}
        self._images = {name: min(self._pools.sharing(pool), default=name) for name, pool in self._pools.items()}
        self._look_again()

    # What is measured

    def learn(self, worker: WorkerProcess) -> None:
        """A worker has been set up."""
        self._meter.look(self._devices_of(self._pools[worker.release.pool]))
        self._look_again()

    def look_around(self, now: float) -> None:
        """Once a tick: a model may be loaded with the first job."""
        running = self._pools.running()
        on_device: dict[str, list[int]] = {}
        for worker in filter(is_typical, self._meter.take(running)):
            on_device.setdefault(worker.release.pool, []).append(worker.memory.on_device)
        for name, used in on_device.items():
            size = self._pools[name].size
            size.on_device = (size.on_device or RecentPeak()).seen(used, now)
        self._meter.repeat(running, now, busy=any(p.scale.busy and self._devices_of(p) for p in self._pools.values()))
        self._look_again()

    def _look_again(self) -> None:
        """Remember what has been measured; whether there may be too little for all pools at their largest."""
        self._measure_templates()
        most = dict.fromkeys(self._budgets, 0)
        images: dict[str, int] = {}
        needs = {name: self._need(pool) for name, pool in self._pools.items()}
        for name, pool in self._pools.items():
            need = needs[name] or Need(0)
            if self._is_measured(pool):
                pool.size.known = need
            workers = max(pool.settings.max_workers, pool.scale.fixed or 0, len(pool.workers))
            workers += pool.settings.spares + 1  # one may be replaced
            most[MACHINE] += workers * need.worker
            for device in self._devices_of(pool):
                most[device] += workers * need.device
            image = self._images.get(name, name)
            images[image] = max(images.get(image, 0), need.template)
        most[MACHINE] += sum(images.values())
        self._scarce = None in needs.values() or any(most[name] > budget for name, budget in self._budgets.items())
        for pool in self._pools.values():
            pool.size.metered = self._scarce or not pool.size.memory.value

    def _measure_templates(self) -> None:
        """Also those without workers: after a reload, a template loads the new code, and perhaps a model, at once."""
        for template in self._templates:
            if template.image.ready and not (template.memory or template.gone):
                template.memory = kernel.memory_shared_with_children(template.child.pid)

    def _need(self, pool: Pool) -> Need | None:
        """As measured, perhaps before the last reload; None if it never was and the budget is stated."""
        size, known = pool.size, pool.size.known
        if not self._is_measured(pool):
            return known or (None if self._machine.memory or self._devices_of(pool) else Need(size.memory.value))
        known = known or Need(0)
        current = [t for t in self._templates if t.current and not t.dismissed]  # one from before a reload may differ
        image = self._images[pool.name]
        return Need(
            size.memory.value if size.has_settled else max(size.memory.value, known.worker),
            max((t.memory for t in current if self._image_of(t.spec.pools) == image), default=0) or known.template,
            known.device if size.on_device is None else size.on_device.value,
        )

    def _is_measured(self, pool: Pool) -> bool:
        on_device = pool.size.on_device is not None or not self._devices_of(pool) or self._meter.broken
        return pool.size.memory.value > 0 and on_device

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
        self._measure_templates()
        tenants = [self._tenant(pool, now) for pool in self._pools.values()]
        grants = divide(
            tenants,
            self._budgets,
            self._loaded_templates(),
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

    def _tenant(self, pool: Pool, now: float) -> Tenant:
        living, scale, current, need = pool.workers.living(), pool.scale, pool.code.current, self._need(pool)
        staying = [worker for worker in living if not worker.leaving]
        wanted = 0 if self._backs_off(pool, now) else 1 if pool.needs_canary_worker else scale.target
        ready, idle = any(worker.is_ready for worker in staying), not (scale.due or scale.busy)
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
            spares_wanted(pool),
            due,
            scale.busy,
            waited,
            pool.residency,
            replacing=any(worker.stale for worker in staying),
            patient=current.failed and not all(worker.release.current for worker in staying),
        )

    def _backs_off(self, pool: Pool, now: float) -> bool:
        """It starts nobody now, so it needs no memory."""
        code = pool.code.old
        old = not pool.needs_canary_worker and code is not None and self._templates.forking(code) is not None
        return not (pool.workers.living() or any(allowed(pool, Missing(1, int(old)), now)))

    def _workers(self, pool: Pool, need: Need | None) -> dict[str, Workers]:
        """Its workers on each device. What is still being loaded counts as it is expected."""
        expected, living = need or Need(0), pool.workers.living()
        found = {}
        for device in pool.settings.gpus or ("",):
            there = [worker for worker in living if (worker.request.device or "") == device]
            leaving = sum(worker.leaving for worker in there)
            used = sum(_at_least(worker, worker.memory.unique, expected.worker) for worker in there)
            on_device = sum(_at_least(worker, worker.memory.on_device, expected.device) for worker in there if device)
            found[device] = Workers(len(there) - leaving, leaving, used, on_device)
        return found

    def _loaded_templates(self) -> dict[str, Template]:
        found: dict[str, Template] = {}
        for template in self._templates:
            image = self._image_of(template.spec.pools)
            before = found.get(image, Template(0, ending=True))
            kept = template.memory if template.kept_for else 0
            ending = before.ending and template.retired
            loading = before.loading or (template.image.loading and not template.gone)
            found[image] = Template(before.used + template.memory, ending, before.kept + kept, loading)
        return found

    def status(self) -> dict[str, Any]:
        """For `status`: bytes used by each pool, by templates and on each device, as far as they are measured."""
        workers = {name: self._workers(pool, self._need(pool)) for name, pool in self._pools.items()}
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
    return measured if measured and worker.memory.has_settled else max(measured, expected)
