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

_LOOK_EVERY = 0.2  # seconds
_QUIET = 0.2  # seconds without a change after which a reload begins: editors and git write several files
_LONGEST = 2.0  # seconds after the first change
_NAMED = 3  # files that are named
_MOST_PROBLEMS = 20


class Reloads:
    """`read` reads the configuration again or raises ConfigError; changes of `sources` cause a reload."""

    def __init__(self, read: Callable[[], Settings], sources: SourceWatch | None) -> None:
        self.sources = sources
        self.outcome = ReloadOutcome()
        self._read = read
        self._requested: int | None = None  # by operators so far; None before that is known

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
        try:
            settings = self._read()
            apply(settings)
        except Exception as error:  # not even a fault of the reader's own ends a running supervisor
            problems = error.problems if isinstance(error, ConfigError) else [f"{type(error).__name__}: {error}"]
            self.outcome.refused(why, number, time.time(), problems, current.path)
            return None
        return settings


class ReloadOutcome:
    """The result of the last reload. `number` counts the requests in the database up to this one; None after a signal.

    A pool is `waiting` until a worker with the new code is ready or has failed, then `accepted` or `failed`. A pool
    that has no worker now is `untried`. What comes of it later is in the log. `canaries` names the accepted ones whose
    canary has passed.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._at = 0.0  # Unix seconds; 0.0: there was no reload
        self._refused = False
        self._problems: list[str] = []
        self._pools: dict[str, str] = {}
        self._canaries: list[str] = []
        self._unproven: set[str] = set()  # of which the log has not told yet that the new code works
        self._failed: set[str] = set()  # of which it has told that it does not

    def refused(self, why: str, number: int | None, at: float, problems: list[str], file: Path) -> None:
        """The configuration is invalid; nothing was changed. `at` is Unix seconds."""
        hint = "the previous configuration stays in effect"
        events(process="supervisor").error("reload_refused", why=why, problems=problems, file=str(file), hint=hint)
        self._begin(number, at, {})
        self._refused, self._problems = True, [shortened(problem, 500) for problem in problems]

    def begun(self, number: int | None, at: float, pools: Mapping[str, Pool]) -> None:
        self._begin(number, at, {name: "waiting" for name, pool in sorted(pools.items()) if not pool.closing})
        self._unproven, self._failed = set(self._pools), set()

    def _begin(self, number: int | None, at: float, pools: dict[str, str]) -> None:
        self._number, self._at, self._refused = number, at, False
        self._problems, self._pools, self._canaries = [], pools, []

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
        for name in sorted(self._unproven):
            pool = pools.get(name)
            if pool is None or pool.closing:
                self._settle(name, "gone")
                self._unproven.discard(name)
                continue
            state = pool.code.current.outcome(asleep=pool.asleep)
            if state == "failed" and name not in self._failed:
                self._failed.add(name)
                problem, serves = problem_of(pool, now), old_code_serves(pool)
                log = events(process="supervisor")
                log.error("new_code_failed", pool=name, problem=problem, old_code_serves=serves)
                if self._pools.get(name) == "waiting":
                    self._problems.append(shortened(f"{name}: {problem}", 500))
            elif state == "accepted":
                self._unproven.discard(name)
                has_canary = pool.settings.canary is not None
                canary = "passed" if has_canary else "none"
                events(process="supervisor").info("new_code_accepted", pool=name, canary=canary)
                if has_canary and self._pools.get(name) == "waiting":
                    self._canaries.append(name)
            self._settle(name, state)

    def _settle(self, name: str, state: str) -> None:
        if self._pools.get(name) == "waiting":
            self._pools[name] = state


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
        self._looked = time.monotonic()
        self._changed: set[Path] = set()
        self._first = self._latest = 0.0
        self._awaited = ""  # what a reload that goes on was made for
        self._began = 0.0

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
        return [self._looked + _LOOK_EVERY]

    def due(self, now: float) -> str:
        """What has changed, if a reload should begin now; otherwise empty."""
        if now >= self._looked + _LOOK_EVERY:
            before, self._stamps, self._looked = self._stamps, dict(self._look()), now
            if changed := {path for path, _ in before.items() ^ self._stamps.items()}:
                self._first, self._latest = self._first if self._changed else now, now
                self._changed |= changed
        if not self._changed or now < min(self._latest + _QUIET, self._first + _LONGEST):
            return ""
        self._awaited, self._began = _named(self._changed, self._folder), now
        self._changed = set()
        return self._awaited

    @property
    def waiting(self) -> bool:
        """Whether the result of a reload is still to be told."""
        return bool(self._awaited)

    def tell(self, outcome: Mapping[str, Any] | None, now: float) -> None:
        """Say in one line whether the last reload worked, as soon as that is known."""
        if not self._awaited or outcome is None or outcome["state"] == "running":
            return
        log, took = events(process="supervisor"), round(now - self._began, 2)
        if outcome["state"] == "accepted":
            log.info("changes_loaded", changed=self._awaited, seconds=took)
        elif outcome["state"] == "failed":
            log.error("changes_not_loaded", changed=self._awaited, problems=outcome["problems"])
        self._awaited = ""  # of one that was refused, reload_refused says all

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
