"""Budgets, and what is left of them while memory is divided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from supervisor.domain.memory import MACHINE, Demand, Template, by_resource, per_worker

Bytes = Mapping[str, float]  # by resource


class Ledger:
    """`free` is free now; `coming` is still used by what has been told to leave. What has no budget is not counted.

    Whatever uses a device says so, but everything uses the machine. A worker whose template alone is as large as the
    budget costs nothing, or less: it fits where nobody else is.
    """

    def __init__(
        self, demands: Iterable[Demand], budgets: Mapping[str, int], templates: Mapping[str, Template]
    ) -> None:
        self.budgets = budgets
        self.free: dict[str, float] = dict(budgets)
        self.coming: dict[str, float] = dict.fromkeys(budgets, 0.0)
        for demand in demands:
            for device, crew in demand.crews.items():
                self.take(by_resource(device, crew.used, crew.on_device))
                self.expect(per_worker(device, crew), crew.leaving)
        for template in templates.values():
            self.take({MACHINE: template.used})
            self.expect({MACHINE: template.used}, int(template.ending))

    def take(self, cost: Bytes) -> None:
        for name in cost.keys() & self.free.keys():
            self.free[name] -= max(0.0, cost[name])

    def expect(self, frees: Bytes, times: int = 1) -> None:
        """This will be free; with -1 for `times`, it will not."""
        for name in frees.keys() & self.coming.keys():
            self.coming[name] += frees[name] * times

    def left(self, name: str) -> float:
        return self.free[name] + self.coming[name]

    def over(self) -> list[str]:
        """The budgets that are exceeded, even when everything has left that was told to."""
        return [name for name in self.budgets if self.left(name) < 0]

    def fits_now(self, cost: Bytes) -> bool:
        return not self.missing_now(cost)

    def will_fit(self, cost: Bytes) -> bool:
        return not self.lacking(cost)

    def missing_now(self, cost: Bytes) -> set[str]:
        return {name for name, value in self._counted(cost) if value > self.free[name]}

    def lacking(self, cost: Bytes) -> set[str]:
        """What does not suffice for it, even later."""
        return {name for name, value in self._counted(cost) if value > self.left(name)}

    def capped(self, cost: Bytes) -> dict[str, float]:
        """What needs more than a whole budget may have all of it, alone."""
        return {name: min(value, self.budgets.get(name, value)) for name, value in cost.items()}

    def _counted(self, cost: Bytes) -> list[tuple[str, float]]:
        return [
            (name, value)
            for name, value in self.capped(cost).items()
            if name in self.budgets and (name == MACHINE or value > 0)
        ]
