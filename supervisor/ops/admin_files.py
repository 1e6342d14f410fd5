"""The files of the admin process: its tokens, one file each, which are created if missing and refused if they are not
secret, and the folder of uploaded files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from supervisor.config.settings import AdminSettings, Settings
from supervisor.domain.errors import ConfigError
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from supervisor.system.spool import folder_problem
from supervisor.telemetry import events

DEFAULT_TOKEN = "admin-token"  # noqa: S105 - a file's name
DEFAULT_FOLDER = "spool"
_TOKEN = re.compile(rb"[!-~]{16,4096}")
_OTHERS = 0o006  # mode bits of users who are neither the owner nor in the group


def granted(settings: Settings, folder: Path) -> Settings:
    """The settings with a token file wherever one is needed; the default file is in `folder`, the database's folder.

    Raises ConfigError if a file cannot be created or used.
    """
    admin = settings.admin
    if admin is None:
        return settings
    if admin.token_file is None and admin.unix_path is None:
        admin = admin._replace(token_file=folder / DEFAULT_TOKEN)
    if faults := token_problems(admin, make=True):
        raise ConfigError([f"{settings.path}: admin.{key}: {problem}" for key, problem in faults.items()])
    return settings._replace(admin=admin)


def token_problems(admin: AdminSettings, *, make: bool) -> dict[str, str]:
    """The problems of the token files, by key of `[admin]`. Those that are missing are created with `make`."""
    found = {}
    for key, path in (("token_file", admin.token_file), ("read_token_file", admin.read_token_file)):
        try:
            if path is not None and (make or path.exists()):
                if make:
                    _make(path)
                token_in(path)
        except OSError as error:
            found[key] = f"{path}: {error.strerror}"
        except ValueError as error:
            found[key] = str(error)
    return found


def token_in(path: Path) -> str:
    """The token in a file. Raises ValueError, with one sentence, if it is not secret or invalid; OSError as usual."""
    if path.name == DEFAULT_TOKEN and path.is_symlink():
        raise ValueError(f"{path} is a symbolic link that the supervisor did not create; remove it")
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        content = file.read(5000)
    if mode & _OTHERS:
        raise ValueError(f"{path} is open to every user of this machine; chmod 600 it and use a new token")
    if (token := _TOKEN.fullmatch(content.strip())) is None:
        raise ValueError(
            f"{path} does not contain a token: one word of at least 16 printable ASCII characters; "
            "remove it for a new one"
        )
    return token[0].decode()


def _make(path: Path) -> None:
    """Write a random token, unless the file exists. The file appears atomically: another supervisor may read it."""
    if path.exists():
        return
    import secrets  # rarely needed

    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_urlsafe()}\n")
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
    events(process="supervisor").info("token_made", file=str(path))


def upload_folder(settings: Settings, engine: Engine) -> Path | None:
    """None if files are not taken: the hosts of a server have no folder in common, unless the configuration says so."""
    if settings.spool.folder is not None:
        return settings.spool.folder
    return None if engine.database.file is None else engine.database.folder / DEFAULT_FOLDER


def upload_problem(settings: Settings) -> str:
    """Why the folder cannot be used, in one sentence; empty if it can, and without an admin process."""
    if settings.admin is None:
        return ""
    folder = upload_folder(settings, open_engine(settings.database))
    if folder is None or (settings.spool.folder is None and not folder.parent.exists()):  # `run` makes it
        return ""
    return folder_problem(folder)
