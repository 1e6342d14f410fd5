"""Whether the file is whole, found out before anything is built upon it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator

from supervisor.domain.errors import StoreError
from supervisor.store.sqlite.connection import BUSY_TIMEOUT, QUERIES, translated
from supervisor.store.sqlite.place import Place

CHECK = "PRAGMA quick_check"
_OURS = ("jobs", "job_errors", "job_runs", "job_supervisors", "job_workers", "job_controls", "job_meta")


def look_for_damage(place: Place, seconds: float) -> bool:
    """Run SQLite's quick check over the file; where an application has tables in it, too, over ours first.

    For at most so many seconds; returns whether it came to the end of the file. Raises StoreError that names
    the check and what it found, or if the file cannot be opened.
    """
    try:
        with contextlib.closing(_open(place)) as raw, _stopped_after(seconds, raw):
            tables = {name for (name,) in raw.execute(QUERIES.tables) if not name.startswith("sqlite_")}
            first = [f"({table})" for table in _OURS if table in tables] if tables.difference(_OURS) else []
            for what in (*first, ""):
                _insist(raw.execute(f"{CHECK}{what}").fetchall(), place)
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            return False
        raise translated(error, place.database) from None
    except sqlite3.DatabaseError as error:
        if "malformed" not in str(error):
            raise translated(error, place.database) from None
        _insist([(str(error),)], place)
    return True


def _open(place: Place) -> sqlite3.Connection:
    return sqlite3.connect(f"{place.database.as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT)


def _insist(findings: list[tuple[str]], place: Place) -> None:
    if findings != [("ok",)]:
        found = " ".join(findings[0][0].replace("*** in database main ***", "").split())
        raise StoreError(
            f"{place.database}: the file is damaged, as {CHECK} found: {found}; "
            "stop every program that uses it and restore a backup, or save what can be read with `.recover`"
        )


@contextlib.contextmanager
def _stopped_after(seconds: float, raw: sqlite3.Connection) -> Iterator[None]:
    """Interrupt what the connection is doing when the time is up."""
    timer = threading.Timer(seconds, raw.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # we are about to fork: no other thread may be left
