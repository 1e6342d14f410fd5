"""`warmup` and `canary` of a pool: a run of its handler before a worker takes jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.config.lines import Key as Way
from supervisor.config.problems import Report
from supervisor.domain.trial import Trial


def trial(written: Mapping[str, Any] | None, types: Sequence[str], at: Way, report: Report) -> Trial | None:
    """None if nothing is `written`, or if that has a problem. `types` are the pool's."""
    if written is None:
        return None
    type_ = written.get("type", types[0] if len(types) == 1 else None)
    if "payload" not in written:
        report.add((*at, "payload"), "is missing; write the payload with which the handler is to be called")
    elif type_ is None and types:
        report.add((*at, "type"), f"is missing; the pool takes {', '.join(types)}")
    elif types and type_ not in types:
        report.add((*at, "type"), f"the pool does not take {type_}, only {', '.join(types)}")
    elif type_ is not None:
        return Trial(type_, written["payload"], written.get("expect"), written.get("tolerance", 0.0))
    return None
