"""What workers of each pool needed when they were last measured, kept in a small file from one start to the next."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from supervisor.config.settings import PoolSettings
from supervisor.domain.memory import Need
from supervisor.system.replacing import replace
from supervisor.telemetry import events

NAME = "sizes.json"
_WORTH = 0.05  # a change that is smaller than this part is not written
_MOST = 1 << 20  # bytes of a file that is read


class KnownSizes:
    """A size counts for a pool with the same settings only. Supervisors of one database share the file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._log = events(process="supervisor")
        self._told = False
        self._new: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, tuple[PoolSettings, str]] = {}
        self._known = self._read()

    def of(self, pool: PoolSettings) -> Need | None:
        """What is known from before; None if nothing is."""
        entry = self._known.get(pool.name)
        if entry is None or entry["settings"] != self._key(pool):
            return None
        return Need(entry["worker"], entry["template"], entry["device"])

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
            self._tell(f"cannot be written: {error.strerror}")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(_MOST))
            return {str(name): _checked(entry) for name, entry in found["pools"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._tell(f"cannot be read: {error.strerror}")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self._tell("is not as it was written")
        return {}

    def _tell(self, problem: str) -> None:
        if not self._told:
            self._told = True
            hint = "the sizes of workers are measured again after the next start"
            self._log.warning("sizes_unknown", file=str(self._path), problem=problem, hint=hint)


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError or LookupError."""
    sizes = {key: entry[key] for key in Need._fields}
    if not all(isinstance(value, int) and 0 <= value < 1 << 63 for value in sizes.values()):
        raise ValueError("not a size")
    return {"settings": str(entry["settings"]), **sizes}


def _settings_key(pool: PoolSettings) -> str:
    """The same as long as a worker can be expected to need the same memory."""
    told = (
        pool.handler,
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
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]
