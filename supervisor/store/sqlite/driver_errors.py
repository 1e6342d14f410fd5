"""What an error of the driver means: for the whole database, for one row, or that another program is writing.

SQLite's result codes decide, never the words: those may be an application's own, from a trigger.
"""

from __future__ import annotations

import errno
import os
import sqlite3

from supervisor.domain.errors import StoreBusy, StoreError, StoreUnavailable, WriteFailed

BUSY_TIMEOUT = 5.0  # seconds that SQLite waits for a foreign writer

_IN_THE_WAY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# The file cannot be used at the moment.
_UNUSABLE = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOTADB,
}
# A violated constraint, a value too large or of a wrong type.
_OF_VALUES = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH}
_HINTS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the database is read-only for this user",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check the path and its permissions",
    sqlite3.SQLITE_NOTADB: "the file is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; run PRAGMA integrity_check and restore a backup",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
}


def result_code(error: BaseException) -> int:
    """SQLite's primary result code; 0 for an error that is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another program was writing, so that a retry may help."""
    return result_code(error) in _IN_THE_WAY


def may_be_a_rows_fault(error: BaseException) -> bool:
    """Whether the contents of a row may have caused this. A general error may be the statement's, too."""
    if isinstance(error, (OverflowError, UnicodeEncodeError, sqlite3.DataError)):
        return True
    return result_code(error) in _OF_VALUES or is_general(error)


def is_general(error: BaseException) -> bool:
    """SQLite has one code for an expression that fails in one row and a statement that does not fit the schema."""
    return result_code(error) == sqlite3.SQLITE_ERROR


def translated(error: sqlite3.Error, path: object, producer: bool = False) -> StoreError:
    """The exception for our callers, with a readable message."""
    text, code = str(error), result_code(error)
    if code in _IN_THE_WAY:
        ours = "; if it is a transaction of this thread or request, pass connection=" if producer else ""
        return StoreBusy(f"{path}: timed out while another transaction held the write lock{ours}")
    hint = _HINTS.get(code)
    if code == sqlite3.SQLITE_IOERR and _is_full(path):
        hint = f"the disk is full: {os.strerror(errno.ENOSPC)}"
    if code == sqlite3.SQLITE_ERROR and "no such table" in text:
        hint = "the job tables are missing; run `supervisor migrate`"
    kind = StoreUnavailable if code in _UNUSABLE else StoreError
    if code == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_WRITE:
        kind = WriteFailed
    return kind(f"{path}: {hint} ({text})" if hint else f"{path}: {text}")


def _is_full(path: object) -> bool:
    """Whether its disk is full; SQLite cannot always tell, for example when it maps a file."""
    try:
        return os.statvfs(os.path.dirname(str(path))).f_bavail == 0  # noqa: PTH120 - a path, or a string
    except OSError:
        return False
