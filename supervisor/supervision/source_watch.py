"""`run --watch`: reloads when the files of an application change. For development only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from supervisor.config.settings import Settings
from supervisor.system.tree_watch import TreeWatch
from supervisor.telemetry import events

QUIET = 0.2  # seconds without a change after which a reload begins: editors and git write several files
LONGEST = 2.0  # seconds after the first change
_NAMED = 3  # files that are named


class SourceWatch:
    """Watches Python files, the configuration, and the files that commands of pools name, below the configuration's
    folder. Raises OSError if that is not possible.
    """

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.path.parent.resolve()
        self._configuration = self._folder / settings.path.name
        self._programs: set[Path] = set()
        self.follow(settings)
        self._tree = TreeWatch(self._folder, self._is_source)
        self._changed: set[Path] = set()
        self._first = self._latest = 0.0
        self._awaited = ""  # what a reload that goes on was made for
        self._began = 0.0

    def fileno(self) -> int:
        return self._tree.fileno()

    def follow(self, settings: Settings) -> None:
        """Watch the programs of these settings."""
        commands = [word for pool in settings.pools.values() for word in pool.command]
        self._programs = {Path(os.path.normpath(self._folder / word)) for word in commands}

    def hear(self) -> None:
        """Called when the descriptor is readable."""
        changed = self._tree.changed()
        if changed:
            self._latest = time.monotonic()
            self._first = self._first if self._changed else self._latest
            self._changed |= changed

    def moments(self) -> Iterable[float | None]:
        """When `due` must be asked, in monotonic seconds."""
        return [min(self._latest + QUIET, self._first + LONGEST)] if self._changed else []

    def due(self, now: float) -> str:
        """What has changed, if a reload should begin now; otherwise empty."""
        if not self._changed or now < min(self._latest + QUIET, self._first + LONGEST):
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


def _named(changed: Iterable[Path], folder: Path) -> str:
    names = sorted(str(path.relative_to(folder)) for path in changed)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
