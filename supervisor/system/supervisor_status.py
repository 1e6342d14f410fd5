"""The supervisor's own status for `status`, as much of it as fits."""

from __future__ import annotations

import json
import time
from typing import Any

_FIXED = (0, 2)  # levels of the supervisor's status whose keys are fixed: its own, and each pool's


def fitting(supervisor_status: dict[str, Any], most: int) -> bytes:
    """The supervisor's status as JSON of at most `most` bytes. Long texts are cut first, then the longest lists."""
    data = json.dumps(supervisor_status).encode()
    longest, widest = 4096, 1 << 16
    while len(data) > most:
        data = json.dumps(_cut(supervisor_status, longest, widest) | {"clipped": True}).encode()
        longest, widest = max(16, longest // 4), max(1, widest // 4)
        if longest == 16 and widest == 1:
            return data if len(data) <= most else b'{"clipped": true}'
    return data


def _cut(value: Any, longest: int, widest: int, depth: int = 0) -> Any:
    """The same with texts of limited length and, below the pools' own level, a limited number of items."""
    if isinstance(value, str):
        return value if len(value) <= longest else value[: longest - 1] + "…"
    if isinstance(value, list):
        return [_cut(item, longest, widest, depth + 1) for item in value[:widest]]
    if isinstance(value, dict):
        items = list(value.items())
        # Readers rely on the fields of the supervisor's status and of each pool.
        kept = items if depth in _FIXED else items[:widest]
        return {key: _cut(item, longest, widest, depth + 1) for key, item in kept}
    return value


def posted(view: memoryview) -> dict[str, Any]:
    """The status on the scoreboard: its length, which is 0 while it is being written, and the JSON."""
    for _ in range(100):
        size = int.from_bytes(view[:8], "little")
        try:
            news = json.loads(bytes(view[8 : 8 + size]))
        except ValueError:
            time.sleep(0.001)
            continue
        return news if isinstance(news, dict) else {}
    return {}
