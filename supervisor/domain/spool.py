"""The files of jobs: how they are named, whose they are, what a payload says of them, and when they may go.

A file is made of two: TOKEN-SHA256 is the body of a request, and TOKEN.label says which job it is for. While the body
arrives, its name is TOKEN.part.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from supervisor.domain.errors import InvalidJob

GRACE = 600.0  # seconds: an insert that waits for other writers is certainly over by then
_NAME = re.compile(r"([0-9a-f]{32})(?:\.part|\.label|-([0-9a-f]{64}))")
_OURS = ("path", "media_type")


class Label(NamedTuple):
    """Which job a file is for. It is known before the job is there: a crash leaves no file that nobody can judge."""

    database: str  # its URL, without a password
    type: str
    unique_key: str

    def written(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def read(cls, text: bytes) -> Label | None:
        """None for what is not a label."""
        try:
            found = json.loads(text)
            return cls(**{name: str(found[name]) for name in cls._fields})
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


class SpooledFile(NamedTuple):
    """A whole file, by the name of its body, and the job that it is for."""

    body: str
    type: str
    unique_key: str


@dataclass(frozen=True, slots=True)
class Spooled:
    """What lies in the folder under one token. `body` is the name of its whole body, empty if there is none; `changed`
    is when the latest of its `names` was written, Unix seconds.
    """

    token: str
    names: tuple[str, ...]
    body: str
    changed: float

    def is_young(self, now: float) -> bool:
        """Whether its body may still arrive, or its job be inserted."""
        return now - self.changed < GRACE


def grouped(files: Iterable[tuple[str, float]]) -> list[Spooled]:
    """The files of a folder, (name, time of the last change) each, by token. Files with other names are left out."""
    found = defaultdict[str, list[tuple[str, float, bool]]](list)
    for name, at in files:
        if parts := _NAME.fullmatch(name):
            found[parts[1]].append((name, at, parts[2] is not None))
    return [
        Spooled(
            token,
            tuple(sorted(name for name, _, _ in its)),
            next((name for name, _, is_body in its if is_body), ""),
            max(at for _, at, _ in its),
        )
        for token, its in sorted(found.items())
    ]


def may_go(has_job: bool, succeeded_at: float | None, now: float, keep_done: float | None) -> bool:
    """Whether nobody needs the file any more. `keep_done`: seconds after the success of its job; None: as long as the
    job. A job that has not succeeded can be retried, so it keeps its file.
    """
    if not has_job:
        return True
    return succeeded_at is not None and keep_done is not None and succeeded_at < now - keep_done


def payload_of_file(path: str, media_type: str, fields: str | None) -> dict[str, Any]:
    """The payload of a job for a file. `fields` is a JSON object with further ones. Raises InvalidJob."""
    return {**_fields(fields), "path": path, "media_type": media_type}


def _fields(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJob("fields", f"it is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidJob("fields", 'it must be a JSON object, like {"width": 400}')
    for name in _OURS:
        if name in found:
            raise InvalidJob("fields", f"{name} is that of the file; leave it out")
    return found


def is_same(one: Any, other: Any) -> bool:
    """Whether two payloads mean the same: they are equal, but for the names of files with equal content."""
    return _essence(one) == _essence(other)


def _essence(payload: Any) -> tuple[str, str]:
    """The digest of the file that a payload names, empty if it names none of ours, and the rest as JSON: there, unlike
    in Python, true, 1 and 1.0 are not equal.
    """
    path = payload.get("path") if isinstance(payload, dict) else None
    found = _NAME.fullmatch(path.rpartition("/")[2]) if isinstance(path, str) else None
    if found is None or not found[2]:
        return "", json.dumps(payload, sort_keys=True)
    return found[2], json.dumps({**payload, "path": ""}, sort_keys=True)
