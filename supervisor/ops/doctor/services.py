"""What the supervisor works with: a database server and its other hosts, the admin process, and systemd."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from supervisor.config.checks import of_server
from supervisor.config.settings import AdminSettings, Settings
from supervisor.domain.errors import StoreError
from supervisor.domain.text import human, text_of
from supervisor.engine import open_engine
from supervisor.ops.diagnosis import fault, good, note, warning
from supervisor.ops.views import Finding, Level, Overview
from supervisor.store.base import Operations, ServerView
from supervisor.system.published import read_published

_WRONG = 2.0  # seconds that a clock may differ
_OF_A_SUPERVISOR, _OF_A_WORKER = 3, 2  # connections at most
_POOLER = "a pooler, such as PgBouncer in transaction mode, stands before the server"
_UNITS = tuple(Path(name) for name in ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"))
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|min|m|s|h|d)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_KEY = re.compile(r"^(\w+)[ \t]*=[ \t]*(.*)$", re.MULTILINE)
_MARGIN = 5.0  # seconds beyond the longest shutdown_grace


def server(operations: Operations, seen: Overview, *, listening: bool) -> Iterator[Finding]:
    """Nothing for a file. `listening`: there is a `listen_database`."""
    began = time.time()
    state = operations.statistics.server()
    if state is None:
        return
    ahead = (began + time.time()) / 2 - state.time
    if state.standby:
        yield fault("server", "it is a standby, or read-only", "name the primary in the URL")
    yield from pooling(state, listening=listening)
    yield from _clocks(ahead, operations)
    # Connections; programs that enqueue come on top.
    workers = sum(pool.max_workers + pool.spares_wanted for pool in seen.pools)
    most = _OF_A_SUPERVISOR * len(seen.supervisors) + _OF_A_WORKER * workers
    fact = f"{state.connections} of {state.max_connections} in use; the running supervisors need {most} at most"
    if state.pooled or max(most, state.connections) <= state.max_connections * 0.9:
        yield good("connections", f"{fact}{', of the pooler' if state.pooled else ''}")
    else:
        yield warning("connections", fact, "raise max_connections of the server, or run fewer workers")
    if not state.sees_all:
        fact = "the transactions of other users are not visible to this user: one that slows down claims is named late"
        yield note("transactions", fact, "let a superuser GRANT pg_read_all_stats to this user")


def pooler(settings: Settings) -> list[str]:
    """What is to be done about a pooler before the database; nothing if that cannot be asked now."""
    engine, listening = open_engine(settings.database, settings.listen_database), settings.listen_database is not None
    with suppress(StoreError):
        if of_server(settings.database):
            with closing(engine.operations()) as operations:
                found = pooling(operations.statistics.server(), listening=listening)
                return [f"{one.fact}; {one.advice}" for one in found if one.advice]
    return []


def pooling(server: ServerView | None, *, listening: bool) -> Iterator[Finding]:
    """Whether there is a connection for notifications, where a pooler does not pass them on."""
    if server is None or not (server.pooled or listening):
        return
    if not server.pooled:
        yield note("pooler", "no pooler stands before the server", "leave out listen_database")
    elif listening:
        yield good("pooler", f"{_POOLER}; notifications come by the connection of listen_database")
    else:
        fact = f"{_POOLER}: without a direct connection for notifications, a new job waits up to a second"
        yield warning("pooler", fact, "set listen_database to the URL of the server itself")


def _clocks(here: float, operations: Operations) -> Iterator[Finding]:
    """How far this host's clock, and those of the hosts with supervisors, are ahead of the server's."""
    leases = operations.registry.leases()
    hosts = {text_of(one.host): leases[one.id] for one in operations.registry.supervisors() if one.id in leases}
    ahead = {"this host": here} | {host: float(read_published(lease.posted).clock) for host, lease in hosts.items()}
    wrong = {host: seconds for host, seconds in ahead.items() if abs(seconds) >= _WRONG}
    for host, seconds in wrong.items():
        fact = f"the clock of {host} is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the server's"
        yield warning(
            "clocks", fact, "synchronize it; jobs run by the server's clock, but logs and handlers show this one"
        )
    if not wrong:
        others = f", and so do those of {', '.join(hosts)}" if hosts else ""
        yield good("clocks", f"this host's agrees with the server's{others}")


def admin(settings: AdminSettings, seen: Overview) -> Iterator[Finding]:
    """Who may use it, and whether a supervisor serves it."""
    path = settings.unix_path
    if path is not None and path.exists() and path.stat().st_mode & 0o007:
        fact = f"{path}: every user of this machine can use the socket, which requires no token"
        yield fault("admin", fact, f"chmod o= {path}")
    serving = [
        (s.pid, s.admin) for s in seen.supervisors if s.admin is not None and s.admin.pid and not s.admin.problem
    ]
    yield from (good("admin", f"supervisor {pid} listens on {admin.listen}") for pid, admin in serving)
    if not serving and not any(s.admin and s.admin.problem for s in seen.supervisors):  # of which there is a warning
        advice = "if a supervisor is running with this configuration, search its log for admin"
        yield note("admin", f"no supervisor of this database listens on {settings.listen}", advice)


def systemd(settings: Settings, folders: tuple[Path, ...] = _UNITS) -> Iterator[Finding]:
    """Whether the units that run this configuration have the settings that a supervisor needs. Nothing without one."""
    units = {unit.name: unit for folder in reversed(folders) for unit in sorted(folder.glob("*.service"))}
    for name, unit in units.items():  # an earlier folder takes precedence
        # Its keys, with those of drop-ins: the last value counts.
        drop_ins = [path for folder in folders for path in (folder / f"{name}.d").glob("*.conf")]
        keys: dict[str, str] = {}
        with suppress(OSError):
            for path in (unit, *sorted(drop_ins, key=lambda path: path.name)):
                keys |= _KEY.findall(path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " "))
        if _is_ours(keys, settings):
            problems = [problem._replace(fact=f"{name}: {problem.fact}") for problem in _problems(keys, settings)]
            yield from problems or [good("systemd", f"{unit} fits this configuration")]


def _is_ours(keys: Mapping[str, str], settings: Settings) -> bool:
    """Whether it runs `supervisor run` with this configuration file."""
    try:
        words = shlex.split(keys.get("ExecStart", ""))
    except ValueError:
        return False
    if not words or Path(words[0].lstrip("@-:+!")).name != "supervisor" or "run" not in words:
        return False
    given = re.search(r"(?:^|\0)(?:-c\0|--config[=\0])([^\0]*)", "\0".join(words))
    folder = Path(keys.get("WorkingDirectory", "/").lstrip("-"))
    return os.path.realpath(folder / (given[1] if given else "supervisor.toml")) == os.path.realpath(settings.path)


# For each key: its default, which values are right, what another one leads to, and what to do.
_KEYS: tuple[tuple[str, str, str, Level, str, str], ...] = (
    ("KillMode", "control-group", "mixed", "warning", "a stop also signals programs started by handlers",
     "KillMode=mixed: only the supervisor gets SIGTERM, and it drains its workers"),
    ("OOMPolicy", "stop", "continue", "warning", "if the kernel kills one worker, the whole service ends",
     "OOMPolicy=continue"),
    ("Restart", "no", "(?!no$).*", "warning", "a supervisor that dies is not restarted", "Restart=always"),
    ("Type", "simple", "notify.*", "note", "systemd does not know when it is ready",
     "Type=notify and, with WatchdogSec=, the supervisor also reports that it is alive"),
    ("ProcSubset", "all", "(?!pid$).*", "fault", "this hides /proc/sys/kernel/random/boot_id, which recovery needs",
     "remove it"),
)  # fmt: skip


def _problems(keys: Mapping[str, str], settings: Settings) -> Iterator[Finding]:
    grace = max((pool.shutdown_grace for pool in settings.pools.values()), default=0.0)
    allowed = seconds(keys.get("TimeoutStopSec", keys.get("TimeoutSec", "90")))
    if allowed < grace + _MARGIN:
        fact = f"TimeoutStopSec is {human(allowed)}, but running jobs may take {human(grace)} (shutdown_grace)"
        yield fault("systemd", fact, f"TimeoutStopSec={grace + 15:g}, or a shorter shutdown_grace")
    for key, default, right, level, effect, advice in _KEYS:
        value = keys.get(key, default)
        if not re.fullmatch(right, value):
            yield Finding(level, "systemd", f"{key} is {value}: {effect}", advice)
    if keys.get("RuntimeDirectory") and keys.get("RuntimeDirectoryPreserve", "no") == "no":
        fact = "RuntimeDirectoryPreserve is no: after a kill the next start cannot tell which jobs had started"
        yield warning("systemd", fact, "RuntimeDirectoryPreserve=yes")


def seconds(text: str) -> float:
    """A time span in systemd's format: `45`, `1min 30s`, `infinity`."""
    if text.strip() == "infinity":
        return float("inf")
    return sum(float(number) * _SECONDS.get(unit, 1.0) for number, unit in _SPAN.findall(text))
