"""The configuration: `supervisor.toml` as frozen, validated settings.

It needs only the standard library: every command reads the configuration, and pydantic takes longer to import than most
commands take to run. `settings.py` has every key with its check and its default; it loads nothing of the reader, which
workers do not need.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from supervisor.config.pool_settings import PoolSettings
from supervisor.config.settings import LogSettings, RetentionSettings, Settings
from supervisor.domain.errors import ConfigError

__all__ = ["LogSettings", "PoolSettings", "RetentionSettings", "Settings", "load", "locate"]

DEFAULT_FILE = Path("supervisor.toml")
VARIABLE = "SUPERVISOR_CONFIG"


def load(
    path: Path, *, database: str | None = None, to_run: Collection[str] | None = None, sources: bool = True
) -> Settings:
    """The settings in the file at `path`; `database` (a URL) replaces the file's own.

    A relative path in the file's URL starts at the file's folder, one in `database` at the current
    folder, as usual on a command line. Links to folders are followed now, so that the settings stay those of one
    release when a link is moved. With `to_run`, the programs of these pools (of all, if it is empty) must exist on this
    machine. Without `sources`, modules with tasks may have faults; their types are then unknown.
    Raises ConfigError, which lists every problem of the file at once, each with file, line and key.
    """
    from supervisor.config.reader import read

    return read(path, database, to_run, sources)


def locate(explicit: Path | None) -> Path:
    """Which file to load: `explicit`, else ./supervisor.toml, else the one named by $SUPERVISOR_CONFIG.

    Only the second is checked here; `load` reports whether the others exist. Raises ConfigError if
    nothing names a file.
    """
    if explicit is not None:
        return explicit
    if DEFAULT_FILE.exists():
        return DEFAULT_FILE
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    raise ConfigError(
        [
            f"there is no {DEFAULT_FILE} in this folder and ${VARIABLE} is not set; "
            "`supervisor init` writes a starter file, `--config FILE` names another file"
        ]
    )
