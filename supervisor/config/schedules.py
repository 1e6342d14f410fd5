"""`[[schedules]]`: each table on its own, then the rules between its keys and between tables."""

from __future__ import annotations

from supervisor.config.checking import checked
from supervisor.config.problems import Report, shown
from supervisor.config.settings import Settings
from supervisor.config.shape import ScheduleTable
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


def untaken(settings: Settings) -> dict[str, str]:
    """The schedules whose jobs no pool of this configuration takes: a sentence each. Another supervisor may do so."""
    types = {type_ for pool in settings.pools.values() for type_ in pool.types}
    return {
        schedule.name: f"no pool takes the type {schedule.type} of the schedule {schedule.name}"
        + like(schedule.type, sorted(types))
        for schedule in settings.schedules
        if schedule.type not in types
    }
