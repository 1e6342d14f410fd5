"""The composition root: wires configuration, engine and processes together."""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

import supervisor
from supervisor.config import Settings, load
from supervisor.config.machine import here, of_host, own_host
from supervisor.config.settings import untaken
from supervisor.domain.errors import ConfigError, StoreError
from supervisor.engine import open_engine
from supervisor.ops.admin_files import granted
from supervisor.ops.doctor.machine import file_system, interpreter, names
from supervisor.store.base import Engine, SupervisorRecord
from supervisor.supervision.reloading import SourceWatch
from supervisor.supervision.stopping import Burst, Observer
from supervisor.supervision.supervisor import Supervisor
from supervisor.system import failpoints, standard_streams
from supervisor.system.channel import Channel
from supervisor.system.files import folder_problem, owner_of
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import configure, events

CHECK_SECONDS = 2.0  # for checking the file at the start: about half a gigabyte


def run(
    config: Path,
    *,
    database: str | None = None,
    listen_database: str | None = None,
    pools: Collection[str] = (),
    burst: bool = False,
    observer: Observer | None = None,
    network: bool = False,
    watch: bool = False,
    drain_then_exit: bool = False,
) -> int:
    """`supervisor run`: returns the exit code. Raises ConfigError or StoreError before anything is started.

    `network` allows a network file system under the database. Also raises StoreError if another file replaces the
    database later on. `watch` reloads when files of the application change; raises OSError if they cannot be watched.
    `drain_then_exit` ends it when its host is drained and no job runs.
    """

    def read() -> Settings:
        found = load(config, database=database, to_run=pools)
        if burst:  # which ends when its jobs do
            found = found._replace(pools={name: pool._replace(spares=0) for name, pool in found.pools.items()})
        return found if listen_database is None else found._replace(listen_database=listen_database)

    def reread() -> Settings:
        """What the links lead to now, if they have been moved: the configuration, and the folder of what is started."""
        found = of_host(_warn_about_untaken(read()), pools, host)
        for key in ("database", "listen_database"):
            if getattr(found, key) != getattr(whole, key):
                raise ConfigError([f"{found.path}: {key}: a reload cannot change it; restart the supervisor"])
        found = granted(found, engine.database.folder)
        os.chdir(start)
        return found

    standard_streams.make_safe()
    whole = read()
    start = whole.path.parent if whole.folder.samefile(".") else here()
    config, database = whole.path, database and whole.database  # absolute: the current folder may be deleted
    sys.path[:] = [str(start) if entry == str(start.resolve()) else entry for entry in sys.path]  # that of `python -m`
    host = own_host(whole.database)
    settings = of_host(whole, pools, host)
    gc.enable()  # the command line starts with it disabled
    configure(settings.log.format, settings.log.level)
    _check_installation()
    sources = _watch(settings) if watch else None
    _warn_about_untaken(whole)
    engine = open_engine(settings.database, settings.listen_database)
    engine.preload()
    if settings.listen_database is not None:
        os.environ["SUPERVISOR_LISTEN_DATABASE"] = settings.listen_database  # for the queues of handlers
    _check_file_system(engine, network)
    if engine.database.exists() and not engine.database.check_integrity(CHECK_SECONDS):
        events(process="supervisor").info(
            "check_cut_short", seconds=CHECK_SECONDS, hint="a large file; no damage found so far"
        )
    engine.database.migrate()
    failpoints.become("supervisor")
    engine.database.pin()
    identity = str(uuid.uuid4())
    owner = engine.ownership.claim(identity)
    try:
        settings = granted(settings, engine.database.folder)
        board = _make_board(runtime_folder(engine) / f"scoreboard-{identity}")
    except (ConfigError, StoreError):
        owner.release(registered=False)
        raise
    record = SupervisorRecord(
        id=identity,
        pid=os.getpid(),
        host=host,
        machine_id=engine.ownership.machine_id,
        boot_id=engine.ownership.boot_id,
        owner_lock=str(owner.path),
        scoreboard=str(board.path),
        config=str(settings.path),
        version=supervisor.__version__,
        started_at=time.time(),
        node=engine.ownership.node,
    )

    def serve_admin(settings: Settings, channel: Channel, listening: socket.socket, wakes: Mapping[str, int]) -> int:
        from supervisor.admin.app import become  # in the child only: no other process loads a web framework

        return become(settings, engine, board, channel, listening, wakes, identity)

    return Supervisor(
        settings,
        engine,
        board,
        owner,
        record,
        read=reread,
        serve_admin=serve_admin,
        burst=Burst(observer) if burst else None,
        sources=sources,
        drain_then_exit=drain_then_exit,
    ).run()


def _watch(settings: Settings) -> SourceWatch:
    # Python takes compiled code for current while its source has the same size and was written in the same second.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sources = SourceWatch(settings)
    events(process="supervisor").info("watching", folder=str(settings.path.parent))
    return sources


def _warn_about_untaken(settings: Settings) -> Settings:
    """Name what makes jobs that would accumulate, unless another supervisor takes them."""
    for about, problem in untaken(settings):
        events(process="supervisor").warning(f"{about}_unhandled", problem=problem)
    return settings


def _check_file_system(engine: Engine, network: bool) -> None:
    """SQLite over a network file system loses data sooner or later; allowing it must be explicit."""
    file = engine.database.file
    if file is None or not file.parent.is_dir():
        return
    finding = file_system(file.parent)
    if finding.level == "fault" and not network:
        raise StoreError(f"{finding.fact}; {finding.advice}, or run with --allow-network-file-system at your own risk")
    if finding.level == "fault":
        events(process="supervisor").warning("network_file_system", detail=finding.fact)


def _make_board(path: Path) -> Scoreboard:
    try:
        return Scoreboard.create(path)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot create the scoreboard: {error.strerror}") from None


def _check_installation() -> None:
    """If supervisord's distribution is also installed, it is unclear whose package `supervisor` is imported."""
    if (finding := names()).level == "fault":
        raise ConfigError([f"{finding.fact}: {finding.advice}"])
    if (finding := interpreter()).level == "warning":
        events(process="supervisor").warning("untested_python", detail=finding.fact, hint=finding.advice)


def runtime_folder(engine: Engine) -> Path:
    """The folder for scoreboards: $RUNTIME_DIRECTORY (systemd's), else $XDG_RUNTIME_DIR, else next to the database."""
    for variable, name in (("RUNTIME_DIRECTORY", ""), ("XDG_RUNTIME_DIR", "job-supervisor")):
        value = os.environ.get(variable, "").partition(":")[0]
        if value and os.access(value, os.W_OK | os.X_OK):
            folder = Path(value, name)
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise StoreError(f"{folder}: cannot make the runtime folder: {error.strerror}") from None
            # systemd's own may be a link: the checks of our own folder apply to its target.
            owners = set() if engine.database.file is None else owner_of(engine.database.file)
            problem = folder_problem(folder if name else folder.resolve(), owners)
            if problem:
                raise StoreError(problem)
            return folder
    return engine.database.folder
