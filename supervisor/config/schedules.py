"""`[[schedules]]` and `[[alerts]]`: each table on its own, then the rules between its keys and between tables."""

from __future__ import annotations

import json
from collections.abc import Mapping

from supervisor.config.problems import Report, shown
from supervisor.config.settings import PoolSettings, Settings
from supervisor.config.shape import AlertTable, ScheduleTable
from supervisor.config.values import checked
from supervisor.domain.alerts import FACTS, FAILURES, Alert
from supervisor.domain.schedule import NoTimeZones, Schedule, zone
from supervisor.domain.text import like


def schedules(raw: object, report: Report) -> tuple[Schedule, ...]:
    """Every schedule. Problems are added to the report; the schedules are valid only if it stays empty."""
    if not isinstance(raw, list):
        report.add(("schedules",), f"must be tables [[schedules]], not {shown(raw)}")
        return ()
    found: dict[str, Schedule] = {}
    for index, entry in enumerate(raw):
        if entry == {}:
            continue  # a heading alone has no effect
        schedule = _schedule(index, entry, report)
        if schedule.name in found:
            report.add(("schedules", index, "name"), f"another schedule also has the name {schedule.name!r}")
        if schedule.name:
            found[schedule.name] = schedule
    return tuple(found.values())


def _schedule(index: int, raw: object, report: Report) -> Schedule:
    at = ("schedules", index)
    table = checked(ScheduleTable, raw, at, report)
    values = ScheduleTable(table.values)
    for key in ("name", "type"):
        if key not in table.values and key not in table.faulty:
            report.add(at, f"`{key}` is missing")
    if not {"cron", "every"} & (table.values.keys() | table.faulty):
        report.add(at, 'set when it runs: `cron = "0 3 * * *"` or `every = "1h"`')
    if {"cron", "every"} <= table.values.keys():
        report.add((*at, "every"), "write either cron or every, not both")
    if "timezone" in table.values and "every" in table.values:
        report.add((*at, "timezone"), "it applies to cron only; `every` counts from the last time")
    try:
        zone(values.timezone)
    except NoTimeZones as error:
        report.add_of_source((*at, "timezone"), str(error))
    return Schedule(
        values.name,
        values.type,
        values.payload,
        values.cron,
        values.every,
        values.timezone,
        values.misfire,
        values.unique_key,
    )


def untaken_schedules(settings: Settings) -> dict[str, str]:
    """The schedules whose jobs no pool of this configuration takes: a sentence each. Another supervisor may do so."""
    types = {type_ for pool in settings.pools.values() for type_ in pool.types}
    return {
        schedule.name: f"no pool takes the type {schedule.type} of the schedule {schedule.name}"
        + like(schedule.type, sorted(types))
        for schedule in settings.schedules
        if schedule.type not in types
    }


def alerts(
    raw: object, pools: Mapping[str, PoolSettings], schedules: tuple[Schedule, ...], report: Report
) -> tuple[Alert, ...]:
    """Every alert. Problems are added to the report; the alerts are valid only if it stays empty."""
    if not isinstance(raw, list):
        report.add(("alerts",), f"must be tables [[alerts]], not {shown(raw)}")
        return ()
    found: list[Alert] = []
    names = {"schedule_missed": {one.name for one in schedules}, "pool_broken": set(pools), "oldest_due": set(pools)}
    for index, entry in enumerate(raw):
        if entry == {}:
            continue  # a heading alone has no effect
        alert = _alert(index, entry, report)
        for place, name in enumerate(alert.only):
            if name not in names.get(alert.when, {name}):
                what = "schedule" if alert.when == "schedule_missed" else "pool"
                near = like(name, sorted(names[alert.when]))
                report.add(("alerts", index, "only", place), f"there is no {what} {name!r}{near}")
        if alert.id in {other.id for other in found}:
            report.add(("alerts", index), "another alert says the same")
        found.append(alert)
    return tuple(found)


def _alert(index: int, raw: object, report: Report) -> Alert:
    at = ("alerts", index)
    table = checked(AlertTable, raw, at, report)
    values = AlertTable(table.values)
    for key in ("when", "enqueue"):
        if key not in table.values and key not in table.faulty:
            report.add(at, f"`{key}` is missing")
    payload = json.loads(values.payload)
    if not isinstance(payload, dict):
        report.add((*at, "payload"), "must be a table: the facts are added to it")
    elif FACTS in payload:
        report.add((*at, "payload", FACTS), "this key is for the facts; choose another name")
    when, over = values.when
    return Alert(when, over, values.enqueue, values.payload, values.every, tuple(values.only))


def untaken_alerts(settings: Settings) -> list[str]:
    """A sentence for each alert whose jobs no pool of this configuration takes, and each that can never be raised by
    one of its types.
    """
    types = sorted({type_ for pool in settings.pools.values() for type_ in pool.types})
    problems = []
    for alert in settings.alerts:
        if alert.type not in types:
            near = like(alert.type, types)
            problems.append(f"no pool takes the type {alert.type} of the alert about {alert.when}{near}")
        if alert.when in FAILURES:
            problems += [
                f"no pool takes the type {name} that the alert about {alert.when} is for{like(name, types)}"
                for name in alert.only
                if name not in types
            ]
    return problems
