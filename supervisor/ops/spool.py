"""Where the files of requests lie, and whether they can."""

from __future__ import annotations

from pathlib import Path

from supervisor.config.settings import Settings
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from supervisor.system.spool import folder_problem

DEFAULT_NAME = "spool"


def folder_of(settings: Settings, engine: Engine) -> Path | None:
    """None if files are not taken: the hosts of a server have no folder in common, unless the configuration says so."""
    if settings.spool.folder is not None:
        return settings.spool.folder
    return None if engine.database.file is None else engine.database.folder / DEFAULT_NAME


def problem(settings: Settings) -> str:
    """Why the folder cannot be used, in one sentence; empty if it can, and without an admin process."""
    if settings.admin is None or not settings.database:
        return ""
    folder = folder_of(settings, open_engine(settings.database))
    if folder is None or (settings.spool.folder is None and not folder.parent.exists()):  # `run` makes it
        return ""
    return folder_problem(folder)
