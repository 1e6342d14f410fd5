"""Named SQL: `.sql` files split into statements, so that there is no SQL in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


class Queries:
    """The statements of one file as attributes. An unknown name is an AttributeError at its first use."""

    def __init__(self, statements: Mapping[str, str]) -> None:
        self.statements = MappingProxyType(dict(statements))
        self.__dict__.update(statements)  # as attributes, for speed: a claim needs five of them

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no statement is named {name!r}")


def of_engine(package: str) -> Queries:
    """The statements of an engine: its own, and those that are the same for every engine."""
    return Queries({**load("supervisor.store.sql").statements, **load(package).statements})


def load(package: str, filename: str = "queries.sql") -> Queries:
    """Read the statements of `filename` inside `package`. Comments are dropped: SQLite caches by text."""
    text = resources.files(package).joinpath(filename).read_text(encoding="utf-8")
    parts = _NAME.split(text)
    names, bodies = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{package}/{filename}: two statements share a name")
    return Queries({name: _COMMENT.sub("", body).strip().rstrip(";") for name, body in zip(names, bodies, strict=True)})
