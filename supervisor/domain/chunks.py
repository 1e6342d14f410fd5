"""What a handler emits while it runs: pieces of its answer, each of bounded size."""

from __future__ import annotations

import json
from typing import NamedTuple

from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import encode
from supervisor.domain.json_safe import json_safe

MAX_CHUNK_BYTES = 16 * 1024  # of JSON: many of them fit into the ring of a worker


class Chunk(NamedTuple):
    """One piece, as a worker has written it. `number` counts the chunks of its run from 1; `data` is JSON."""

    job: int
    token: int
    attempt: int
    number: int
    data: bytes


def encoded(value: object) -> bytes:
    """The JSON of a chunk. Raises InvalidJob for what JSON cannot represent, or is too large."""
    data = encode("chunk", value).encode()
    if len(data) > MAX_CHUNK_BYTES:
        raise InvalidJob("chunk", f"it has {len(data)} bytes of JSON; the limit is {MAX_CHUNK_BYTES} (16 KiB)")
    return data


def as_text(chunk: Chunk) -> str | None:
    """A chunk as its readers get it; None if it is not JSON."""
    try:
        return dumped({"attempt": chunk.attempt, "number": chunk.number, "chunk": json_safe(json.loads(chunk.data))})
    except (ValueError, RecursionError):
        return None


def dumped(value: object) -> str:
    """A value as one line of JSON."""
    return json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False)
