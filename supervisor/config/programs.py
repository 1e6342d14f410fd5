"""Where the programs of `command` are on this machine, and whether they exist."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from supervisor.config.problems import Report, shown
from supervisor.config.settings import Settings


def executable(program: str, folder: Path, env: Mapping[str, str]) -> str:
    """The file to execute for the first word of a command.

    A name without a slash is searched on PATH, first the one in `env` (the pool's), then our own; a relative
    path starts at `folder`, the configuration's. Raises ValueError with one sentence.
    """
    if "/" not in program:
        path = env.get("PATH", os.environ.get("PATH", os.defpath))
        found = shutil.which(program, path=os.pathsep.join(str(folder / entry) for entry in path.split(os.pathsep)))
        if found is None:
            raise ValueError(f"there is no program {shown(program)} on PATH; give its full path")
        return found
    file = folder / program
    if not file.exists():
        raise ValueError(f"there is no program {file}")
    if not file.is_file():
        raise ValueError(f"{file} is not a program: it is not a file")
    if not os.access(file, os.X_OK):
        raise ValueError(f"{file} is not executable; run chmod +x on it, or put its interpreter first")
    return str(file)


def report_missing(settings: Settings, report: Report, names: Collection[str]) -> None:
    """Report the missing programs of the pools of these names, or of all pools without names."""
    for name, pool in settings.pools.items():
        if pool.command and (not names or name in names):
            try:
                executable(pool.command[0], settings.folder, pool.env)
            except ValueError as error:
                report.add(("pools", name, "command"), str(error))
