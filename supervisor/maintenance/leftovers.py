"""What a dead supervisor leaves behind on this machine: processes and files."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.store.base import SupervisorRecord, WorkerRecord
from supervisor.system import belonging, kernel, survivors
from supervisor.system.scoreboard import Scoreboard, counters_of, tapes_of
from supervisor.telemetry import events

_PATIENCE = 1.0  # seconds for them to end
_SWEEPS = 3


def scoreboard(dead: SupervisorRecord) -> Scoreboard | None:
    """Its scoreboard, if there still is one. The path may be anything: opening what is no file could take for ever."""
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
    """End the workers that still live, their templates, and what jobs have started. Returns the pids of those workers
    that do not end.

    Only where pids mean what they meant to the dead, so in the same boot on the same host, and only processes that were
    started when the registry says, or that carry the supervisor's mark: whoever else has one's number is a stranger.
    """
    if own is None or not own.boot_id or (own.boot_id, own.host) != (dead.boot_id, dead.host):
        return set()
    known = {worker.pid: worker.pid_started for worker in workers if worker.pid_started is not None}
    living = {pid: started for pid, started in known.items() if kernel.start_ticks(pid) == started}
    templates = _templates(living, board)
    # A template that was stopped sees now that its supervisor is gone, and ends all that it has started, and itself.
    survivors.resume(templates)
    left = survivors.end(living, _PATIENCE)
    survivors.end(survivors.wait(templates, _PATIENCE), _PATIENCE)
    # Not the path that stands in the database: there it may name the scoreboard of a supervisor that lives.
    marked = _end_marked(f"{Path(own.scoreboard).parent}/scoreboard-{dead.id}")
    if ended := {*living, *templates, *marked}:
        events().warning("survivors_ended", dead=dead.id, pids=sorted(ended), left=sorted(left))
    return {*left}


def _end_marked(scoreboard: str) -> set[int]:
    """They may start others until they are ended."""
    ended: set[int] = set()
    for _ in range(_SWEEPS):
        found = belonging.processes_of(scoreboard)
        if not found:
            break
        ended.update(found)
        survivors.end(found, _PATIENCE)
    return ended


def _templates(workers: dict[int, int], board: Scoreboard | None) -> dict[int, int]:
    """The parents of these workers that their supervisor had shown to be its templates, and when they were started."""
    shown = board.supervisor_status().get("templates", []) if board is not None else []
    found = {}
    for parent in {kernel.parent_of(pid) for pid in workers}:
        started = kernel.start_ticks(parent) if parent in shown else None
        if started is not None:
            found[parent] = started
    return found


def remove_files(dead: SupervisorRecord) -> None:
    """Remove its scoreboard, and what lies beside it, as far as these can be reached and are what they are said to be.

    The path stands in the database, where any program may have written it: only a file that has the very name of this
    supervisor's is removed, that is no link, and is ours.
    """
    path = Path(dead.scoreboard)
    if path.name != f"scoreboard-{dead.id}" or not path.is_absolute():
        return
    for file in (tapes_of(path), counters_of(path), path):
        with suppress(OSError, ValueError):
            found = file.lstat()
            if stat.S_ISREG(found.st_mode) and os.geteuid() in (found.st_uid, 0):
                file.unlink()
