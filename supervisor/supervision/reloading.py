"""Reloads, on a signal, at an operator's request, or after changes of watched files; and what came of the last one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from supervisor.config.settings import Settings
from supervisor.domain.errors import ConfigError
from supervisor.domain.text import shortened
from supervisor.supervision.pool import Pool
from supervisor.telemetry import events

_LOOK_EVERY = 0.2  # seconds; a reload begins when nothing has changed between two looks
_NAMED = 200  # characters of the names of files
_MOST_PROBLEMS = 20


class Reloads:
    """Reads the configuration again with `read`, which may raise ConfigError, and knows what came of the last reload.
    Changes of `sources` cause one.

    `number` counts the requests of operators up to the last one; None after a signal. A pool is `waiting` until a
    worker with the new code is ready or has failed, then `accepted` or `failed`; one that has no worker now is
    `untried`. `canaries` names the accepted ones whose canary has passed.
    """

    def __init__(self, read: Callable[[], Settings], sources: SourceWatch | None) -> None:
        self.sources = sources
        self._read = read
        self._requested: int | None = None  # by operators so far; None before that is known
        self._number: int | None = None
        self._at = 0.0  # Unix seconds; 0.0: there was no reload
        self._problems: list[str] = []  # of a configuration that was refused

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
        self._number, self._at, self._problems = number, time.time(), []
        try:
            settings = self._read()
            apply(settings)
        except Exception as error:  # not even a fault of the reader's own ends a running supervisor
            self._problems = error.problems if isinstance(error, ConfigError) else [f"{type(error).__name__}: {error}"]
            log, hint = events(process="supervisor"), "the previous configuration stays in effect"
            log.error("reload_refused", why=why, problems=self._problems, file=str(current.path), hint=hint)
            return None
        return settings

    def status(self, pools: Mapping[str, Pool], now: float) -> dict[str, Any] | None:
        """For `status`; None if there was no reload. `now` is monotonic seconds."""
        if not self._at:
            return None
        tried = {} if self._problems else {name: pool for name, pool in sorted(pools.items()) if not pool.closing}
        outcomes = {name: pool.code.current.outcome(asleep=pool.asleep) for name, pool in tried.items()}
        failed = [f"{name}: {tried[name].problem(now)}" for name, found in outcomes.items() if found == "failed"]
        over = "refused" if self._problems else "failed" if failed else "accepted"
        return {
            "number": self._number,
            "at": self._at,
            "state": "running" if "waiting" in outcomes.values() else over,
            "problems": [shortened(problem, 500) for problem in (self._problems or failed)[:_MOST_PROBLEMS]],
            "pools": outcomes,
            "canaries": [n for n, pool in tried.items() if pool.settings.canary and outcomes[n] == "accepted"],
        }

    def follow(self, pools: Mapping[str, Pool], now: float) -> None:
        """Tell the log of each pool once that its new code does not work, and once that it works."""
        for pool in pools.values() if self._at else ():
            release, log = pool.code.current, events(process="supervisor")
            before, release.told = release.told, release.outcome(asleep=pool.asleep)
            if release.told == before or before == "accepted" or pool.closing:
                continue
            if release.told == "accepted":
                canary = "none" if pool.settings.canary is None else "passed"
                log.info("new_code_accepted", pool=pool.name, canary=canary)
            elif release.told == "failed":
                problem = pool.problem(now)
                log.error("new_code_failed", pool=pool.name, problem=problem, old_code_serves=pool.old_code_serves)


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
        return shortened(", ".join(sorted(str(path.relative_to(self._folder)) for path in changed)), _NAMED)

    def _is_source(self, path: Path) -> bool:
        if path.suffix == ".py":
            return not path.name.startswith(".")  # such as those of an editor
        return path == self._configuration or path in self._programs


def _is_watched(folder: Path) -> bool:
    left_out = folder.name.startswith(".") or folder.name in ("__pycache__", "node_modules", "site-packages")
    return not (left_out or (folder / "pyvenv.cfg").exists())
