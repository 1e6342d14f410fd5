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
    found = _warnings(place, url, types, shared)
    return [checks.Warning(text, hint=hint, id=f"supervisor.{number}") for number, text, hint in found]


def _warnings(place: Place, url: str, types: list[str], shared: bool) -> Iterator[tuple[str, str, str | None]]:
    name = place.database
    mode = connections[name].settings_dict["OPTIONS"].get("transaction_mode", "") if shared else ""
    if shared and connections[name].vendor == "sqlite" and str(mode).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        what = f"Transactions of the database {name!r} that read before they write fail at once with"
        hint = f'Set DATABASES["{name}"]["OPTIONS"]["transaction_mode"] to "IMMEDIATE".'
        yield "W001", f'{what} "database is locked" while a worker writes.', hint
    file = _configuration()
    if file is None:
        hint = "See docs/django.md for one; if it is elsewhere, set $SUPERVISOR_CONFIG."
        yield "W002", f"There is no {DEFAULT_FILE}, so nothing runs the tasks.", hint
        return
    try:
        found = load(file)
    except ConfigError as error:
        yield "W003", f"{file} is invalid: {error}", "`supervisor check` shows all of it."
        return
    if not same_database(found.database, url):
        theirs, ours = without_password(found.database), without_password(url)
        yield "W004", f"{file} runs the jobs of {theirs}, but tasks are enqueued into {ours}.", None
    if missing := [type for type in types if type not in found.types]:
        hint = 'Add them to "types" of a pool with handler = "supervisor.contrib.django.worker:Tasks".'
        yield "W005", f"No pool of {file} takes jobs of the type {', '.join(missing)}.", hint


def _configuration() -> Path | None:
    """The file that `supervisor run` would use in the project's folder."""
    places = [Path(getattr(settings, "BASE_DIR", Path.cwd())), Path.cwd()]
    named = os.environ.get(VARIABLE)
    found = [folder / DEFAULT_FILE for folder in places] + ([Path(named)] if named else [])
    return next((file for file in found if file.is_file()), None)
