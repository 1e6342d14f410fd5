"""What one worker of a pool needs: as measured since the last reload, and as known from earlier starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config.settings import PoolSettings
from supervisor.domain.tenants import Need
from supervisor.system.files import replace
from supervisor.telemetry import events

PERIOD = 600.0  # seconds for which a measurement counts at least
NAME = "sizes.json"
_WORTH = 0.05  # a change that is smaller than this part is not written
_MOST = 1 << 20  # bytes of a file that is read


class RecentPeak(NamedTuple):
    """The largest of the values seen lately. Of two periods, so that a value counts for one period at least, and until
    the next values are seen. Times are monotonic seconds.
    """

    latest: int = 0
    before: int = 0
    began: float = 0.0

    @property
    def value(self) -> int:
        return max(self.latest, self.before)

    def over(self, now: float) -> bool:
        """Whether a new period begins with the next values."""
        return now - self.began >= PERIOD

    def seen(self, values: Iterable[int], now: float) -> RecentPeak:
        most = max(values, default=0)
        if not self.value:
            return RecentPeak(most, 0, now)
        return RecentPeak(most, self.latest, now) if self.over(now) else self._replace(latest=max(self.latest, most))


@dataclass(slots=True)
class WorkerSize:
    """What one worker needs, as measured since the last reload; bytes."""

    memory: RecentPeak = field(default_factory=RecentPeak)  # 0: not measured
    has_settled: bool = False  # one was measured behind a job: before its first one, a worker may still grow
    on_device: RecentPeak | None = None  # None: not measured
    metered: bool = False  # the memory of every worker is measured


class KnownSizes:
    """Sizes in a small file, from one start to the next. One counts for a pool with the same settings only. Supervisors
    of one database share the file.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._warned = False
        self._new: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, tuple[PoolSettings, str]] = {}
        self._known = self._read()

    def of(self, pool: PoolSettings) -> Need | None:
        """What is known from before; None if nothing is."""
        entry = self._known.get(pool.name)
        if entry is None or entry["settings"] != self._key(pool):
            return None
        return Need(*(entry[part] for part in Need._fields))

    def learn(self, pool: PoolSettings, need: Need) -> None:
        """Remember a measurement; `save` writes it."""
        before = self.of(pool)
        if before is None or any(abs(new - old) > _WORTH * old for new, old in zip(need, before, strict=True)):
            self._known[pool.name] = self._new[pool.name] = {"settings": self._key(pool), **need._asdict()}

    def _key(self, pool: PoolSettings) -> str:
        settings, key = self._keys.get(pool.name, (None, ""))
        if settings is not pool:
            key = _settings_key(pool)
            self._keys[pool.name] = pool, key
        return key

    def save(self) -> None:
        """Write what is new. The file is replaced as a whole; whoever writes last at the same moment wins."""
        if not self._new:
            return
        self._known = self._read() | self._known | self._new
        self._new = {}
        try:
            replace(self._path, json.dumps({"version": 1, "pools": self._known}), mode=0o666)
        except OSError as error:
            self._warn(f"cannot be written: {error.strerror}")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(_MOST))
            return {str(name): _checked(entry) for name, entry in found["pools"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._warn(f"cannot be read: {error.strerror}")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self._warn("is not as it was written")
        return {}

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            hint = "the sizes of workers are measured again after the next start"
            events(process="supervisor").warning("sizes_unknown", file=str(self._path), problem=problem, hint=hint)


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError or LookupError."""
    sizes = {key: entry[key] for key in Need._fields}
    if not all(isinstance(value, int) and 0 <= value < 1 << 63 for value in sizes.values()):
        raise ValueError("not a size")
    return {"settings": str(entry["settings"]), **sizes}


def _settings_key(pool: PoolSettings) -> str:
    """The same as long as a worker can be expected to need the same memory."""
    expected = (
        pool.handler,
        pool.path,
        pool.command,
        sorted(pool.options.items(), key=str),
        sorted(pool.env.items()),
        pool.capabilities,
        pool.start,
        pool.preload,
        pool.preload_setup,
        pool.threads,
        pool.concurrency,
        pool.batch_size,
        bool(pool.gpus),
    )
    return hashlib.sha256(repr(expected).encode()).hexdigest()[:16]
