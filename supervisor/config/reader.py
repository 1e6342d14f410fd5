"""From the text of a configuration file to settings, or to the full list of its problems."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from supervisor.config import checks
from supervisor.config.checks import Key, Keys, shown
from supervisor.config.machine import here, own_host, report_missing, runs_on
from supervisor.config.pools import build
from supervisor.config.problems import Checked, Report, checked, checked_by_name
from supervisor.config.settings import (
    ALERT,
    ALONE,
    DEVICE,
    NAMING,
    POOL,
    SCHEDULE,
    TOP,
    TYPE,
    AdminSettings,
    LogSettings,
    MachineSettings,
    PoolSettings,
    RetentionSettings,
    Settings,
    SpoolSettings,
    keys_of,
)
from supervisor.domain.alerts import FACTS, Alert
from supervisor.domain.errors import ConfigError
from supervisor.domain.schedule import Schedule
from supervisor.domain.text import human_size, like

OF_ADMIN = ("fastapi", "jinja2", "prometheus_client", "uvicorn")
"""The modules of the extra `admin`."""


def read(path: Path, database: str | None, to_run: Collection[str] | None, sources: bool = True) -> Settings:
    """See `supervisor.config.load`."""
    settings, report = survey(path, database)
    if not sources:
        report.of_sources.clear()
    if to_run is not None:
        host = own_host(settings.database)
        to_run = to_run or [name for name, pool in settings.pools.items() if runs_on(pool, host)]
        report_missing(settings, report, to_run)
        report_uninstalled(settings, report)
    if problems := report.sentences():
        raise ConfigError(problems)
    return settings


def survey(path: Path, database: str | None) -> tuple[Settings, Report]:
    """Everything that can be found out about the file. The settings are valid only if the report has no problem.
    Raises ConfigError if it is not valid TOML, or `database` not a URL.
    """
    text = _text(path)
    raw = _parsed(path, text)
    report = Report(str(path), text)
    file = path if path.is_absolute() else here() / path  # the current folder may have been deleted
    folder = file.parent.resolve()
    alone = _alone(raw, folder, report)
    if database is not None:
        alone["listen_database"] = None  # with another database, that one has no pooler of the file's
        try:
            alone["database"] = checks.absolute(database, Path())
        except ValueError as error:
            raise ConfigError([f"--database: {error}"]) from None
    by_type = checked_by_name(TYPE, raw, "types", report)
    pools = build(raw.get("pools"), _defaults(raw, report), by_type, folder, report)
    schedules = _schedules(raw, report)

    def table(of: Any) -> Any:
        name = of.__name__.removesuffix("Settings").lower()
        return of(**checked(keys_of(of), raw.get(name, {}), (name,), report).values)

    settings = Settings(
        path=file,
        folder=folder,
        pools=pools,
        retention=table(RetentionSettings),
        log=table(LogSettings),
        schedules=schedules,
        alerts=_alerts(raw, pools, schedules, report),
        admin=None if "admin" not in raw else _admin(table(AdminSettings), folder, report),
        machine=table(MachineSettings)._replace(devices=_devices(raw, pools, report)),
        spool=_spool(table(SpoolSettings), folder, report),
        **alone,
    )
    return settings, report


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        hint = "`supervisor init` writes a starter file, `--config FILE` names another file"
        raise ConfigError([f"{path}: there is no such file; {hint}"]) from None
    except (OSError, ValueError) as error:  # ValueError: a path cannot contain a NUL character
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([f"{path}: it cannot be read: {reason}"]) from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError([f"{path}: it is nested too deeply"]) from None
    except ValueError as error:
        raise ConfigError([f"{path}: this is not valid TOML: {error}"]) from None


# The file's parts. Problems are added to the report; the settings are valid only if it stays empty.


def _alone(raw: Mapping[str, Any], folder: Path, report: Report) -> dict[str, Any]:
    """The values of the keys that are in no table."""

    def listening(url: str) -> str:
        if not checks.of_server(raw.get("database")):
            raise ValueError("is for a `database` on PostgreSQL; leave it out")
        return checks.server(url)

    rules: dict[str, Callable[[str], str]] = {
        "database": lambda url: checks.absolute(url, folder),
        "listen_database": listening,
    }
    keys: Keys = {**TOP, **{name: Key(checks.text(rule), ALONE[name].default) for name, rule in rules.items()}}
    values = checked(keys, {"database": ALONE["database"].default, **raw}, (), report).values
    return {name: values.get(name, key.default) for name, key in ALONE.items()}


def _defaults(raw: Mapping[str, Any], report: Report) -> Checked:
    table = raw.get("defaults", {})
    if isinstance(table, dict):
        for key in [key for key in table if key in NAMING]:
            report.add(("defaults", key), "each pool has its own; it cannot have a default")
        table = {key: value for key, value in table.items() if key not in NAMING}
    return checked(POOL, table, ("defaults",), report)


def _entries(raw: Mapping[str, Any], name: str, keys: Keys, required: Collection[str], report: Report) -> list[Checked]:
    """The entries of an array of tables. One without any key has no effect."""
    entries = raw.get(name, [])
    if not isinstance(entries, list):
        report.add((name,), f"must be tables [[{name}]], not {shown(entries)}")
        return []
    found = [checked(keys, entry, (name, index), report) for index, entry in enumerate(entries) if entry != {}]
    for table in found:
        for key in required:
            if key not in table.values and key not in table.faulty:
                report.add(table.at, f"`{key}` is missing")
    return found


def _with_defaults(table: Checked, keys: Keys) -> dict[str, Any]:
    return {name: table.values.get(name, key.default) for name, key in keys.items()}


def _schedules(raw: Mapping[str, Any], report: Report) -> tuple[Schedule, ...]:
    found: dict[str, Schedule] = {}
    for table in _entries(raw, "schedules", SCHEDULE, ("name", "type"), report):
        written = table.values.keys()
        if not {"cron", "every"} & (written | table.faulty):
            report.add(table.at, 'set when it runs: `cron = "0 3 * * *"` or `every = "1h"`')
        if {"cron", "every"} <= written:
            report.add((*table.at, "every"), "write either cron or every, not both")
        if {"timezone", "every"} <= written:
            report.add((*table.at, "timezone"), "it applies to cron only; `every` counts from the last time")
        schedule = Schedule(**_with_defaults(table, SCHEDULE))
        if schedule.name in found:
            report.add((*table.at, "name"), f"another schedule also has the name {schedule.name!r}")
        if schedule.name:
            found[schedule.name] = schedule
    return tuple(found.values())


def _alerts(
    raw: Mapping[str, Any], pools: Collection[str], schedules: tuple[Schedule, ...], report: Report
) -> tuple[Alert, ...]:
    found: dict[str, Alert] = {}
    planned = ("schedule", [one.name for one in schedules])
    known = {"schedule_missed": planned, "pool_broken": ("pool", pools), "oldest_due": ("pool", pools)}
    for table in _entries(raw, "alerts", ALERT, ("when", "enqueue"), report):
        values = _with_defaults(table, ALERT)
        payload = json.loads(values["payload"])
        if not isinstance(payload, dict):
            report.add((*table.at, "payload"), "must be a table: the facts are added to it")
        elif FACTS in payload:
            report.add((*table.at, "payload", FACTS), "this key is for the facts; choose another name")
        (when, over), only = values["when"], values["only"]
        what, names = known.get(when, ("", only))
        for name in only:
            if name not in names:
                report.add((*table.at, "only"), f"there is no {what} {name!r}{like(name, sorted(names))}")
        alert = Alert(when, over, values["enqueue"], values["payload"], values["every"], only)
        if found.setdefault(alert.id, alert) is not alert:
            report.add(table.at, "another alert says the same")
    return tuple(found.values())


def _devices(raw: Mapping[str, Any], pools: Mapping[str, PoolSettings], report: Report) -> dict[str, int]:
    used = sorted({gpu for pool in pools.values() for gpu in pool.gpus})
    found = {}
    for name, table in checked_by_name(DEVICE, raw, "devices", report).items():
        if not table.values and not table.faulty:
            report.add((*table.at, "memory"), 'is missing; write memory = "14GiB"')
        elif name not in used and not table.faulty:
            report.add(table.at, f"no pool has this device in its gpus; they name {', '.join(used) or 'none'}")
        found[name] = table.values.get("memory", 0)
    return found


def _spool(settings: SpoolSettings, folder: Path, report: Report) -> SpoolSettings:
    if settings.max_file > settings.max_total:
        whole = human_size(settings.max_total)
        report.add(("spool", "max_file"), f"{human_size(settings.max_file)} is more than max_total, which is {whole}")
    return settings._replace(folder=_below(folder, settings.folder))


def _below(folder: Path, name: str | Path | None) -> Path | None:
    return None if name is None else folder / name


def _admin(settings: AdminSettings, folder: Path, report: Report) -> AdminSettings:
    path = settings.unix_path
    settings = settings._replace(
        listen=settings.listen if path is None else f"unix:{folder / path}",
        token_file=_below(folder, settings.token_file),
        read_token_file=_below(folder, settings.read_token_file),
        hosts=tuple(map(str.lower, settings.hosts)),
    )
    listen, tokens = settings.listen, ("admin", "read_token_file")
    # Opening it to other machines must be explicit: all traffic, including the token, can be read on the network.
    if settings.address and not settings.allow_remote and not ipaddress.ip_address(settings.address[0]).is_loopback:
        report.add(
            ("admin", "listen"),
            f"{listen} can be reached from other machines, unencrypted; "
            "put a reverse proxy before 127.0.0.1, or set allow_remote = true",
        )
    if settings.read_token_file is not None:
        if path is not None and settings.token_file is None:
            report.add(tokens, "without token_file, requests on the Unix socket need no token; set both or neither")
        if settings.read_token_file == settings.token_file:
            report.add(tokens, "it is the same file as token_file; read-only access needs another file")
    return settings


def report_uninstalled(settings: Settings, report: Report) -> None:
    """Report that the extra is missing, for commands that are about to run the admin process."""
    missing = [name for name in OF_ADMIN if importlib.util.find_spec(name) is None] if settings.admin else []
    if missing:
        report.add(("admin",), f"it needs {', '.join(missing)}: pip install './job-supervisor[admin]'")
