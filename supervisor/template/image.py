"""The image that workers are forked from: loads it, and checks for what a fork would break.

A fork copies one thread only, and both sides continue with the same connections and the same GPU context. A
library that uses any of these hangs or breaks in the child, or breaks the parent, much later and in a
different place. So the image is checked before the first fork.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import socket
import stat
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config.pool_settings import PoolSettings
from supervisor.system import ending, kernel
from supervisor.worker.context import Board, Context
from supervisor.worker.environment import limit_threads
from supervisor.worker.handler import Handler, HandlerError
from supervisor.worker.loader import load, search_first

_GPU = "/dev/nvidia"
_SQLITE = b"SQLite format 3\0"
_EVENT_LOOP = "anon_inode:[eventpoll]"
_PARTING = 0.2  # seconds until joined threads are gone for the kernel, too
_GATHERING = 10.0  # seconds at most to make the model cheap to fork; a gigabyte takes one or two
_MOST_NAMED = 3


class Finding(NamedTuple):
    """Something that a fork would break, and the alternative."""

    what: str
    advice: str
    gpu: bool = False


def findings(own: Mapping[int, str], database: Path | None = None) -> list[Finding]:
    """Everything in this process that a fork would break; empty for a safe image. `own` is what was open before
    anything of the handler was loaded, `database` the configured one, if it is a file.
    """
    opened = {number: target for number, target in descriptors().items() if own.get(number) != target}
    looks: list[tuple[Iterable[str], str, str]] = [
        (_threads(), "{} ({})", "make the library single-threaded"),
        ([t for t in opened.values() if t.startswith(_GPU)], "a CUDA context ({1})", "use the GPU in the worker"),
        (
            [target for number, target in opened.items() if _is_database(number, database)],
            "an open database ({1})",
            "open connections in the worker",
        ),
        (_connections(opened), "a network connection ({1})", "open connections in the worker"),
        ([t for t in opened.values() if t == _EVENT_LOOP], "an event loop", "run it in the worker"),
        (_children(), "a process that it has started ({1})", "start it in the worker"),
    ]
    found = []
    for things, words, advice in looks:
        if names := list(dict.fromkeys(things)):
            count = f"{len(names)} threads" if len(names) > 1 else "a thread"
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            what = words.format(count, ", ".join(names[:_MOST_NAMED]) + more)
            found.append(Finding(what, advice, gpu="CUDA" in words))
    return found


def prepare(pool: PoolSettings, folder: Path, board: Path, url: str) -> None:
    """Set the pool's environment, with the database's URL, and its folders first on sys.path."""
    ending.mark_processes(board)
    if pool.preloads:
        limit_threads(pool, pool.threads or 1)
    os.environ["SUPERVISOR_DATABASE"] = url
    os.environ.update(pool.env)
    search_first(pool.path, folder)


def load_image(pool: PoolSettings, database: Path | None, warn: Callable[..., Any]) -> Handler | None:
    """Load what every worker of the pool would have to load. Returns the handler if it has been set up as well.

    Raises HandlerError with one sentence, also for an image that must not be forked; if a fork may only break
    something, `warn` gets an event.
    """
    if not pool.preloads:
        return None
    own = descriptors()
    handler: Handler | None = None
    try:
        handler = load(pool.handler, batches=pool.preload_setup and pool.batch_size > 1)
    except HandlerError:
        # What this pool lacks in the module is reported by its own workers: other pools share the image.
        if pool.preload_setup or pool.handler.partition(":")[0] not in sys.modules:
            raise
    for name in pool.middleware:  # only imported here; what is wrong with it is reported by the workers
        with contextlib.suppress(Exception):
            importlib.import_module(name.partition(":")[0])
    names = [*pool.handler.partition(":")[0].split(","), *pool.middleware]
    _finish_imports({"supervisor", *(name.partition(":")[0].partition(".")[0] for name in names)})
    _judge(pool, "importing it", 'start = "spawn"', findings(own, database), warn)
    if handler is None or not pool.preload_setup:
        return None
    _set_up(handler, pool)
    _judge(pool, "its set-up", "preload_setup = false", findings(own, database), warn)
    kernel.gather_pages(min(_GATHERING, pool.startup_timeout / 10))
    return handler


def _finish_imports(packages: set[str]) -> None:
    """Load what modules of these packages import lazily, from Python 3.15 on: else each worker would, for itself.

    What cannot be loaded is reported by the code that needs it.
    """
    lazy, seen = getattr(types, "LazyImportType", None), set[str]()
    while lazy and (new := {name for name in sys.modules if name.partition(".")[0] in packages} - seen):
        seen |= new
        for module in map(sys.modules.get, new):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if type(value) is lazy:
                    with contextlib.suppress(Exception):
                        getattr(module, name)


def _set_up(handler: Handler, pool: PoolSettings) -> None:
    ctx = Context(Board(), capabilities=pool.capabilities, options=pool.options)
    try:
        handler.set_up_before_fork(ctx)
    except HandlerError:
        raise
    except BaseException as error:
        traceback.print_exc()
        raise HandlerError(f"set-up failed: {type(error).__name__}: {error}") from error


def _judge(pool: PoolSettings, after: str, instead: str, found: list[Finding], warn: Callable[..., Any]) -> None:
    if not found:
        return
    what = " and ".join(finding.what for finding in found)
    advice = ", ".join(dict.fromkeys(finding.advice for finding in found))
    if pool.preload_setup:
        alone = "" if "preload_setup" in instead else " and preload_setup = false"
        raise HandlerError(
            f"{pool.handler}: {after} left {what} in the image that workers are forked from, which two "
            f"processes cannot share: {advice}, or write {instead}{alone}"
        )
    if pool.gpus and any(finding.gpu for finding in found):
        raise HandlerError(
            f"{pool.handler}: {after} left {what} in the image that workers are forked from, so that no worker "
            f"could have a device of its own: use the GPU in setup, or write {instead}"
        )
    warn("unsafe_to_fork", found=what, hint=f"{advice}, or write {instead}")


def descriptors() -> dict[int, str]:
    """The open descriptors: the number, and the kernel's name for it."""
    found = {}
    for number in kernel.open_descriptors():
        try:
            found[number] = str(Path(f"/proc/self/fd/{number}").readlink())
        except OSError:
            continue  # another thread has closed it
    return found


