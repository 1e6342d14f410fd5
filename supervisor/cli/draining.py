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
    from supervisor.ops import draining
    from supervisor.ops.hosts import UnknownHost

    host = host or own_host(target.url())
    with target.operations() as operations:
        try:
            changed = draining.drain(operations, host, operations.statistics.now(), force=force)
        except UnknownHost as error:
            raise wrong_usage(error.problems[0], "--force drains it anyway") from None
        if wait:
            draining.await_drained(operations, host)
        running = draining.running_on(operations, host)
    text = f"{host} {'is drained' if changed else 'was already drained'}"
    text += f"; {counted(running, 'job')} still {'runs' if running == 1 else 'run'} there" if running else ""
    result({"host": host, "drained": True, "changed": changed, "running": running}, text, as_json=as_json)


@on_target
def undrain(target: Target, host: Host = "", as_json: AsJson = False) -> None:
    """Let a drained host claim jobs again.

    Default: this host.
    """
    from supervisor.config.machine import own_host
    from supervisor.ops import draining

    host = host or own_host(target.url())
    with target.operations() as operations:
        changed = draining.undrain(operations, host)
    text = f"{host} {'may claim jobs again' if changed else 'was not drained'}"
    result({"host": host, "drained": False, "changed": changed}, text, as_json=as_json)
