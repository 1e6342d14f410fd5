"""Reloads, on a signal, at an operator's request, or after changes of watched files; and what came of the last one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from supervisor.config.settings import Settings
from supervisor.domain.errors import ConfigError
from supervisor.domain.text import shortened
from supervisor.supervision.pool import Pool, old_code_serves, problem_of
from supervisor.telemetry import events

_LOOK_EVERY = 0.2  # seconds; a reload begins when nothing has changed between two looks
_NAMED = 3  # files that are named
_MOST_PROBLEMS = 20


class Reloads:
    """Reads the configuration again with `read`, which may raise ConfigError, and knows what came of the last reload.
    Changes of `sources` cause one.

    `number` counts the requests of operators up to the last one; None after a signal. A pool is `waiting` until a
    worker with the new code is ready or has failed, then `accepted` or `failed`; one that has no worker now is
    `untried`. What comes of it later is in the log. `canaries` names the accepted ones whose canary has passed.
    """

    def __init__(self, read: Callable[[], Settings], sources: SourceWatch | None) -> None:
        self.sources = sources
        self._read = read
        self._requested: int | None = None  # by operators so far; None before that is known
        self._number: int | None = None
        self._at = 0.0  # Unix seconds; 0.0: there was no reload
        self._refused = False
        self._problems: list[str] = []
        self._pools: dict[str, str] = {}
        self._canaries: list[str] = []
        self._latest: dict[str, str] = {}  # the same, and later, of those whose new code has not worked yet

    def requested(self, number: int) -> bool:
        """Whether an operator has asked for a reload since the last call; `number` counts the requests."""
        before, self._requested = self._requested, number
        return before is not None and number > before

    def load(
        self, why: str, number: int | None, current: Settings, apply: Callable[[Settings], None]
    ) -> Settings | None:
        """Read the configuration again and apply it. Returns None if it is invalid or cannot be applied: then nothing
        has changed.
        """
        self._number, self._at, self._refused = number, time.time(), False
        self._problems, self._pools, self._canaries = [], {}, []
        try:
            settings = self._read()
            apply(settings)
        except Exception as error:  # not even a fault of the reader's own ends a running supervisor
            problems = error.problems if isinstance(error, ConfigError) else [f"{type(error).__name__}: {error}"]
            self._refused, self._problems = True, [shortened(problem, 500) for problem in problems]
            log, hint = events(process="supervisor"), "the previous configuration stays in effect"
            log.error("reload_refused", why=why, problems=problems, file=str(current.path), hint=hint)
            return None
        return settings

    def begun(self, pools: Mapping[str, Pool]) -> None:
        """New code is being tried in these pools."""
        self._pools = {name: "waiting" for name, pool in sorted(pools.items()) if not pool.closing}
        self._latest = dict(self._pools)

    def status(self) -> dict[str, Any] | None:
        """For `status`; None if there was no reload."""
        if not self._at:
            return None
        over = "failed" if self._problems else "accepted"
        running = "waiting" in self._pools.values()
        return {
            "number": self._number,
            "at": self._at,
            "state": "refused" if self._refused else "running" if running else over,
            "problems": self._problems[:_MOST_PROBLEMS],
            "pools": self._pools,
            "canaries": self._canaries,
        }

    def follow(self, pools: Mapping[str, Pool], now: float) -> None:
        """Update the result of each pool, and tell the log once that its new code does not work, and once that it
        works. `now` is monotonic seconds.
        """
        for name, before in list(self._latest.items()):
            pool = pools.get(name)
            if pool is None or pool.closing:
                self._settle(name, "gone")
                del self._latest[name]
                continue
            state = pool.code.current.outcome(asleep=pool.asleep)
            if state == "accepted":
                has_canary = pool.settings.canary is not None
                canary = "passed" if has_canary else "none"
                events(process="supervisor").info("new_code_accepted", pool=name, canary=canary)
                self._canaries += [name] if self._settle(name, state) and has_canary else []
                del self._latest[name]
            elif state == "failed" and before != "failed":
                self._latest[name] = state
                problem, serves = problem_of(pool, now), old_code_serves(pool)
                log = events(process="supervisor")
                log.error("new_code_failed", pool=name, problem=problem, old_code_serves=serves)
                self._problems += [shortened(f"{name}: {problem}", 500)] if self._settle(name, state) else []
            else:
                self._settle(name, state)

    def _settle(self, name: str, state: str) -> bool:
        """Note the result of a pool, if it has none yet. Returns whether it had none."""
        waited = self._pools.get(name) == "waiting"
        if waited:
            self._pools[name] = state
        return waited


class SourceWatch:
    """For `run --watch`: watches Python files, the configuration, and the files that commands of pools name, below the
    configuration's folder, by their times. Links, hidden folders, virtual environments and installed packages are left
    out.
    """

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.path.parent.resolve()
        self._configuration = self._folder / settings.path.name
        self._programs: set[Path] = set()
        self.follow(settings)
        self._stamps = dict(self._look())
        self._look_at = time.monotonic() + _LOOK_EVERY
        self._changed: set[Path] = set()

    def follow(self, settings: Settings) -> None:
        """Watch the programs of these settings."""
        commands = [word for pool in settings.pools.values() for word in pool.command]
        self._programs = {Path(os.path.normpath(self._folder / word)) for word in commands}

    def _look(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        """Each file with the time of its last change and its inode."""
        for folder, inner, names in os.walk(self._folder):
            inner[:] = [name for name in inner if _is_watched(Path(folder, name))]
            for path in filter(self._is_source, (Path(folder, name) for name in names)):
                with suppress(OSError):  # it is gone again
                    found = path.lstat()
                    yield path, (found.st_mtime_ns, found.st_ino)

    def moments(self) -> list[float | None]:
        """When `due` must be asked, in monotonic seconds."""
        return [self._look_at]

    def due(self, now: float) -> str:
        """What has changed, if a reload should begin now; otherwise empty. Editors and git write several files."""
        if now < self._look_at:
            return ""
        before, self._stamps, self._look_at = self._stamps, dict(self._look()), now + _LOOK_EVERY
        news = {path for path, _ in before.items() ^ self._stamps.items()}
        self._changed |= news
        if news or not self._changed:
            return ""
        changed, self._changed = self._changed, set()
        return _named(changed, self._folder)

    def _is_source(self, path: Path) -> bool:
        if path.suffix == ".py":
            return not path.name.startswith(".")  # such as those of an editor
        return path == self._configuration or path in self._programs


def _is_watched(folder: Path) -> bool:
    left_out = folder.name.startswith(".") or folder.name in ("__pycache__", "node_modules", "site-packages")
    return not (left_out or (folder / "pyvenv.cfg").exists())


def _named(changed: Iterable[Path], folder: Path) -> str:
    names = sorted(str(path.relative_to(folder)) for path in changed)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
