"""The settings that the program uses, and in them the keys that `supervisor.toml` may have: what each key may be, and
its value where it is not written. Durations are seconds, sizes are bytes.

Settings are plain values: equal if the configuration is equal, which tells a reload what has changed, and picklable,
for workers that start in a fresh interpreter. No key is compared with another here: `pools.py` and `reader.py` do that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from supervisor.config import checks
from supervisor.config.checks import Entries, Key, Keys, Tables, boolean, duration, listed, memory, one_of
from supervisor.config.limits import of_pools
from supervisor.config.pool_settings import NAMING, POOL, TASK, TYPE, PoolSettings, from_file, key, keys_of
from supervisor.domain.alerts import FAILURES, Alert
from supervisor.domain.enqueueing import MAX_KEY, MAX_PRIORITY
from supervisor.domain.limits import Limits
from supervisor.domain.schedule import Schedule
from supervisor.domain.text import SQLITE_URL, like
from supervisor.domain.values import text_key


@from_file
class RetentionSettings(NamedTuple):
    """How many seconds finished jobs are kept; None keeps them forever."""

    done: float | None = key(checks.retention, 7 * checks.DAY, "How long done and cancelled jobs are kept.")
    failed: float | None = key(checks.retention, 30 * checks.DAY, "How long failed and quarantined jobs are kept.")


@from_file
class LogSettings(NamedTuple):
    """`auto` is `console` on a terminal and `json` elsewhere."""

    format: Literal["auto", "json", "console"] = key(
        one_of("auto", "json", "console"), "auto", '"auto" is "console" on a terminal, "json" elsewhere.'
    )
    level: Literal["debug", "info", "warning", "error"] = key(
        one_of("debug", "info", "warning", "error"), "info", "The least important events that are written."
    )


@from_file
class MachineSettings(NamedTuple):
    """The memory that all pools share: the machine's and that of devices."""

    memory: int | None = key(
        memory,
        None,
        "What all workers, programs and templates may use; without it, nine tenths of the machine's or container's.",
    )
    min_residency: float = key(
        checks.patience, 30.0, "How long a loaded pool keeps its workers at least, whatever waits in others."
    )
    max_wait: float = key(
        duration, 60.0, "How long the oldest job of a pool without workers waits before busy workers of others leave."
    )
    devices: Mapping[str, int] = {}


DEVICE: Keys = {"memory": Key(memory, None, "What all workers together may use of the device.")}
"""The keys of `[devices.NAME]`."""


@from_file
class AdminSettings(NamedTuple):
    """The admin process. `listen` is `host:port` or `unix:/absolute/path`; paths are absolute.

    `hosts` are names besides the loopback's under which browsers may reach it.
    """

    listen: str = key(checks.listen_address, "127.0.0.1:8787", "Where it listens; port 0: any free port.")
    token_file: Path | None = key(
        checks.file_name,
        None,
        "The file with the token; without it `admin-token` next to the database, and none on a Unix socket.",
    )
    read_token_file: Path | None = key(checks.file_name, None, "The file with a token for read-only access.")
    hosts: tuple[str, ...] = key(
        listed(checks.host_name), (), "Names that browsers may use besides `localhost`, `127.0.0.1` and `[::1]`."
    )
    show_payloads: bool = key(boolean, False, "Whether payloads and results are shown, in the API too.")
    allow_remote: bool = key(
        boolean, False, "Whether `listen` may be an address that other machines reach, without encryption."
    )

    @property
    def unix_path(self) -> Path | None:
        """The path of its Unix socket; None for TCP."""
        return Path(self.listen.removeprefix("unix:")) if self.listen.startswith("unix:") else None

    @property
    def address(self) -> tuple[str, int] | None:
        """The IP address, without brackets, and the port; None for a Unix socket."""
        if self.unix_path is not None:
            return None
        host, _, port = self.listen.rpartition(":")
        return "127.0.0.1" if host == "localhost" else host.strip("[]"), int(port)


@from_file
class SpoolSettings(NamedTuple):
    """The files that requests bring."""

    folder: Path | None = key(
        checks.file_name,
        None,
        "Their folder, for one database; without it `spool` next to the database, and none on PostgreSQL.",
    )
    max_file: int = key(memory, 64 << 20, "The largest file.")
    max_total: int = key(
        memory, 1 << 30, "The room for all files; each takes whole blocks of 4 KiB, and one more for its label."
    )
    done: float | None = key(
        checks.retention, 600.0, "How long a file is kept after the success of its job, at most as long as the job."
    )


SCHEDULE: Keys = {
    "name": Key(checks.schedule_name, "", "Its name in `status` and in the log."),
    "type": Key(checks.job_type, "", "The type of its jobs."),
    "payload": Key(checks.payload, "{}", "The payload of its jobs."),
    "cron": Key(checks.cron, None, "When it fires, like '30 3 * * *'; this or the interval is required."),
    "every": Key(checks.patience, None, "The interval instead, like 5m; the first job comes after one interval."),
    "timezone": Key(checks.timezone, "UTC", "The time zone of the cron line."),
    "misfire": Key(
        one_of("once", "skip", "all"),
        "once",
        "What becomes of missed times: one job for all (once), none (skip), one for each of the latest 100 (all).",
    ),
    "unique_key": Key(
        checks.accepting(f"text, at most {MAX_KEY} bytes", lambda value: text_key("unique_key", value, MAX_KEY)),
        None,
        "It enqueues nothing while a job of its type with this key is unfinished.",
    ),
    "priority": TASK["priority"],
    "spread": Key(duration, 0.0, "Each time is later by a part of this, which depends on the name."),
    "expect_within": Key(checks.patience, None, "The time within which one of its jobs must succeed."),
}
ALERT: Keys = {
    "when": Key(checks.alert_when, ("", 0.0), "What has gone wrong."),
    "enqueue": Key(checks.job_type, "", "The type of the job that is enqueued."),
    "payload": Key(checks.payload, "{}", "Its payload, a table; the facts are added under `alert`."),
    "every": Key(checks.patience, 600.0, "At most one job in this time for each type, pool or schedule."),
    "only": Key(listed(checks.text()), (), "The types, pools or schedules that it is about; empty: all."),
}


