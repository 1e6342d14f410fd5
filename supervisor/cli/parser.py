"""Typer's commands, without the conversion of values that need none, and without Python's types in their help.

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
            if param.metavar is not None:  # it says what to write; Typer would add <str> or <list[int]>
                param.display_type = _unnamed
                if param.param_type_name == "argument":  # and write {TYPE} [[JSON]] in the usage
                    param.get_usage_pieces = partial(_usage, param.metavar)
    return params


def _usage(metavar: str, ctx: Any) -> list[str]:
    return [metavar]


def _unnamed(ctx: Any) -> str:
    return ""


def _value(param: Any, convert: Any, context: Any, given: Any) -> Any:
    """What the command receives: texts and defaults as they are, what has a parser of ours from it, all else as Typer
    converts it.
    """
    described = getattr(param, "type_descriptor", None)
    if described is None:  # a version of Typer that does not use pydantic
        return convert(context, given)
    parse = described.parameter_info.parser
    value = given
    if parse is not None and given:
        value = [parse(text) for text in given] if isinstance(given, (list, tuple)) else parse(given)
    elif not (described.annotation is str and isinstance(given, str)) and (
        param.required or not (given is param.default or given == ())
    ):
        return convert(context, given)
    return value if param.callback is None else param.callback(context, param, value)
