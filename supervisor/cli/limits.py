"""`limit`: how many jobs of a type run at once, how often one starts, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import Answer, Target, answering, flag, of_keys
from supervisor.domain.text import is_number

if TYPE_CHECKING:
    from supervisor.domain.limits import Limits

_of_limits = of_keys(
    "types",
    "max_running=N|none rate=N/s|none burst=N|none concurrency_per_key=N|none on_conflict=WORD|none "
    "rate_per_key=N/s|none burst_per_key=N|none fair= age_boost=DURATION|none breaker=N/DURATION|none",
)


@answering
@click.argument("type", metavar="[TYPE]", default="")
@_of_limits
@flag("--reset", "The configured limits hold again.")
@flag("--force", "Even if no pool takes the type and no job has it.")
def limit(target: Target, type: str, reset: bool, force: bool, **given: Any) -> Answer:
    """Show or change when jobs of a type may run.

    Without an option, the limits of the type, or of all. What is set holds at once, and over restarts and reloads until
    --reset; `none` takes a limit away. Jobs that run already are not stopped.
    """
    from supervisor.domain.values import checked_type
    from supervisor.ops import commands
    from supervisor.ops.supervisors import Unknown

    values = {key: _limiting(key, text) for key, text in given.items() if text is not None}
    if (reset and values) or ((reset or values) and not type):
        raise wrong_usage("--reset stands alone" if type else "name the type whose limits are to change")
    if type:
        checked_type(type)
    notes = []
    configured, known = _configured_limits(target) if reset else {}, target.types() if type else ()
    with target.operations() as operations:
        if reset:
            value = commands.reset_limits(operations, type, configured or {}, operations.statistics.now(), known)
            if configured is None:
                notes = ["note: without a configuration, its limits hold again after the next start or reload"]
        elif values:
            now = operations.statistics.now()
            try:
                value = commands.limit(operations, type, values, now, configured=known, force=force)
            except Unknown as error:
                error.add_note("--force sets it anyway")
                raise
        elif type:
            value = commands.limits_of_type(operations, type, known)
        else:
            found = commands.limits(operations)
            lines = [*map(_limited, found)] or ["no type has limits"]
            return Answer(found, *lines, notes=_unwritten(target, {each["type"] for each in found}))
    return Answer(value, _limited(value), notes=notes)


def _unwritten(target: Target, known: set[str]) -> list[str]:
    """A note about the configured limits that no supervisor has written into the database."""
    settings = target.settings_if_any()
    types = ", ".join(sorted(settings.limits.keys() - known if settings else ()))
    return [f"note: the configured limits of {types} hold from the next start or reload on"] if types else []


def _limiting(key: str, text: str | bool) -> Any:
    """The value of a key of the configuration, from that of an option."""
    if isinstance(text, bool) or text == "none":
        return None if text == "none" else text
    if key == "breaker":
        failures, _, pause = text.partition("/")
        return {"failures": _limiting("", failures)} | ({"pause": pause} if pause else {})
    is_count = is_number(text.removeprefix("-")) and len(text) < 1000 and not key.startswith("rate")
    return int(text) if is_count else text


def _configured_limits(target: Target) -> Mapping[str, Limits] | None:
    """With those of tasks; None with --database alone."""
    from supervisor.config import load

    return None if target.settings_if_any() is None else load(target.config_path, database=target.database).limits


def _limited(value: Mapping[str, Any]) -> str:
    from supervisor.config.limits import in_words

    return f"{value['type']}: {in_words(value['limits']) or 'no limits'}{', set by an operator' * value['chosen']}"
