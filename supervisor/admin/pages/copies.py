"""What can be copied from the page of a job: requests that enqueue the same job again, or show it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from supervisor.domain.job import Job

_LONGEST = 90_000  # characters of a payload


@dataclass(frozen=True, slots=True)
class Copies:
    """`payload` is JSON text; "" if it is hidden, or too long. The page's script appends its own origin and `path` to
    the command for curl.
    """

    payload: str
    command: str
    curl: str
    path: str


def copies(job: Job, *, show: bool) -> Copies:
    """With a payload that may be shown, the commands enqueue the same job again; otherwise they show this one."""
    payload = json.dumps(job.payload, ensure_ascii=False) if show else ""
    request = 'curl --header "Authorization: Bearer $TOKEN"'
    if not payload or len(payload) > _LONGEST:
        return Copies("", f"supervisor jobs show {job.id}", f"{request} ", f"/api/admin/jobs/{job.id}")
    settings = {
        "priority": job.priority or None,
        "requires": job.requires or None,
        "max_attempts": job.max_attempts,
        "unique_key": job.unique_key,
        "meta": job.meta,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    words = ["supervisor", "enqueue"]
    for name, value in given.items():
        text = json.dumps(value, ensure_ascii=False) if name == "meta" else str(value)
        words.append(f"--{name.replace('_', '-')}={text}")
    if job.type.startswith("-") or payload.startswith("-"):
        words.append("--")
    command = shlex.join([*words, job.type, payload])
    body = json.dumps({"type": job.type, "payload": job.payload} | given, ensure_ascii=False)
    return Copies(payload, command, f"{request} --json {shlex.quote(body)} ", "/api/admin/jobs")
