"""Where a backend's jobs are: in the file of one of Django's databases, or in a database of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from supervisor.config.checks import absolute
from supervisor.contrib.django.results import DEFAULT_QUEUE
from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import checked_type

_KNOWN = {"database", "url", "type"}
# Django's OPTIONS that are the driver's own.
_OF_LIBPQ = ("service", "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert", "options", "target_session_attrs")


def file_of(url: str) -> str:
    """The real path of a database's file."""
    return os.path.realpath(url.removeprefix("sqlite:///"))


class Place:
    """From the backend's OPTIONS. `database` is the alias of the Django database whose transactions jobs belong to."""

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        self.alias = alias
        self.database: str = options.get("database", "default")
        self.prefix: str = options.get("type", "django")
        self._url: str | None = options.get("url")
        self._unknown = sorted(set(options) - _KNOWN)

    def url(self) -> str:
        """The database of the jobs. Asked for each time: tests give Django's databases other names.

        Raises ImproperlyConfigured.
        """
        if self._unknown:
            raise self._wrong(f"{self._unknown[0]!r} is not an option; there are {', '.join(sorted(_KNOWN))}")
        if self._url is not None:
            try:
                return absolute(self._url, Path(getattr(settings, "BASE_DIR", "")))
            except ValueError as error:
                raise self._wrong(f"url: {error}") from None
        if self.database not in connections:
            raise self._wrong(f"DATABASES has no {self.database!r}")
        if connections[self.database].vendor == "postgresql":
            return self._server()
        if connections[self.database].vendor != "sqlite":
            raise self._wrong(
                f"the database {self.database!r} is neither SQLite nor PostgreSQL; name one for the jobs, like "
                '"url": "sqlite:///jobs.db"'
            )
        file = self._file()
        if file is None:
            raise self._wrong(
                f"the database {self.database!r} is in memory, where no worker can see it; in tests, use Django's "
                f'ImmediateBackend, or give DATABASES["{self.database}"] a file by "TEST": {{"NAME": …}}'
            )
        return f"sqlite:///{file}"

    def shared(self) -> bool:
        """Whether the jobs are in that Django database, so that they can be part of its transactions."""
        if self._url is None:
            return True
        return self._url.startswith("sqlite:") and file_of(self.url()) == self._file()

    def _server(self) -> str:
        """The URL of the Django database on a server, with its password."""
        settings_of = connections[self.database].settings_dict
        parts = {name: settings_of.get(name.upper()) for name in ("user", "password", "host", "port")}
        parts |= {name: value for name, value in settings_of["OPTIONS"].items() if name in _OF_LIBPQ}
        query = urlencode({name: value for name, value in parts.items() if value not in (None, "")}, quote_via=quote)
        return f"postgresql:///{quote(str(settings_of['NAME']), safe='')}{'?' if query else ''}{query}"

    def _file(self) -> str | None:
        """The real path of the Django database; None if it is no file."""
        if self.database not in connections or connections[self.database].vendor != "sqlite":
            return None
        name = str(connections[self.database].settings_dict["NAME"])
        if ":memory:" in name or "mode=memory" in name or name.startswith("file:"):
            return None
        return os.path.realpath(name)

    def type_of(self, queue: str) -> str:
        """The type of the jobs of a queue. Raises InvalidJob."""
        return checked_type(self.prefix if queue == DEFAULT_QUEUE else f"{self.prefix}.{queue}")

    def queue_of(self, type: str) -> str | None:
        """The queue whose jobs have this type; None if they are not this backend's."""
        if type == self.prefix:
            return DEFAULT_QUEUE
        return type[len(self.prefix) + 1 :] if type.startswith(f"{self.prefix}.") else None

    def types(self, queues: set[str]) -> list[str]:
        """Raises ImproperlyConfigured."""
        try:
            return [self.type_of(queue) for queue in sorted(queues or {DEFAULT_QUEUE})]
        except InvalidJob as error:
            raise self._wrong(error.problem) from None

    def _wrong(self, why: str) -> ImproperlyConfigured:
        return ImproperlyConfigured(f'TASKS["{self.alias}"]: {why}')
