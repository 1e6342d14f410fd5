"""`drain` and `undrain`: a host claims nothing more, and finishes what runs."""

from __future__ import annotations

from typing import Annotated

import typer

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import AsJson, Target, on_target
from supervisor.cli.output import result
from supervisor.domain.text import counted

Host = Annotated[str, typer.Argument(metavar="[HOST]", show_default=False)]


@on_target
def drain(
    target: Target,
    host: Host = "",
    wait: Annotated[bool, typer.Option("--wait", help="Return when none of its jobs runs any more.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Drain it even if no supervisor runs there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a host claim no more jobs; what runs there finishes.

    Default: this host. It stays drained, over restarts too, until `supervisor undrain`.
    """
    from supervisor.config.machine import own_host
    from supervisor.ops.supervisors import UnknownHost, await_drained, claims_on, require_host

    host = host or own_host(target.url())
    with target.operations() as operations:
        try:
            if not force:
                require_host(operations, host)
        except UnknownHost as error:
            raise wrong_usage(error.problems[0], "--force drains it anyway") from None
        changed = operations.controls.drain(host, operations.statistics.now())
        if wait:
            await_drained(operations, host)
        running = claims_on(operations, host)
    text = f"{host} {'is drained' if changed else 'was already drained'}"
    text += f"; {counted(running, 'job')} still {'runs' if running == 1 else 'run'} there" if running else ""
    result({"host": host, "drained": True, "changed": changed, "running": running}, text, as_json=as_json)


@on_target
def undrain(target: Target, host: Host = "", as_json: AsJson = False) -> None:
    """Let a drained host claim jobs again.

    Default: this host.
    """
    from supervisor.config.machine import own_host

    host = host or own_host(target.url())
    with target.operations() as operations:
        changed = operations.controls.undrain(host)
    text = f"{host} {'may claim jobs again' if changed else 'was not drained'}"
    result({"host": host, "drained": False, "changed": changed}, text, as_json=as_json)
