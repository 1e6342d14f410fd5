"""What `manage.py check` says about a backend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from supervisor.config import DEFAULT_FILE, VARIABLE, load
from supervisor.contrib.django.place import Place, same_database
from supervisor.domain.errors import ConfigError
from supervisor.domain.text import without_password


def problems(place: Place, queues: set[str]) -> list[Any]:
    try:
        url, types, shared = place.url(), place.types(queues), place.shared()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="supervisor.E001")]
    return [*_of_transactions(place, shared), *_of_configuration(url, types)]


def _of_transactions(place: Place, shared: bool) -> Iterator[Any]:
    options = connections[place.database].settings_dict["OPTIONS"] if shared else {}
    sqlite = shared and connections[place.database].vendor == "sqlite"
    if sqlite and str(options.get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield checks.Warning(
            f"Transactions of the database {place.database!r} that read before they write fail at once with "
            '"database is locked" while a worker writes.',
            hint=f'Set DATABASES["{place.database}"]["OPTIONS"]["transaction_mode"] to "IMMEDIATE".',
            id="supervisor.W001",
        )


def _of_configuration(url: str, types: list[str]) -> Iterator[Any]:
    file = _configuration()
    if file is None:
        yield checks.Warning(
            f"There is no {DEFAULT_FILE}, so nothing runs the tasks.",
            hint="See docs/django.md for one; if it is elsewhere, set $SUPERVISOR_CONFIG.",
            id="supervisor.W002",
        )
        return
    try:
        found = load(file)
    except ConfigError as error:
        yield checks.Warning(
            f"{file} is invalid: {error}", hint="`supervisor check` shows all of it.", id="supervisor.W003"
        )
        return
    if not same_database(found.database, url):
        yield checks.Warning(
            f"{file} runs the jobs of {without_password(found.database)}, but tasks are enqueued into "
            f"{without_password(url)}.",
            id="supervisor.W004",
        )
    taken = {type for pool in found.pools.values() for type in pool.types}
    if missing := [type for type in types if type not in taken]:
        yield checks.Warning(
            f"No pool of {file} takes jobs of the type {', '.join(missing)}.",
            hint='Add them to "types" of a pool with handler = "supervisor.contrib.django.worker:Tasks".',
            id="supervisor.W005",
        )


def _configuration() -> Path | None:
    """The file that `supervisor run` would use in the project's folder."""
    places = [Path(getattr(settings, "BASE_DIR", Path.cwd())), Path.cwd()]
    named = os.environ.get(VARIABLE)
    found = [folder / DEFAULT_FILE for folder in places] + ([Path(named)] if named else [])
    return next((file for file in found if file.is_file()), None)
