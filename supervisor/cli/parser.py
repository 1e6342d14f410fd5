"""Typer's commands, without the conversion of values that need none.

Typer converts every value through pydantic, even text to text, and importing pydantic takes longer than most commands
take to run.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _lightened(super().get_params(ctx))


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _lightened(super().get_params(ctx))


def _lightened(params: list[Any]) -> list[Any]:
    """Parameters, among them those that Typer adds, like --help."""
    for param in params:
        if not isinstance(param.process_value, partial):
            param.process_value = partial(_value, param, param.process_value)
    return params


def _value(param: Any, convert: Any, context: Any, given: Any) -> Any:
    """What the command receives: text for a text, or a default, as it is; all else as Typer converts it."""
    # Versions of Typer that do not use pydantic have no type descriptor.
    wanted = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if not (wanted is str and isinstance(given, str)) and (given is not param.default or param.required):
        return convert(context, given)
    return given if param.callback is None else param.callback(context, param, given)
