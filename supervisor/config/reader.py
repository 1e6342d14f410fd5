"""From the text of a configuration file to settings, or to the full list of its problems."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.config.checks import Way, absolute, of_server, server
from supervisor.config.machine import here, own_host, report_missing, runs_on
from supervisor.config.pool_settings import PoolSettings
from supervisor.config.pools import build
from supervisor.config.problems import Report, checked
from supervisor.config.settings import (
    ALERT,
    ALONE,
    SCHEDULE,
    TOP,
    AdminSettings,
    LogSettings,
    MachineSettings,
    RetentionSettings,
    Settings,
    SpoolSettings,
)
from supervisor.domain.alerts import FACTS, Alert
from supervisor.domain.errors import ConfigError, InvalidJob
from supervisor.domain.schedule import Schedule
from supervisor.domain.text import human_size, like

OF_ADMIN = ("fastapi", "jinja2", "prometheus_client", "uvicorn")
"""The modules of the extra `admin`."""


def read(path: Path, database: str | None, to_run: Collection[str] | None, sources: bool = True) -> Settings:
    """See `supervisor.config.load`."""
    settings, report = survey(path, database)
    if not sources:
        report.found = dict.fromkeys(report.problems)
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
    report = Report(str(path), text)
    given = checked(TOP, _parsed(path, text), (), report)
    values = {name: key.default for name, key in TOP.items()} | given
    file = path if path.is_absolute() else here() / path  # the current folder may have been deleted
    folder = file.parent.resolve()
    pools, schedules = build(values, folder, report), _schedules(values["schedules"], report)
    settings = Settings(
        path=file,
        folder=folder,
        pools=pools,
        retention=RetentionSettings(**values["retention"]),
        log=LogSettings(**values["log"]),
        schedules=schedules,
        alerts=_alerts(values["alerts"], pools, schedules, report),
        admin=None if values["admin"] is None else _admin(AdminSettings(**values["admin"]), folder, report),
        machine=MachineSettings(**values["machine"], devices=_devices(values["devices"], pools, report)),
        spool=_spool(SpoolSettings(**values["spool"]), folder, report),
        **{name: values[name] for name in ALONE} | _addresses(values, given, folder, database, report),
    )
    return settings, report


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        hint = "`supervisor init` writes a starter file, `--config FILE` names another file"
        raise ConfigError([f"{path}: the file does not exist; {hint}"]) from None
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


def _addresses(
    values: Mapping[str, Any], given: Mapping[str, Any], folder: Path, database: str | None, report: Report
) -> dict[str, str | None]:
    """The URLs of the database; `database` replaces the file's own, and has no pooler of the file's. If the file names
    none, the database of a program's tasks counts, see supervisor/tasks.
    """

    def right(name: str, check: Callable[[str], str]) -> str | None:
        default: str | None = TOP[name].default
        try:
            return None if values[name] is None else check(values[name])
        except ValueError as error:
            report.add((name,), str(error))
            return None if default is None else check(default)

    def listening(url: str) -> str:
        if not of_server(values["database"]):
            raise ValueError("is for a `database` on PostgreSQL; leave it out")
        return server(url)

    found = {
        "database": right("database", lambda url: absolute(url, folder)),
        "listen_database": right("listen_database", listening),
    }
    name, other = "--database", None
    if database is None and "database" not in given:
        name = "$SUPERVISOR_DATABASE"
        database, other = os.environ.get(name[1:]) or None, os.environ.get("SUPERVISOR_LISTEN_DATABASE") or None
    if database is None:
        return found
    try:
        return {"database": absolute(database, Path()), "listen_database": other}
    except ValueError as error:
        raise ConfigError([f"{name}: {error}"]) from None


Found = Sequence[tuple[Way, Mapping[str, Any]]]


def _schedules(entries: Found, report: Report) -> tuple[Schedule, ...]:
    found: dict[str, Schedule] = {}
    for at, written in entries:
        if not any(key in written or report.has((*at, key)) for key in ("cron", "every")):
            report.add(at, 'set when it runs: `cron = "0 3 * * *"` or `every = "1h"`')
        if {"cron", "every"} <= written.keys():
            report.add((*at, "every"), "write either cron or every, not both")
        if {"timezone", "every"} <= written.keys():
            report.add((*at, "timezone"), "it applies to cron only; `every` counts from the last time")
        schedule = Schedule(**{name: written.get(name, key.default) for name, key in SCHEDULE.items()})
        if schedule.name in found:
            report.add((*at, "name"), f"another schedule also has the name {schedule.name!r}")
        if schedule.name:
            found[schedule.name] = schedule
    return tuple(found.values())


def schedule_of(name: str, keys: Mapping[str, Any]) -> Schedule:
    """One that is made at run time, by the rules of the file. Raises InvalidJob, which names the key."""
    report = Report()
    written = {"schedules": [{**keys, "name": name}]}
    values = checked({"schedules": TOP["schedules"]}, written, (), report)
    found = _schedules(values["schedules"], report)
    for at, text, _ in report.found:
        raise InvalidJob(str(at[2]) if len(at) > 2 else "schedule", text)
    return found[0]


def _alerts(
    entries: Found, pools: Collection[str], schedules: tuple[Schedule, ...], report: Report
) -> tuple[Alert, ...]:
    found: dict[str, Alert] = {}
    planned = ("schedule", [one.name for one in schedules])
    known = {
        "schedule_missed": planned,
        "no_success": planned,
        "pool_broken": ("pool", pools),
        "oldest_due": ("pool", pools),
    }
    for at, written in entries:
        values = {name: written.get(name, key.default) for name, key in ALERT.items()}
        payload = json.loads(values["payload"])
        if not isinstance(payload, dict):
            report.add((*at, "payload"), "must be a table: the facts are added to it")
        elif FACTS in payload:
            report.add((*at, "payload", FACTS), "this key is for the facts; choose another name")
        (when, over), only = values["when"], values["only"]
        what, names = known.get(when, ("", only))
        for name in only:
            if name not in names:
                report.add((*at, "only"), f"there is no {what} {name!r}{like(name, sorted(names))}")
        alert = Alert(when, over, values["enqueue"], values["payload"], values["every"], only)
        if found.setdefault(alert.id, alert) is not alert:
            report.add(at, "another alert says the same")
    return tuple(found.values())


def _devices(
    tables: Mapping[str, Mapping[str, int]], pools: Mapping[str, PoolSettings], report: Report
) -> dict[str, int]:
    used = sorted({gpu for pool in pools.values() for gpu in pool.gpus})
    for name, table in tables.items():
        at = ("devices", name)
        if report.has(at):
            continue
        if not table:
            report.add((*at, "memory"), 'is missing; write memory = "14GiB"')
        elif name not in used:
            report.add(at, f"no pool has this device in its gpus; they name {', '.join(used) or 'none'}")
    return {name: table.get("memory", 0) for name, table in tables.items()}


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
