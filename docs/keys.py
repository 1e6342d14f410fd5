"""Writes docs/keys.md, every key of supervisor.toml, and the first table of docs/configuration.md, from the keys of the
code, for `make reference`.

tests/docs/test_keys.py fails when they are not up to date.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from supervisor.config.checks import Entries, Key, Keys, Tables, job_type
from supervisor.config.limits import BREAKER
from supervisor.config.pool_settings import CANARY, NAMING, RETRY, WARMUP
from supervisor.config.settings import ALONE, TOP
from supervisor.domain.text import human, human_size

PAGE = Path(__file__).with_name("keys.md")
GUIDE = Path(__file__).with_name("configuration.md")

CHARACTERS = re.compile(r"(?<=characters of )\S.*")
A_TYPE = CHARACTERS.sub(r"`\g<0>`", (job_type.__doc__ or "").partition("; ")[2])
HEAD = f"""\
# Keys of supervisor.toml

What each key may be, and what holds without it; a key whose name is a link is explained there. How the keys work
together: [configuration](configuration.md). This page is written by `make reference`.

A duration has one unit: `250ms`, `10s`, `5m`, `2h` or `7d`; the longest is `36500d`. A size is `512KiB`, `512MiB` or
`2GiB`. Both are text in quotes. {A_TYPE.replace("a type", "A type")}.
"""

GROUPS = {
    "What runs the jobs": "tasks handler command types path env options middleware",
    "How many workers": "workers min_workers max_workers jobs_per_worker scale_down_delay idle_timeout spares",
    "Which jobs, and how many at once": "concurrency prefetch capabilities min_priority hosts max_waiting",
    "Time limits": "timeout cancel_grace kill_grace startup_timeout shutdown_grace heartbeat_timeout lock_time",
    "After a failure": "retry give_up_on retry_failed_every retry_failed_times max_crashes recover",
    "Memory": "max_memory memory_budget max_jobs_per_worker",
    "Batches": "batch_size max_batch_size latency_target batch_wait batch_key batch_cost batch_budget",
    "How workers start": "start preload preload_setup warmup canary",
    "Devices and cores": "gpus threads cpu_affinity nice",
}
"""The keys of a pool, by subject."""

FIRST = """
database
pools.tasks
pools.workers
pools.timeout
retry.max_attempts
retry.base
retry.max
pools.max_memory
pools.shutdown_grace
retention.done
retention.failed
admin.listen
"""
"""The keys in the first table of configuration.md, each after its table."""

WHERE = {
    "configuration.md#code-in-another-folder": "path",
    "tasks.md": "tasks",
    "writing-handlers.md": "handler",
    "subprocess.md": "command",
    "middleware.md": "middleware",
    "configuration.md#how-many-workers": "workers min_workers max_workers scale_down_delay",
    "configuration.md#spares": "spares",
    "concurrency.md": "concurrency",
    "configuration.md#capabilities": "capabilities",
    "configuration.md#a-worker-for-urgent-jobs": "min_priority",
    "postgresql.md#several-hosts": "hosts on_partition",
    "postgresql.md#behind-a-pooler": "listen_database",
    "http.md#a-request-over-the-queue": "max_waiting",
    "configuration.md#time-limits-and-locks": "timeout cancel_grace kill_grace heartbeat_timeout lock_time",
    "configuration.md#retries": "retry give_up_on on",
    "configuration.md#memory": "max_memory memory_budget",
    "concurrency.md#batches": "batch_size latency_target batch_wait batch_cost batch_budget",
    "concurrency.md#keep-unlike-jobs-apart": "batch_key",
    "models.md#load-it-once-for-all-workers": "preload_setup",
    "configuration.md#warm-up-and-canary": "warmup canary",
    "configuration.md#devices": "gpus",
    "configuration.md#threads-cores-and-priority": "threads cpu_affinity nice",
    "tasks.md#follow-ups": "on_done on_failed",
    "when-a-job-may-run.md#limits-of-a-type": "max_running burst concurrency_per_key on_conflict age_boost",
    "when-a-job-may-run.md#50-calls-a-second": "rate rate_per_key burst_per_key",
    "when-a-job-may-run.md#no-user-starves-the-others": "fair",
    "when-a-job-may-run.md#a-breaker": "breaker",
}
"""Where a key of a pool, of a type or of none is explained."""
LINKS = {name: target for target, names in WHERE.items() for name in names.split()}

GUIDES = {
    "types": "configuration.md#types",
    "schedules": "configuration.md#schedules",
    "alerts": "alerts.md",
    "retention": "configuration.md#retention",
    "machine": "configuration.md#memory-for-all-pools",
    "devices": "configuration.md#memory-for-all-pools",
    "admin": "admin.md",
    "spool": "http.md#a-file-as-the-body",
    "log": "deploying/logs.md",
}
"""Where a table is explained."""

INSIDE: dict[str, Keys] = {"retry": RETRY, "canary": CANARY, "warmup": WARMUP, "breaker": BREAKER}
"""The tables inside others."""


def keys_of(table: str) -> Keys:
    kind = INSIDE.get(table) or TOP[table].check
    assert not callable(kind), table
    return kind.keys if isinstance(kind, Tables | Entries) else kind


ORDER = ("pools", *INSIDE, "types", "retention", "schedules", "alerts", "admin", "machine", "devices", "spool", "log")

# What holds without a key, where that is no value of it.
OTHERWISE = {
    ("pools", "types"): "the pool's name",
    ("pools", "max_workers"): "the number of cores",
    ("canary", "payload"): "required",
    ("warmup", "payload"): "required",
    ("devices", "memory"): "required",
    **{("pools", name): "" for name in ("tasks", "handler", "command")},
    **{("types", name): "the pool's" for name in ("timeout", "retry", "max_attempts", "give_up_on")},
    **{
        (name, key): "required"
        for name, (kind, *_) in TOP.items()
        if isinstance(kind, Entries)
        for key in kind.required
    },
}


def default(table: str, name: str, key: Key) -> str:
    """What holds without the key; a value as it is written in the file."""
    if (table, name) in OTHERWISE:
        return OTHERWISE[table, name]
    if not callable(key.check):
        return "none" if key.default is None else "`{}`"
    for text in (lambda value: value, json.loads, lambda _: "0s", human, human_size, lambda _: "auto"):
        with contextlib.suppress(ValueError, TypeError):
            literal = json.dumps(text(key.default))
            if key.check(json.loads(literal)) == key.default:
                return f"`{literal}`"
    return "none"


def values(key: Key) -> str:
    """What the key may be, in the words of its check."""
    if not callable(key.check):
        return "tables" if isinstance(key.check, Tables) else "a table"
    text = (key.check.__doc__ or "").replace('text in quotes, like "text"', "text")
    text = re.sub(r"\ba type; .*", "a type", text)
    text = re.sub(r"; write (it|them) like", ", like", text).replace("; write ", ": ")
    text = re.sub(r"; (one has|it must have) ", " of ", text).replace("'", '"')
    return re.sub(rf'"[^"]+"|{CHARACTERS.pattern}|\w+:\w+(?=,)', r"`\g<0>`", text)


def row(table: str, name: str, key: Key) -> str:
    linked = name in LINKS and table in ("", "pools", "types", "retry")
    shown = f"[`{name}`]({LINKS[name]})" if linked else f"`{name}`"
    return f"| {shown} | {values(key)} | {default(table, name, key)} | {key.about} |\n"


COLUMNS = "| key | value | default | meaning |\n|---|---|---|---|\n"


def written(table: str) -> str:
    """How the table is written in the file."""
    kind = TOP[table].check
    return f"[[{table}]]" if isinstance(kind, Entries) else f"[{table}{'.NAME' * isinstance(kind, Tables)}]"


def section(table: str) -> str:
    keys = keys_of(table)
    rows = {name: row(table, name, key) for name, key in keys.items()}
    if table in INSIDE:
        return f"### `{table} = {{ … }}`\n\n{COLUMNS}{''.join(rows.values())}"
    more = f" More: [{GUIDES[table].partition('.md')[0]}]({GUIDES[table]})." if table in GUIDES else ""
    text = f"## {table.capitalize()}\n\n`{written(table)}`: {TOP[table].about}{more}\n"
    if table != "pools":
        return f"{text}\n{COLUMNS}{''.join(rows.values())}"
    naming = ", ".join(f"`{name}`" for name in NAMING)
    text += f"\nA pool has one of `tasks`, `handler` and `command`. `[defaults]` has the same keys, except {naming}.\n"
    for subject, names in GROUPS.items():
        text += f"\n### {subject}\n\n{COLUMNS}{''.join(rows.pop(name) for name in names.split())}"
    assert not rows, f"GROUPS lacks {', '.join(rows)}"
    return text


def page() -> str:
    tables = "".join(f"| `{written(name)}` | {key.about} |\n" for name, key in TOP.items() if name not in ALONE)
    alone = COLUMNS + "".join(row("", name, key) for name, key in ALONE.items())
    top = f"## The file itself\n\nAbove its first table:\n\n{alone}\n| table | meaning |\n|---|---|\n{tables}"
    return "\n".join([HEAD, top, *(section(table) for table in ORDER)])


def first_table() -> str:
    rows = "| key | default | meaning |\n|---|---|---|\n"
    for line in FIRST.split():
        table, _, name = line.rpartition(".")
        key = (keys_of(table) if table else ALONE)[name]
        shown = f"[pools.NAME] {line}" if table in INSIDE else f"{written(table)} {name}" if table else name
        rows += f"| `{shown}` | {default(table, name, key)} | {key.about} |\n"
    return rows


def guide(text: str) -> str:
    """configuration.md with its first table as it should be."""
    return re.sub(r"(?<=<!-- first keys -->\n)(?:\|.*\n)+", lambda _: first_table(), text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    GUIDE.write_text(guide(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
