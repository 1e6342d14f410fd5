"""The tokens of the admin process, one file each: made where they are missing, refused where they are no secret."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.config import Settings
from supervisor.config.lines import Lines
from supervisor.config.settings import AdminSettings
from supervisor.domain.errors import ConfigError
from supervisor.telemetry import events

DEFAULT_NAME = "admin-token"
SHORTEST = 16  # characters
_LONGEST = 4096  # bytes that are read of a file
_RANDOM_BYTES = 32
_OTHERS = 0o006  # of a file's mode: who is neither the owner nor in the group


def granted(settings: Settings, folder: Path) -> Settings:
    """The settings with a token in every place that needs one; the usual file lies in `folder`, the database's own.

    Raises ConfigError where a file cannot be made or used.
    """
    admin = settings.admin
    if admin is None:
        return settings
    if admin.token_file is None and admin.unix_path is None:
        admin = admin._replace(token_file=folder / DEFAULT_NAME)
    faults = []
    for key, path in _files(admin):
        problem = _problem(path, make=True)
        if problem:
            faults.append(f"{settings.path}{_line(settings.path, key)}: admin.{key}: {problem}")
    if faults:
        raise ConfigError(faults)
    return settings._replace(admin=admin)


def problems(settings: Settings) -> dict[str, str]:
    """What is wrong with the files of tokens that are there, by key of `[admin]`; none is made."""
    named = () if settings.admin is None else _files(settings.admin)
    found = {key: _problem(path, make=False) for key, path in named}
    return {key: problem for key, problem in found.items() if problem}


def _files(admin: AdminSettings) -> list[tuple[str, Path]]:
    files = (("token_file", admin.token_file), ("read_token_file", admin.read_token_file))
    return [(key, path) for key, path in files if path is not None]


def _problem(path: Path, *, make: bool) -> str:
    try:
        if make:
            _make(path)
        token_in(path)
    except OSError as error:
        return "" if isinstance(error, FileNotFoundError) and not make else f"{path}: {error.strerror}"
    except ValueError as error:
        return str(error)
    return ""


def _line(path: Path, key: str) -> str:
    """Where the key stands in the configuration, if it does."""
    try:
        line = Lines(path.read_text(encoding="utf-8-sig")).of(("admin", key))
    except (OSError, ValueError):
        return ""
    return f":{line}" if line else ""


def token_in(path: Path) -> str:
    """The token in a file. Raises ValueError, with one sentence, for one that is no secret; OSError as usual."""
    if path.name == DEFAULT_NAME and path.is_symlink():
        raise ValueError(f"{path} is a symbolic link, which nobody of ours has made; remove it")
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        content = file.read(_LONGEST + 1)
    if mode & _OTHERS:
        raise ValueError(f"{path} is open to every user of this machine; chmod 600 it, and take a new token")
    token = content.strip()
    if not token:
        raise ValueError(f"{path} is empty; remove it, and a token is made")
    if len(content) > _LONGEST or not token.isascii() or not token.decode().isprintable() or b" " in token:
        raise ValueError(f"{path} holds no token: one word of printable ASCII characters")
    if len(token) < SHORTEST:
        raise ValueError(f"{path} holds a token of {len(token)} characters; it must have {SHORTEST} at least")
    return token.decode()


def _make(path: Path) -> None:
    """Write a random token, unless the file is there. It appears whole: another supervisor may look right now."""
    if path.exists():
        return
    import secrets  # once in a lifetime

    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_urlsafe(_RANDOM_BYTES)}\n")
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
    events(process="supervisor").info("token_made", file=str(path))
