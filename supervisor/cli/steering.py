"""`pause`, `resume`, `scale`, `drain`, `undrain`, `reload`, `schedules`: supervisors obey within a second."""

from __future__ import annotations

import reprlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import click
from click.exceptions import Exit

from supervisor.cli.errors import FAILED, USAGE, wrong_usage
from supervisor.cli.options import Answer, Target, answering, check_patience, flag, group, of_keys, option, patience
from supervisor.cli.output import line, show, table
from supervisor.domain.text import counted, human

on_host = option("--host", "Only there; gpu-* means all that match.", "NAME", default="")
one_host = click.argument("host", metavar="[HOST]", default="")
named = click.argument("name")
_RELOAD_WAIT = 2.0  # seconds to wait for the result of a reload: most code is loaded, or fails, within that


@answering
@click.argument("type")
@flag("--force", "Pause it even if no pool takes the type and no job has it.")
def pause(target: Target, type: str, force: bool) -> Answer:
    """Stop starting jobs of a type.

    A type that no pool takes and no job has is refused: probably a typing error.
    """
    return _set(target, type, paused=True, force=force)


@answering
@click.argument("type")
def resume(target: Target, type: str) -> Answer:
    """Start jobs of a paused type again."""
    return _set(target, type, paused=False)


def _set(target: Target, type_: str, *, paused: bool, force: bool = False) -> Answer:
    from supervisor.domain.values import checked_type
    from supervisor.ops import commands
    from supervisor.ops.supervisors import Unknown

    checked_type(type_)  # before the database is opened
    known = target.types()
    with target.operations() as operations:
        now = operations.statistics.now()
        try:
            changed = commands.pause(operations, type_, paused, now, configured=known, force=force)
        except Unknown as error:
            error.add_note("--force pauses it anyway")
            raise
    return Answer({"type": type_, "paused": paused, "changed": changed}, f"{type_} {_pausing(paused, changed)}")


def _pausing(paused: bool, changed: bool) -> str:
    done, unchanged = ("is paused", "was already paused") if paused else ("is resumed", "was not paused")
    return done if changed else unchanged


@answering
@click.argument("pool")
@click.argument("size", metavar="N|auto")
@flag("--yes -y", "Allow more than 100 workers.")
@on_host
def scale(target: Target, pool: str, size: str, yes: bool, host: str) -> Answer:
    """Set a pool's number of workers on each host, or on one.

    `auto` returns the pool to automatic scaling; with --host, to what is set for all hosts, if something is. Without
    --host, what was set for single hosts is dropped.
    """
    from supervisor.ops import commands
    from supervisor.ops.supervisors import living

    try:
        workers = None if size == "auto" else int(size)
    except ValueError:
        raise wrong_usage(f"{reprlib.repr(size)} is neither a number of workers nor auto") from None
    if workers is not None and workers > commands.MANY_WORKERS and not yes:
        raise wrong_usage(f"{workers} is more than {commands.MANY_WORKERS} workers", "add --yes to confirm")
    settings = target.settings_if_any()
    with target.operations() as operations:
        configured = () if settings is None else settings.pools
        before = operations.controls.current()
        commands.scale(operations, pool, workers, configured, operations.statistics.now(), host=host)
        running = bool(living(operations))
    text = commands.scaled(pool, before.sizes.get(pool) if workers is None and host else workers)
    if host:
        text += f" on {host}"
    elif dropped := before.hosts_of(pool):
        text += f", also on {', '.join(dropped)}"
    notes = [] if running else ["note: no supervisor is running; this holds as soon as one does"]
    return Answer({"pool": pool, "workers": workers} | ({"host": host} if host else {}), text, notes=notes)


