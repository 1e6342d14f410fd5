"""`supervisor init` copies `starter`: a commented configuration and a module with an example task beside it."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.domain.errors import ConfigError, Conflict

_STARTER = Path(__file__).with_name("starter")


def write_starter(folder: Path) -> list[Path]:
    """Write the starter files into `folder`, which is created if necessary, and return their paths.

    Raises Conflict if one of them exists, and ConfigError if they cannot be written.
    """
    files = {folder / "supervisor.toml": _STARTER / "supervisor.toml", folder / "jobs.py": _STARTER / "jobs.py.txt"}
    for path in files:
        if os.path.lexists(path):
            raise Conflict(f"{path} already exists; nothing was written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, starter in files.items():
            path.write_bytes(starter.read_bytes())
    except OSError as error:
        raise ConfigError([f"{folder}: the starter files cannot be written: {error.strerror or error}"]) from None
    return [*files]
