"""The configuration: `supervisor.toml` as frozen, validated settings.

    settings.py   what the program works with: plain frozen dataclasses
    shape.py      what may be written in the file: keys, kinds of values, defaults
    pools.py      `[defaults]` and `[pools.*]` laid over each other, and what must hold between keys
    database.py   the database's address
    programs.py   where the programs of `command` are, if they are there
    admin.py      `[admin]`, and whether what it needs is installed
    cores.py      whether the cores of `cpu_affinity` are there
    lines.py      on which line a key stands
    problems.py   every fault of a file, gathered and put into words
    reader.py     the way from the text to the settings

Importing this package, or unpickling settings in a worker, loads nothing beyond the standard library:
pydantic stays out of the image that workers are forked from and comes in with the first `load`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from supervisor.config.settings import LogSettings, PoolSettings, RetentionSettings, Settings
from supervisor.domain.errors import ConfigError

__all__ = ["LogSettings", "PoolSettings", "RetentionSettings", "Settings", "load", "locate"]

DEFAULT_FILE = Path("supervisor.toml")
VARIABLE = "SUPERVISOR_CONFIG"


def load(path: Path, *, database: str | None = None, to_run: Collection[str] | None = None) -> Settings:
    """The settings in the file at `path`; `database` (a URL) replaces the file's own.

    A relative path in the file's URL starts at the file's folder, one in `database` at the current
    folder, as on any command line. With `to_run`, the programs of these pools (of all, if it is empty)
    must be on this machine. Raises ConfigError, which lists every fault of the file at once, each with
    file, line and key.
    """
    from supervisor.config.reader import read

    return read(path, database, to_run)


def locate(explicit: Path | None) -> Path:
    """Which file to load: `explicit`, else ./supervisor.toml, else the one that $SUPERVISOR_CONFIG names.

    Only the second is looked at here; whether the others exist is for `load` to say. Raises ConfigError
    when nothing names a file.
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
            "`supervisor init` writes a starter, `--config FILE` names another file"
        ]
    )
