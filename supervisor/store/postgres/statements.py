"""The statements of this engine, with the driver's placeholders in place of ours."""

from __future__ import annotations

import re

from supervisor.store.queries import Queries, load

_NAMED = re.compile(r"(?<!:):([a-z_]+)")
_NUMBERED = re.compile(r"\?(\d)")


def for_driver(sql: str) -> str:
    """`:name` becomes `%(name)s`, and `?1` becomes `%(p1)s`, for parameters given in a tuple; casts stay.

    Without parameters the driver sends a statement as it is: then a percent sign is itself.
    """
    named = _NUMBERED.sub(r"%(p\1)s", _NAMED.sub(r"%(\1)s", sql.replace("%", "%%")))
    return sql if named == sql.replace("%", "%%") else named


QUERIES = Queries({name: for_driver(sql) for name, sql in load("supervisor.store.postgres").statements.items()})
