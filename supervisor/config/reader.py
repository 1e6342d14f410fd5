"""From the text of a configuration file to settings, or to the full list of its problems."""

from __future__ import annotations

import errno
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from supervisor.config import admin, types
from supervisor.config import database as addresses
from supervisor.config.machine import here, machine, own_host, report_missing_cores, report_missing_programs, runs_on
from supervisor.config.pools import build
from supervisor.config.problems import Report, shown
from supervisor.config.schedules import alerts, schedules
from supervisor.config.settings import LogSettings, PoolSettings, RetentionSettings, Settings
from supervisor.config.shape import HOMES, NAMING, TOP, LogTable, PoolTable, RetentionTable
from supervisor.config.values import Check, Checked, boolean, checked, one_of
from supervisor.domain.errors import ConfigError

_Value = TypeVar("_Value")
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class Survey(NamedTuple):
    """A file as far as it can be understood. The settings are valid only if there is no problem."""

    settings: Settings
    report: Report
    file: str
    text: str
    override: list[str]  # problems of an address that replaces the file's own

    def problems(self) -> list[str]:
        """Every problem in a sentence with file, line and key, in the order of the file."""
        return self.override + self.report.sentences(self.file, self.text)


def read(path: Path, database: str | None, to_run: Collection[str] | None, sources: bool = True) -> Settings:
    """See `supervisor.config.load`."""
    found = survey(path, database)
    if not sources:
        found.report.of_sources.clear()
    if to_run is not None:
        host = own_host(found.settings.database)
        to_run = to_run or [name for name, pool in found.settings.pools.items() if runs_on(pool, host)]
        report_missing_programs(found.settings, found.report, to_run)
        report_missing_cores(found.settings, found.report, to_run)
        admin.report_uninstalled(found.settings, found.report)
    problems = found.problems()
    if problems:
        raise ConfigError(problems)
    return found.settings


def survey(path: Path, database: str | None) -> Survey:
    """Everything that can be found out about the file. Raises ConfigError if it is not valid TOML."""
    text = _text(path)
    raw = _parsed(path, text)
    report = Report(HOMES)
    file = path if path.is_absolute() else here() / path  # the current folder may have been deleted
    folder = file.parent.resolve()
    override: list[str] = []
    url = _database(raw, folder, report) if database is None else _override(database, override)
    pools, retention, log = _tables(raw, folder, report)
    planned = schedules(raw.get("schedules", []), report)
    settings = Settings(
        path=file,
        folder=folder,
        database=url,
        pools=pools,
        retention=retention,
        log=log,
        schedules=planned,
        alerts=alerts(raw.get("alerts", []), pools, planned, report),
        admin=admin.admin(raw.get("admin"), folder, report),
        on_partition=_single(raw, "on_partition", one_of("finish", "stop"), "finish", report),
        # With another database, that one has no pooler of the file's.
        listen_database=_listen_database(raw, report) if database is None else None,
        vacuum=_single(raw, "vacuum", boolean, True, report),
        machine=machine(raw, pools.values(), report),
        spool=admin.spool(raw.get("spool"), folder, report),
    )
    return Survey(settings, report, str(path), text, override)


def _text(path: Path) -> str:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # reading a named pipe would wait for a writer
            raise ConfigError([f"{path}: it is not a regular file"])
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        hint = "`supervisor init` writes a starter file, `--config FILE` names another file"
        raise ConfigError([f"{path}: there is no such file; {hint}"]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError([f"{path}:{line}: the file is not UTF-8 text"]) from None
    except (OSError, ValueError) as error:  # ValueError: a path cannot contain a NUL character
        if getattr(error, "errno", None) == errno.ELOOP:
            raise ConfigError([f"{path}: it is a symbolic link that leads back to itself"]) from None
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([f"{path}: it cannot be read: {reason}"]) from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError([f"{path}: it is nested too deeply"]) from None
    except ValueError as error:
        # "Invalid value (at line 2, column 5)"; a number with too many digits is reported without a position.
        message = str(error)
        place = _PLACE.search(message)
        if place is None:
            raise ConfigError([f"{path}: this is not valid TOML: {message}"]) from None
        line = place[1] or text.count("\n", 0, len(text) - 1) + 1
        where = f" (column {place[2]})" if place[2] else " (at the end of the file)"
        what = message[: place.start()]
        raise ConfigError([f"{path}:{line}: this is not valid TOML: {what[:1].lower()}{what[1:]}{where}"]) from None


def _tables(
    raw: dict[str, Any], folder: Path, report: Report
) -> tuple[dict[str, PoolSettings], RetentionSettings, LogSettings]:
    for key in [key for key in raw if key not in TOP]:
        report.add_unknown((key,), TOP)
    by_type = types.tables(raw.get("types", {}), report)
    pools = build(raw.get("pools"), _defaults(raw.get("defaults", {}), report), by_type, folder, report)
    types.report_untaken(by_type, pools.values(), report)
    retention = RetentionTable(checked(RetentionTable, raw.get("retention", {}), ("retention",), report).values)
    log = LogTable(checked(LogTable, raw.get("log", {}), ("log",), report).values)
    return pools, RetentionSettings(retention.done, retention.failed), LogSettings(log.format, log.level)


def _defaults(raw: object, report: Report) -> Checked:
    if isinstance(raw, dict):
        for key in [key for key in raw if key in NAMING]:
            report.add(("defaults", key), "each pool has its own; it cannot have a default")
        raw = {key: value for key, value in raw.items() if key not in NAMING}
    return checked(PoolTable, raw, ("defaults",), report)


def _single(raw: Mapping[str, Any], key: str, check: Check[_Value], default: _Value, report: Report) -> _Value:
    """The value of a key that is in no table."""
    try:
        return check(raw[key]) if key in raw else default
    except ValueError as error:
        report.add((key,), str(error))
        return default


def _database(raw: Mapping[str, Any], folder: Path, report: Report) -> str:
    def check(url: object) -> str:
        if not isinstance(url, str):
            raise ValueError(f"must be text in quotes, like {addresses.DEFAULT}, not {shown(url)}")
        return addresses.absolute(url, folder)

    return _single({"database": addresses.DEFAULT, **raw}, "database", check, "", report)


def _listen_database(raw: Mapping[str, Any], report: Report) -> str | None:
    def check(url: object) -> str | None:
        if not isinstance(url, str):
            raise ValueError(f"must be text in quotes, like postgresql://user@host/database, not {shown(url)}")
        if not addresses.of_server(raw.get("database")):
            raise ValueError("is for a `database` on PostgreSQL; leave it out")
        return addresses.server(url)

    return _single(raw, "listen_database", check, None, report)


def _override(url: str, problems: list[str]) -> str:
    try:
        return addresses.absolute(url, Path())
    except ValueError as error:
        problems.append(f"--database: {error}")
        return ""
