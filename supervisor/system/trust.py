"""Whether an existing file or folder may be used: another user may have put it there on purpose."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_ANYBODY = 0o002


def owner_of(path: Path) -> set[int]:
    """The owner of a file, if it exists."""
    try:
        return {path.stat().st_uid}
    except OSError:
        return set()


def folder_problem(folder: Path, owners: set[int]) -> str:
    """Why a folder must not be used, in a sentence; empty if it may, or does not exist.

    It must be a real folder and belong to this user, to root or to one of `owners`. If only some users may write to its
    parent, as in a folder shared by a group, its creator is one of them.
    """
    try:
        found = folder.lstat()
        beside = folder.parent.stat().st_mode
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder}: {_kind(found.st_mode)} is in the place of our folder; remove it"
    return _foreign(folder, found.st_uid, beside, owners)


def file_problem(path: Path, descriptor: int, owners: set[int]) -> str:
    """The same for an open file: a regular one, without other names, by which it would also be someone else's."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return f"{path}: {_kind(found.st_mode)} is in the place of our file; remove it"
    if found.st_nlink > 1:
        return f"{path}: it has another hard link, so it may be someone else's file; remove it"
    return _foreign(path, found.st_uid, path.parent.stat().st_mode, owners)


def _foreign(path: Path, owner: int, beside: int, owners: set[int]) -> str:
    if owner in (os.geteuid(), 0) or owner in owners or not beside & _ANYBODY:
        return ""
    return f"{path}: it belongs to user {owner}, in a folder where any user may write; remove it"


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"))
    return next(
        (name for is_one, name in kinds if is_one(mode)), "a special file" if not stat.S_ISREG(mode) else "a file"
    )