@answering
@one_host
@flag("--wait", "Return when none of its jobs runs any more.")
@flag("--force", "Drain it even if no supervisor runs there.")
def drain(target: Target, host: str, wait: bool, force: bool) -> Answer:
    """Let a host claim no more jobs; what runs there finishes.

    Default: this host. It stays drained, over restarts too, until `supervisor undrain`.
    """
    from supervisor.config.machine import own_host
    from supervisor.ops.supervisors import Unknown, await_drained, claims_on, require_host

    host = host or own_host(target.url())
    with target.operations() as operations:
        try:
            if not force:
                require_host(operations, host)
        except Unknown as error:
            error.add_note("--force drains it anyway")
            raise
        changed = operations.controls.drain(host, operations.statistics.now())
        if wait:
            await_drained(operations, host)
        running = claims_on(operations, host)
    text = f"{host} {'is drained' if changed else 'was already drained'}"
    text += f"; {counted(running, 'job')} still {'runs' if running == 1 else 'run'} there" if running else ""
    return Answer({"host": host, "drained": True, "changed": changed, "running": running}, text)


@answering
@one_host
def undrain(target: Target, host: str) -> Answer:
    """Let a drained host claim jobs again.

    Default: this host.
    """
    from supervisor.config.machine import own_host

    host = host or own_host(target.url())
    with target.operations() as operations:
        changed = operations.controls.undrain(host)
    text = f"{host} {'may claim jobs again' if changed else 'was not drained'}"
    return Answer({"host": host, "drained": False, "changed": changed}, text)


@answering
@flag("--wait", "Wait for the result, not only 2 seconds, until new workers run.")
@patience
def reload(target: Target, wait: bool, timeout: float | None) -> Answer:
    """Reload the configuration and the code.

    Running supervisors replace their workers one at a time. An invalid configuration is refused. If the new code
    cannot be loaded, or fails its canary, the old code keeps running, and the exit code is 1; so it is when that is not
    known within --timeout.
    """
    from supervisor.ops import commands
    from supervisor.ops.serving import serving

    check_patience(wait, timeout)
    settings = target.settings_if_any()  # a faulty one is refused here, without the advice to use --database
    with target.operations() as operations:
        asked = commands.reload(operations, operations.statistics.now())
        began = time.monotonic()
        outcomes = commands.await_reload(operations, asked, timeout if wait else _RELOAD_WAIT)
        took = human(time.monotonic() - began)
        admins = {one.id: one.admin for one in serving(operations).supervisors}
    several = len({record.host for record in asked}) > 1
    names = {record.id: f"{record.pid} on {record.host}" if several else str(record.pid) for record in asked}
    lines = [line for one in asked for line in _reloaded(names[one.id], one.config, outcomes.get(one.id), took)]
    notes = [f"error: {problem}" for outcome in outcomes.values() for problem in outcome["problems"]]
    missing = ((name, it.problem) for key, name in names.items() if (it := admins.get(key)) and it.problem)
    notes += [f"warning: supervisor {name} has no admin process: {problem}" for name, problem in missing]
    if settings is not None and settings.path.resolve() not in {Path(record.config).resolve() for record in asked}:
        ours, theirs = settings.path, ", ".join(sorted({record.config for record in asked}))
        notes.insert(
            0, f"warning: no supervisor reads {ours}, but {theirs}: restart it with supervisor --config {ours} run"
        )
    states = {outcome["state"] for outcome in outcomes.values()}
    failure = None
    if states - {"accepted"} or (wait and len(outcomes) < len(asked)):
        failure = Exit(USAGE if states <= {"accepted", "refused"} and "refused" in states else FAILED)
    reloads = {names[key]: outcome for key, outcome in outcomes.items()}
    value = {"supervisors": [record.pid for record in asked], "reloads": reloads}
    return Answer(value, *lines, notes=notes, failure=failure)


def _reloaded(name: str, config: str, outcome: dict[str, Any] | None, took: str) -> Iterator[str]:
    """The result of the reload of one supervisor: which pools have the new code, and which have not tried it."""
    if outcome is None:
        yield f"supervisor {name} is still reloading {config}"
        return
    pools: dict[str, list[str]] = {"accepted": [], "untried": [], "failed": []}
    for pool, state in outcome["pools"].items():
        pools.setdefault(state, []).append(f"{pool} (canary passed)" if pool in outcome["canaries"] else pool)
    state = outcome["state"]
    did = {"accepted": "reloaded", "failed": "reloaded", "refused": "refused"}.get(state, "ended before it reloaded")
    failed = f"; the new code of {', '.join(pools['failed'])} failed" if state == "failed" else ""
    yield f"supervisor {name} {did} {config}{failed}"
    if state in ("accepted", "failed"):
        if pools["accepted"]:
            new = ", ".join(pools["accepted"])
            yield f"after {took}: new code in {new}; workers of the old code leave one at a time"
        for pool in pools["untried"]:
            yield f"after {took}: the code of {pool} was not tried: it has no workers; its next one loads it"


