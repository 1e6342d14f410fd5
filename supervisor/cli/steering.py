"""`pause`, `resume`, `scale`, `drain`, `undrain` and `reload`: they reach running supervisors within a second."""

from __future__ import annotations

import reprlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

from supervisor.cli.errors import FAILED, USAGE, wrong_usage
from supervisor.cli.options import Target, as_json, check_patience, flag, on_target, option, patience
from supervisor.cli.output import note, result
from supervisor.domain.text import counted, human

on_host = option("--host", "Only there; gpu-* means all that match.", "NAME", default="")
one_host = click.argument("host", metavar="[HOST]", default="")
_RELOAD_TOLD = 2.0  # seconds to wait for what comes of a reload: most code is loaded, or fails, within that


@on_target
@click.argument("type")
@flag("--force", "Pause it even if no pool takes the type and no job has it.")
@as_json
def pause(target: Target, type: str, force: bool, as_json: bool) -> None:
    """Stop starting jobs of a type.

    A type that no pool takes and no job has is refused: probably a typing error.
    """
    _set(target, type, paused=True, force=force, as_json=as_json)


@on_target
@click.argument("type")
@as_json
def resume(target: Target, type: str, as_json: bool) -> None:
    """Start jobs of a paused type again."""
    _set(target, type, paused=False, as_json=as_json)


def _set(target: Target, type_: str, *, paused: bool, force: bool = False, as_json: bool) -> None:
    from supervisor.domain.intake import checked_type
    from supervisor.ops import commands
    from supervisor.ops.supervisors import Unknown

    checked_type(type_)  # before the database is opened
    configured = target.types()
    with target.operations() as operations:
        try:
            changed = commands.pause(
                operations, type_, paused, operations.statistics.now(), configured=configured, force=force
            )
        except Unknown as error:
            raise wrong_usage(error.problems[0], "--force pauses it anyway" if paused else "") from None
    done, unchanged = ("is paused", "was already paused") if paused else ("is resumed", "was not paused")
    text = f"{type_} {done if changed else unchanged}"
    result({"type": type_, "paused": paused, "changed": changed}, text, as_json=as_json)


@on_target
@click.argument("pool")
@click.argument("size", metavar="N|auto")
@flag("--yes -y", "Allow more than 100 workers.")
@on_host
@as_json
def scale(target: Target, pool: str, size: str, yes: bool, host: str, as_json: bool) -> None:
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
    holds = before.sizes.get(pool) if workers is None and host else workers
    automatic = "is sized by the configuration again"
    text = f"pool {pool} " + (automatic if holds is None else f"now has {counted(holds, 'worker')}")
    if host:
        text += f" on {host}"
    elif dropped := before.hosts_of(pool):
        text += f", also on {', '.join(dropped)}"
    told = {"pool": pool, "workers": workers}
    result(told | ({"host": host} if host else {}), text, as_json=as_json)
    if not running and not as_json:
        note("note: no supervisor is running; this holds as soon as one does")


@on_target
@one_host
@flag("--wait", "Return when none of its jobs runs any more.")
@flag("--force", "Drain it even if no supervisor runs there.")
@as_json
def drain(target: Target, host: str, wait: bool, force: bool, as_json: bool) -> None:
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
            raise wrong_usage(error.problems[0], "--force drains it anyway") from None
        changed = operations.controls.drain(host, operations.statistics.now())
        if wait:
            await_drained(operations, host)
        running = claims_on(operations, host)
    text = f"{host} {'is drained' if changed else 'was already drained'}"
    text += f"; {counted(running, 'job')} still {'runs' if running == 1 else 'run'} there" if running else ""
    result({"host": host, "drained": True, "changed": changed, "running": running}, text, as_json=as_json)


@on_target
@one_host
@as_json
def undrain(target: Target, host: str, as_json: bool) -> None:
    """Let a drained host claim jobs again.

    Default: this host.
    """
    from supervisor.config.machine import own_host

    host = host or own_host(target.url())
    with target.operations() as operations:
        changed = operations.controls.undrain(host)
    text = f"{host} {'may claim jobs again' if changed else 'was not drained'}"
    result({"host": host, "drained": False, "changed": changed}, text, as_json=as_json)


@on_target
@flag("--wait", "Wait for the result, not only 2 seconds, until new workers run.")
@patience
@as_json
def reload(target: Target, wait: bool, timeout: float | None, as_json: bool) -> None:
    """Reload the configuration and the code.

    Running supervisors replace their workers one at a time. An invalid configuration is refused. If the new code
    cannot be loaded, or fails its canary, the old code keeps running, and the exit code is 1; so it is when that is not
    known within --timeout.
    """
    from supervisor.ops import commands

    check_patience(wait, timeout)
    settings = target.settings_if_any()  # a faulty one is refused here, without the advice to use --database
    with target.operations() as operations:
        asked = commands.reload(operations, operations.statistics.now())
        began = time.monotonic()
        outcomes = commands.await_reload(operations, asked, timeout if wait else _RELOAD_TOLD)
        took = human(time.monotonic() - began)
    several = len({record.host for record in asked}) > 1
    names = {record.id: f"{record.pid} on {record.host}" if several else str(record.pid) for record in asked}
    lines = [line for one in asked for line in _reloaded(names[one.id], one.config, outcomes.get(one.id), took)]
    reloads = {names[key]: outcome for key, outcome in outcomes.items()}
    result({"supervisors": [record.pid for record in asked], "reloads": reloads}, *lines, as_json=as_json)
    if settings is not None and settings.path.resolve() not in {Path(record.config).resolve() for record in asked}:
        ours, theirs = settings.path, ", ".join(sorted({record.config for record in asked}))
        note(f"warning: no supervisor reads {ours}, but {theirs}: restart it with supervisor --config {ours} run")
    for outcome in () if as_json else outcomes.values():
        for problem in outcome["problems"]:
            note(f"error: {problem}")
    states = {outcome["state"] for outcome in outcomes.values()}
    if states - {"accepted"} or (wait and len(outcomes) < len(asked)):
        raise Exit(USAGE if states <= {"accepted", "refused"} and "refused" in states else FAILED)


def _reloaded(name: str, config: str, outcome: dict[str, Any] | None, took: str) -> Iterator[str]:
    """What has become of the reload of one supervisor: which pools have the new code, and which have not tried it."""
    if outcome is None:
        yield f"supervisor {name} is still reloading {config}"
        return
    state, canaries = outcome["state"], outcome["canaries"]
    pools = {
        wanted: [pool for pool, found in outcome["pools"].items() if found == wanted]
        for wanted in ("accepted", "untried", "failed")
    }
    did = {"accepted": "reloaded", "failed": "reloaded", "refused": "refused"}.get(state, "ended before it reloaded")
    failed = f"; the new code of {', '.join(pools['failed'])} failed" if state == "failed" else ""
    yield f"supervisor {name} {did} {config}{failed}"
    if state not in ("accepted", "failed"):
        return
    if new := [f"{pool} (canary passed)" if pool in canaries else pool for pool in pools["accepted"]]:
        yield f"after {took}: new code in {', '.join(new)}; workers of the old code leave one at a time"
    for pool in pools["untried"]:
        yield f"after {took}: the code of {pool} was not tried: it has no workers; its next one loads it"