@from_file
class Settings(NamedTuple):
    """One configuration file."""

    path: Path  # absolute, as it was given: a link in it leads to another file when it has been moved
    folder: Path  # its folder without links: on sys.path, and the start of relative paths
    pools: Mapping[str, PoolSettings]
    retention: RetentionSettings
    log: LogSettings
    database: str = key(
        checks.text(),
        SQLITE_URL,
        "The jobs' database; a relative path starts at the file. Without this key, `$SUPERVISOR_DATABASE`, if set.",
    )
    schedules: tuple[Schedule, ...] = ()
    alerts: tuple[Alert, ...] = ()
    admin: AdminSettings | None = None  # None: no admin process
    on_partition: Literal["finish", "stop"] = key(
        one_of("finish", "stop"),
        "finish",
        'What a host does with running jobs when it cannot renew its lease on PostgreSQL; "stop" ends them.',
    )
    listen_database: str | None = key(
        checks.text(), None, "Where `database` is a pooler of PostgreSQL, the URL of the server itself."
    )
    machine: MachineSettings = MachineSettings()
    spool: SpoolSettings = SpoolSettings()

    @property
    def types(self) -> set[str]:
        """Those that its pools take."""
        return {type_ for pool in self.pools.values() for type_ in pool.types}

    @property
    def max_waiting(self) -> dict[str, int]:
        """By type; of several pools that take it, the largest counts."""
        limits: dict[str, int] = {}
        for pool in self.pools.values():
            if pool.max_waiting is not None:
                limits |= {type_: max(limits.get(type_, 0), pool.max_waiting) for type_ in pool.types}
        return limits

    @property
    def limits(self) -> dict[str, Limits]:
        """By type, for those that have any. Where the order counts, twice as many as its pools can run are admitted."""
        return of_pools(self.pools.values())


ALONE = keys_of(Settings)
"""The keys that are in no table."""


def _no_default(_: object) -> None:
    raise ValueError("each pool has its own; it cannot have a default")


TOP: Keys = {
    **ALONE,
    "log": Key(keys_of(LogSettings), {}, "How events are written to stderr."),
    "admin": Key(keys_of(AdminSettings), None, "Dashboard, HTTP API and metrics; even an empty table enables them."),
    "machine": Key(keys_of(MachineSettings), {}, "The memory that all pools share."),
    "devices": Key(Tables(DEVICE), {}, "The memory of a device that `gpus` name."),
    "retention": Key(keys_of(RetentionSettings), {}, "How long finished jobs are kept."),
    "spool": Key(
        keys_of(SpoolSettings), {}, "The files that are sent to `POST /run`; without `[admin]` nobody removes them."
    ),
    "schedules": Key(Entries(SCHEDULE, ("name", "type")), (), "A job that is enqueued by the clock."),
    "alerts": Key(Entries(ALERT, ("when", "enqueue")), (), "A job that is enqueued when something goes wrong."),
    "pools": Key(Tables(POOL), {}, "One pool of workers; at least one is required."),
    "types": Key(Tables(TYPE), {}, "What differs for the jobs of one type, in any pool."),
    "defaults": Key({**POOL, **dict.fromkeys(NAMING, Key(_no_default))}, {}, "Keys of pools, for those without them."),
}
"""The whole file."""


def homes(keys: Keys) -> Iterator[tuple[str, Keys]]:
    """How each table in this one is written, and its keys."""
    for name, (kind, *_) in keys.items():
        if isinstance(kind, Tables):
            yield f"[{name}.NAME]", kind.keys
        elif isinstance(kind, Entries):
            yield f"[[{name}]]", kind.keys
        elif isinstance(kind, Mapping):
            yield (f"[{name}]" if keys is TOP else f"{name} = {{ … }}"), kind


HOMES: dict[str, Keys] = {"the file itself, above its first [table]": ALONE, **dict(homes(TOP)), **dict(homes(POOL))}
"""How every table is written, and its keys."""


def untaken(settings: Settings) -> list[tuple[str, str]]:
    """A sentence for each "schedule", "alert", "follow_up" or "priority" whose jobs no pool of this configuration
    takes. A pool of another supervisor may.
    """
    types = sorted(settings.types)
    wanted = [("schedule", schedule.type, f"of the schedule {schedule.name}") for schedule in settings.schedules]
    for alert in settings.alerts:
        wanted.append(("alert", alert.type, f"of the alert about {alert.when}"))
        if alert.when in FAILURES:
            wanted += [("alert", name, f"that the alert about {alert.when} is for") for name in alert.only]
    for pool in settings.pools.values():
        for name, follow in pool.policy.follow_ups.items():
            wanted += [("follow_up", type_, f"that follows {name}") for type_ in follow if type_ is not None]
    found = [
        (about, f"no pool takes the type {type_} {whose}{like(type_, types)}")
        for about, type_, whose in wanted
        if type_ not in types
    ]
    for type_ in types:
        least = [pool.min_priority for pool in settings.pools.values() if type_ in pool.types]
        lowest = min(-MAX_PRIORITY if priority is None else priority for priority in least)
        if lowest > -MAX_PRIORITY:
            advice = "add a pool for them without min_priority"
            found.append(("priority", f"no pool takes jobs of the type {type_} below priority {lowest}: {advice}"))
    return found