@answering
def list_schedules(target: Target) -> Answer:
    """List schedules and when they fire next."""
    from supervisor.cli import tables
    from supervisor.ops.views import schedules_of

    with target.operations() as operations:
        now = operations.statistics.now()
        views = schedules_of(operations.schedules.planned(), now)

    def printed() -> None:
        if views:
            show(table(tables.OF_SCHEDULES, tables.of_schedules(views, now)))
        else:
            line("there are no schedules; tables [[schedules]] define them, or `supervisor schedules add`")

    return Answer(views, show=printed)


def _switch(name: str, text: str, *, paused: bool) -> click.Command:
    """`schedules pause` or `schedules resume`."""

    @named
    def switch(target: Target, name: str) -> Answer:
        from supervisor.ops import commands

        with target.operations() as operations:
            changed = commands.pause_schedule(operations, name, paused, operations.statistics.now())
        value = {"name": name, "paused": paused, "changed": changed}
        return Answer(value, f"the schedule {name} {_pausing(paused, changed)}")

    switch.__name__, switch.__doc__ = name, text
    return answering(switch)


@answering
@named
def run(target: Target, name: str) -> Answer:
    """Enqueue the job of a schedule now.

    The next time of the schedule stays. A paused schedule can be run, too.
    """
    from supervisor.ops import commands

    with target.operations() as operations:
        job_id = commands.run_schedule(operations, name, operations.statistics.now())
    return Answer({"id": job_id}, str(job_id))


_of_schedules = of_keys(
    "schedules",
    "type=TYPE cron=LINE every=DURATION timezone=ZONE payload=JSON priority=N misfire=WORD unique_key=KEY "
    "spread=DURATION expect_within=DURATION",
)


def _making(name: Literal["add", "change"], text: str) -> click.Command:
    """`schedules add` or `schedules change`."""

    def make(target: Target, name: str, **given: Any) -> Answer:
        from supervisor.cli.enqueue import decoded, warn_of_type
        from supervisor.ops import commands

        keys: dict[str, Any] = {key: value or None for key, value in given.items() if value is not None}
        if keys.get("payload"):
            keys["payload"] = decoded(keys["payload"])
        with target.operations() as operations:
            changed = commands.set_schedule(operations, name, keys, operations.statistics.now(), mode)
        if keys.get("type"):
            warn_of_type(target, keys["type"])
        done = "is added" if mode == "add" else "is changed" if changed else "is as it was"
        return Answer({"name": name, "changed": changed}, f"the schedule {name} {done}")

    mode = name
    make.__name__, make.__doc__ = name, text
    return answering(named(_of_schedules(make)))


@answering
@named
def remove(target: Target, name: str) -> Answer:
    """Remove a schedule that was made at run time.

    Its jobs stay.
    """
    from supervisor.ops import commands

    with target.operations() as operations:
        commands.remove_schedule(operations, name, operations.statistics.now())
    return Answer({"name": name, "changed": True}, f"the schedule {name} is removed")


schedules = group(
    "List, make, change, pause, run schedules.",
    {
        "list": list_schedules,
        "add": _making(
            "add",
            "Make a schedule at run time.\n\nIt needs --type, and --cron or --every. It is known within a second.",
        ),
        "change": _making(
            "change",
            "Change a schedule that was made at run time.\n\nOnly what is given changes. An empty value removes a key.",
        ),
        "remove": remove,
        "pause": _switch("pause", "Stop a schedule from firing.", paused=True),
        "resume": _switch(
            "resume",
            "Let a paused schedule fire again.\n\nThe times that it has missed are handled according to its `misfire`.",
            paused=False,
        ),
        "run": run,
    },
)