def _threads() -> list[str]:
    """The names of all threads but this one; a thread that has just been joined may be listed for a moment."""
    until = time.monotonic() + _PARTING
    while True:
        others = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
        if not others or time.monotonic() >= until:
            return [f"{_text(task / 'comm')} {task.name}" for task in others]
        time.sleep(0.01)


def _is_database(number: int, configured: Path | None) -> bool:
    """The configured one, or an SQLite file open for writing; a file that is only read is a library's own data."""
    try:
        found = os.fstat(number)
        if configured is not None and os.path.samestat(found, configured.stat()):
            return True
        writable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        # Through the existing descriptor: opening and closing the file would release the locks on it.
        return stat.S_ISREG(found.st_mode) and writable and os.pread(number, len(_SQLITE), 0) == _SQLITE
    except OSError:
        return False


def _connections(opened: Mapping[int, str]) -> list[str]:
    """The peers of our sockets. A nameless peer is this process itself: a pair made to wake an event loop.

    Datagrams, for example to the system's log, arrive whole from any process.
    """
    found = []
    for number, target in opened.items():
        if target.startswith("socket:"):
            try:
                with socket.socket(fileno=os.dup(number)) as copy:
                    peer = copy.getpeername() if copy.type != socket.SOCK_DGRAM else None
            except OSError:
                continue  # it is not connected
            if peer:
                found.append(f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) > 1 else str(peer))
    return found


def _children() -> list[str]:
    """A worker's end would end them: its leftovers become children of its template, too."""
    return [f"{_text(Path(f'/proc/{pid}/comm'))} {pid}" for pid in kernel.children(os.getpid()) or ()]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"
