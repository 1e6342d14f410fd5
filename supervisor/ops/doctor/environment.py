"""The interpreter and its libraries."""

from __future__ import annotations

import importlib.util
import platform
import sqlite3
import sys
import sysconfig
from importlib import metadata

from supervisor.ops.diagnosis import Finding, fault, good, note, warning

_NEWEST_PYTHON = (3, 15)
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_FIXED_SQLITE = (3, 51, 3)  # connections that write and checkpoint at once

_OTHER_SQLITE = ("apsw", "pysqlite3", "sqlean", "pysqlcipher3", "sqlcipher3")

OUR_NAME = "job-supervisor"
THEIR_NAME = "supervisor"  # supervisord's distribution, with an import package of the same name


def interpreter() -> Finding:
    version = platform.python_version()
    if not sys.platform.startswith("linux"):
        return fault("system", f"this is {sys.platform}", "run the supervisor on Linux")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return warning(
            "python",
            f"Python {version} in {sys.prefix} is free-threaded, a build with which job-supervisor is not tested",
            "use the usual build of this version: workers are processes, so they use all cores with it, too",
        )
    if sys.version_info[:2] > _NEWEST_PYTHON:
        newest = ".".join(map(str, _NEWEST_PYTHON))
        return note("python", f"Python {version} in {sys.prefix}: newer than {newest}, the newest version tested")
    return good("python", f"Python {version} in {sys.prefix}")


def sqlite_library() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        return fault("sqlite", f"SQLite {version} is too old", "use a Python with SQLite 3.37 or newer")
    if sqlite3.sqlite_version_info < _FIXED_SQLITE:
        return note(
            "sqlite",
            f"SQLite {version}: before 3.51.3, programs that write and checkpoint at the same time can, "
            "very rarely, damage a database",
            "leave checkpoints to the supervisor, and keep backups: `supervisor backup FILE`",
        )
    return good("sqlite", f"SQLite {version}")


def other_sqlite() -> Finding | None:
    """Packages with their own copy of SQLite: two copies in one process break each other's file locks."""
    found = [name for name in _OTHER_SQLITE if importlib.util.find_spec(name) is not None]
    if not found:
        return None
    return note(
        "sqlite",
        f"{', '.join(found)} can be imported here and contains its own SQLite library; two libraries that use one file "
        "in one process break each other's locks",
        "a handler must not open the jobs database with it; other files are safe",
    )


def names() -> Finding:
    """PyPI's `supervisor` (supervisord) has a package with the same import name."""
    try:
        theirs = metadata.version(THEIR_NAME)
    except metadata.PackageNotFoundError:
        return good("names", "no other distribution contains a package `supervisor`")
    return fault(
        "names",
        f"supervisord's distribution `{THEIR_NAME}` {theirs} is installed beside `{OUR_NAME}`, and both "
        "contain a package `supervisor`",
        f"pip uninstall {THEIR_NAME} {OUR_NAME}, then pip install {OUR_NAME} alone; keep supervisord in a "
        "separate environment",
    )
