"""What a dead supervisor leaves behind on this machine: processes and files."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.store.base import SupervisorRecord, WorkerRecord
from supervisor.system import ending, kernel
from supervisor.system.scoreboard import Scoreboard, chunks_of, counters_of, run_logs_of
from supervisor.telemetry import events

_PATIENCE = 1.0  # seconds for them to end
_SWEEPS = 3


def scoreboard(dead: SupervisorRecord) -> Scoreboard | None:
    """Its scoreboard, if it still exists. The path may be anything: opening something else than a file could block."""
    path = Path(dead.scoreboard)
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return None
    return Scoreboard.open(path) if is_file else None


def end_processes(
    dead: SupervisorRecord,
    workers: Sequence[WorkerRecord],
    board: Scoreboard | None,
    own: SupervisorRecord | None,
) -> set[int]:
    """End the workers that are still running, their templates, and processes started by jobs. Returns the pids of
    workers that do not end.

    Only if pids mean the same as they did to the dead supervisor (the same boot of the same host), and only processes
    that were started at the time in the registry, or that carry the supervisor's mark: a pid may have been reused.
    """
    if own is None or not own.boot_id or (own.boot_id, own.host) != (dead.boot_id, dead.host):
        return set()
    known = {worker.pid: worker.pid_started for worker in workers if worker.pid_started is not None}
    living = {pid: started for pid, started in known.items() if kernel.start_ticks(pid) == started}
    templates = _templates(living, board)
    # A stopped template now notices that its supervisor is gone, and ends itself and everything that it started.
    ending.signal_all(templates, signal.SIGCONT)
    left = ending.kill_all(living, _PATIENCE)
    ending.kill_all(ending.wait_for_all(templates, _PATIENCE), _PATIENCE)
    # Not the path in the database: it may name the scoreboard of a live supervisor.
    marked = _end_marked(f"{Path(own.scoreboard).parent}/scoreboard-{dead.id}")
    if ended := {*living, *templates, *marked}:
        events().warning("survivors_ended", dead=dead.id, pids=sorted(ended), left=sorted(left))
    return {*left}


def _end_marked(scoreboard: str) -> set[int]:
    """They may start others until they are gone."""
    ended: set[int] = set()
    for _ in range(_SWEEPS):
        found = ending.processes_of(scoreboard)
        if not found:
            break
        ended.update(found)
        ending.kill_all(found, _PATIENCE)
    return ended


def _templates(workers: dict[int, int], board: Scoreboard | None) -> dict[int, int]:
    """The parents of these workers that their supervisor listed as its templates, and when they were started."""
    shown = board.supervisor_status().get("templates", []) if board is not None else []
    found = {}
    for parent in {kernel.parent_of(pid) for pid in workers}:
        started = kernel.start_ticks(parent) if parent in shown else None
        if started is not None:
            found[parent] = started
    return found


def remove_files(dead: SupervisorRecord) -> None:
    """Remove its scoreboard and the files beside it, as far as they exist and are what they should be.

    The path comes from the database, where any program may have written it: only a file of exactly this supervisor's
    name is removed, and only if it is not a link and belongs to us.
    """
    path = Path(dead.scoreboard)
    if path.name != f"scoreboard-{dead.id}" or not path.is_absolute():
        return
    for file in (run_logs_of(path), chunks_of(path), counters_of(path), path):
        with suppress(OSError, ValueError):
            found = file.lstat()
            if stat.S_ISREG(found.st_mode) and os.geteuid() in (found.st_uid, 0):
                file.unlink()
