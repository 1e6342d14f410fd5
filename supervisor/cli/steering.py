"""`pause`, `resume`, `scale`, `drain`, `undrain` and `reload`: they reach running supervisors within a second."""

from __future__ import annotations

import reprlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import AsJson, JobType, Patience, Target, check_patience, on_target, option
from supervisor.cli.output import note, result
from supervisor.domain.text import counted, human

if TYPE_CHECKING:
    from supervisor.store.base import SupervisorRecord

Host = Annotated[str, option("--host", "Only there; gpu-* means all that match.", "NAME")]
OneHost = Annotated[str, typer.Argument(metavar="[HOST]", show_default=False)]
_RELOAD_TOLD = 2.0  # seconds to wait for what comes of a reload: most code is loaded, or fails, within that


@on_target
def pause(
    target: Target,
    type: JobType,
    force: Annotated[bool, option("--force", "Pause it even if no pool takes the type and no job has it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop starting jobs of a type.

    A type that no pool takes and no job has is refused: probably a typing error.
    """
    _set(target, type, paused=True, force=force, as_json=as_json)


@on_target
def resume(target: Target, type: JobType, as_json: AsJson = False) -> None:
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
def scale(
    target: Target,
    pool: Annotated[str, typer.Argument(metavar="POOL")],
    size: Annotated[
        str, typer.Argument(metavar="N|auto", help="The number of workers, or auto for automatic scaling.")
    ],
    yes: Annotated[bool, option("--yes -y", "Allow more than 100 workers.")] = False,
    host: Host = "",
    as_json: AsJson = False,
) -> None:
    """Set a pool's number of workers on each host, or on one.

    `auto` returns the pool to automatic scaling; with --host, to what is set for all hosts, if something is. Without
    --host, what was set for single hosts is dropped.
    """
    from supervisor.ops import commands

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
    holds = before.sizes.get(pool) if workers is None and host else workers
    text = f"pool {pool} " + ("scales automatically" if holds is None else f"now has {counted(holds, 'worker')}")
    if host:
        text += f" on {host}"
    elif dropped := before.hosts_of(pool):
        text += f", also on {', '.join(dropped)}"
    told = {"pool": pool, "workers": workers}
    result(told | ({"host": host} if host else {}), text, as_json=as_json)


@on_target
def drain(
    target: Target,
    host: OneHost = "",
    wait: Annotated[bool, option("--wait", "Return when none of its jobs runs any more.")] = False,
    force: Annotated[bool, option("--force", "Drain it even if no supervisor runs there.")] = False,
    as_json: AsJson = False,
) -> None:
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
def undrain(target: Target, host: OneHost = "", as_json: AsJson = False) -> None:
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
def reload(
    target: Target,
    wait: Annotated[bool, option("--wait", "Wait for the result, not only 2 seconds, until new workers run.")] = False,
    timeout: Patience = None,
    as_json: AsJson = False,
) -> None:
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
        took = time.monotonic() - began
    names, lines = _names(asked), []
    for record in asked:
        outcome = outcomes.get(record.id)
        lines.append(f"supervisor {names[record.id]} {_of_supervisor(outcome, record.config)}")
        lines += _of_pools(outcome, took)
    reloads = {names[key]: outcome for key, outcome in outcomes.items()}
    result({"supervisors": [record.pid for record in asked], "reloads": reloads}, *lines, as_json=as_json)
    if settings is not None and asked:
        _warn_of_another_file(settings.path, {record.config for record in asked})
    for outcome in () if as_json else outcomes.values():
        for problem in outcome["problems"]:
            note(f"error: {problem}")
    unknown = len(asked) - len(outcomes) if wait else 0
    if unknown or any(outcome["state"] != "accepted" for outcome in outcomes.values()):
        raise typer.Exit(1)


def _warn_of_another_file(ours: Path, read: set[str]) -> None:
    """A deployment that moves a link has no effect on a supervisor that was not started through that link."""
    if all(Path(file).resolve() != ours.resolve() for file in read):
        read_now = ", ".join(sorted(read))
        note(f"warning: no supervisor reads {ours}, but {read_now}: restart it with supervisor --config {ours} run")


def _names(records: Iterable[SupervisorRecord]) -> dict[str, str]:
    """By id: their pids, with their hosts where there are several."""
    known = list(records)
    several = len({record.host for record in known}) > 1
    return {record.id: f"{record.pid} on {record.host}" if several else str(record.pid) for record in known}


def _of_pools(outcome: dict[str, Any] | None, took: float) -> list[str]:
    """Which pools have the new code, and how far it was tried in those without workers."""
    if outcome is None or outcome["state"] not in ("accepted", "failed"):
        return []
    new = [
        f"{name} (canary passed)" if name in outcome["canaries"] else name for name in _in_state(outcome, "accepted")
    ]
    found = [f"new code in {', '.join(new)}; workers of the old code leave one at a time"] if new else []
    for name in _in_state(outcome, "untried"):
        found.append(f"the code of {name} was not tried: it has no workers; its next one loads it")
    return [f"after {human(took)}: {line}" for line in found]


def _in_state(outcome: dict[str, Any], state: str) -> list[str]:
    return [name for name, found in outcome["pools"].items() if found == state]


def _of_supervisor(outcome: dict[str, Any] | None, config: str) -> str:
    if outcome is None:
        return f"is still reloading {config}"
    if outcome["state"] == "failed":
        return f"reloaded {config}; the new code of {', '.join(_in_state(outcome, 'failed'))} failed"
    words = {"accepted": "reloaded", "refused": "refused"}
    return f"{words.get(outcome['state'], 'ended before it reloaded')} {config}"
