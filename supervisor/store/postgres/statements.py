"""The statements of this engine, with the driver's placeholders in place of ours."""

from __future__ import annotations

import re
from typing import Any

from supervisor.store.queries import Queries, load

_NAMED = re.compile(r"(?<!:):([a-z_]+)")
_NUMBERED = re.compile(r"\?(\d)")


def for_driver(sql: str) -> str:
    """`:name` becomes `%(name)s`, and `?1` becomes `%(p1)s`, for parameters given in a tuple; casts stay.

    Without parameters the driver sends a statement as it is: then a percent sign is itself.
    """
    named = _NUMBERED.sub(r"%(p\1)s", _NAMED.sub(r"%(\1)s", sql.replace("%", "%%")))
    return sql if named == sql.replace("%", "%%") else named


def named(parameters: Any) -> Any:
    """The driver has no numbered placeholders: a tuple's items are p1, p2, …"""
    if isinstance(parameters, tuple):
        return {f"p{number}": value for number, value in enumerate(parameters, 1)} or None
    return parameters


QUERIES = Queries({name: for_driver(sql) for name, sql in load("supervisor.store.postgres").statements.items()})
