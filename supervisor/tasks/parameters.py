"""The parameters of a task's function: from the arguments of a call to a payload, and back.

JSON's own types are checked here. For the others, such as dates, UUIDs, enums, dataclasses and models, pydantic
converts; it is imported only if a task has such a parameter.
"""

from __future__ import annotations

import datetime
import inspect
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from supervisor.domain.errors import InvalidJob
from supervisor.domain.values import short

_CONTEXTS = ("Context", "BatchContext")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NOTHING = inspect.Parameter.empty
_WORDS: Mapping[Any, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


class Mismatch(ValueError):
    """A value does not fit a parameter. The message says which one, and what it must be."""


class Parameters:
    """`name` is the type of the jobs, for messages. Raises TypeError for parameters that a payload cannot hold."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        signature = signature_of(function)
        context = context_of(signature)
        self._context = context.name if context is not None else None
        self._converters: dict[str, Converter] = {}
        self._others: Converter | None = None  # if it takes any other keyword
        kept = []
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name}: it is a generator; a task must return its result instead of yielding it")
        inner = function.__qualname__.rpartition("<locals>.")[2]
        if "." in inner and {"self", "cls"} & {*signature.parameters}:
            raise TypeError(f"{name}: it is a method; a task is a function, or a staticmethod")

        def converter(annotation: Any, what: str) -> Converter:
            return Converter(_resolved(function, name, annotation), f"{name}: {what}")

        for parameter in signature.parameters.values():
            if parameter.name == self._context and parameter.kind in _NAMED:
                continue
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                self._others = converter(parameter.annotation, parameter.name)
            elif parameter.kind in _NAMED:
                self._converters[parameter.name] = converter(parameter.annotation, parameter.name)
            else:
                raise TypeError(f"{name}: {parameter}: the parameters of a task are stored by their names")
            kept.append(parameter)
        self._signature = signature.replace(parameters=kept, return_annotation=_NOTHING)
        self._required = {p.name for p in kept if p.default is _NOTHING and p.kind is not inspect.Parameter.VAR_KEYWORD}
        self._result = converter(signature.return_annotation, "the result")

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The payload for a call with these arguments. Raises InvalidJob."""
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidJob("payload", f"{self._name}: {error}") from None
        payload: dict[str, Any] = {}
        try:
            for name, value in given.items():
                if name in self._converters:
                    payload[name] = self._converters[name].stored(value)
                elif self._others is not None:
                    payload |= {key: self._others.stored(each) for key, each in value.items()}
        except Mismatch as error:
            raise InvalidJob("payload", str(error)) from None
        return payload

    def arguments(self, payload: Any, ctx: Any) -> dict[str, Any]:
        """The arguments for a payload. Raises Mismatch, for example if the signature has changed since."""
        if not isinstance(payload, dict):
            raise Mismatch(f"{self._name}: the payload is not an object with the task's parameters")
        missing = self._required - payload.keys()
        if missing:
            raise Mismatch(f"{self._name}: the parameter {min(missing)!r} is missing in the payload")
        arguments: dict[str, Any] = {}
        for name, value in payload.items():
            converter = self._converters.get(name, None if name == self._context else self._others)
            if converter is None:
                raise Mismatch(f"{self._name}: the task has no parameter {name!r}")
            arguments[name] = converter.loaded(value)
        if self._context is not None:
            arguments[self._context] = ctx
        return arguments

    def result(self, value: Any) -> Any:
        """What the function has returned, as JSON can hold it. Values that need no conversion are not checked."""
        return self._result.stored(value) if self._result.json is None else value


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature. From Python 3.14 on, annotations are strings, as if they were quoted, if one of them cannot be
    evaluated: it may name what is imported for type checkers only. Raises TypeError or ValueError.
    """
    try:
        return inspect.signature(function)
    except Exception as error:
        if sys.version_info >= (3, 14) and not isinstance(error, ValueError):
            from annotationlib import Format

            return inspect.signature(function, annotation_format=Format.STRING)
        raise


def _resolved(function: Callable[..., Any], name: str, annotation: Any) -> Any:
    """An annotation that is a string, as it is in quotes and in a module with `from __future__ import annotations`."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, inspect.unwrap(function).__globals__)  # noqa: S307 - the author's own annotation
    except Exception as error:
        raise TypeError(f"{name}: the annotation {annotation!r} cannot be resolved: {error}") from None


def context_of(signature: inspect.Signature) -> inspect.Parameter | None:
    """The parameter that receives the run's context: the first that is annotated so, or named `ctx`."""
    return next(filter(_is_context, signature.parameters.values()), None)


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if annotation is _NOTHING:
        return parameter.name == "ctx"
    if isinstance(annotation, str):  # not evaluated: it may name what is imported for type checkers only
        return re.search(r"\b(Batch)?Context\b", annotation) is not None
    return any(
        getattr(each, "__name__", "") in _CONTEXTS and getattr(each, "__module__", "") == "supervisor.worker.context"
        for each in (annotation, *get_args(annotation))  # Context | None
    )


class Converter:
    """Converts the values of one parameter, or only checks those of JSON's own types. `name` is for messages.

    Raises TypeError for an annotation that cannot be used.
    """

    def __init__(self, annotation: Any, name: str) -> None:
        self._name = name
        try:
            self.json = _json_type(annotation)
        except TypeError:  # it cannot be hashed
            raise TypeError(f"{name}: {annotation!r} is not a type") from None
        if self.json is None:
            try:
                from pydantic import TypeAdapter

                self._adapter = TypeAdapter(annotation)
            except ImportError:
                raise TypeError(f"{name}: this annotation needs the package pydantic: {annotation}") from None
            except Exception as error:
                raise TypeError(f"{name}: its annotation cannot be used: {_first_line(error)}") from None

    def stored(self, value: Any) -> Any:
        """What JSON holds of the value, if that becomes the same value again: a union may choose another member, a
        secret is hidden, a field of a subclass is left out. Raises Mismatch.
        """
        value = self.loaded(value)
        if self.json is not None:
            return value
        try:
            stored = self._adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
            again = self.loaded(stored)
            if _is_same(value, again):
                return stored
        except Exception as error:
            raise Mismatch(f"{self._name}: {short(value)} cannot be stored as JSON: {_first_line(error)}") from None
        raise Mismatch(f"{self._name}: {short(value)} would come back from JSON as another value, {short(again)}")

    def loaded(self, value: Any) -> Any:
        """The value of what JSON holds. Raises Mismatch."""
        if self.json is not None:
            if not self.json.fits(value):
                raise Mismatch(f"{self._name} must be {self.json.words}, not {short(value)}")
            return value
        from pydantic import ValidationError

        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = "".join(f"[{part!r}]" for part in first["loc"])
            raise Mismatch(f"{self._name}{place}: {first['msg']}, not {short(first['input'])}") from None


def _is_same(one: Any, other: Any) -> bool:
    """Whether they are equal. Aware times are if they are the same instant: Python says that times in different zones
    are never equal in the hour in which the offset of one of them changes. So what is unequal is compared part by part.
    """
    if type(one) is not type(other):
        return False
    if one == other:
        return True
    if isinstance(one, datetime.datetime):
        return None not in (one.utcoffset(), other.utcoffset()) and one.timestamp() == other.timestamp()
    if isinstance(one, Mapping):
        return _is_same([*one.items()], [*other.items()])
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return hasattr(one, "__dict__") and _is_same(vars(one), vars(other))


class _JsonType(NamedTuple):
    """A type whose values are the same in JSON: what it is called, and whether a value is of it."""

    words: str
    fits: Callable[[Any], bool]


def _json_type(annotation: Any) -> _JsonType | None:
    """None if values of this type are not the same in JSON."""
    if annotation in (_NOTHING, Any, object):
        return _JsonType("anything", lambda _: True)
    if annotation is None or annotation in _WORDS:
        kind = annotation or type(None)
        kinds, numbers = (int, float) if kind is float else (kind,), kind in (int, float)
        return _JsonType(
            _WORDS[kind], lambda value: isinstance(value, kinds) and not (numbers and isinstance(value, bool))
        )
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        plain = all(type(each) in (str, int, bool, type(None)) for each in inner)
        words = " or ".join(map(repr, inner))
        same = [(type(each), each) for each in inner]
        return _JsonType(words, lambda value: (type(value), value) in same) if plain else None
    found = [_json_type(each) for each in inner] if origin in (list, dict, Union, types.UnionType) else []
    parts = [part for part in found if part is not None]
    if not parts or len(parts) < len(found) or (origin is dict and inner[0] is not str):
        return None
    if origin is list:
        return _JsonType(str(annotation), lambda value: isinstance(value, list) and all(map(parts[0].fits, value)))
    if origin is dict:
        key, item = parts
        return _JsonType(
            str(annotation),
            lambda value: isinstance(value, dict) and all(key.fits(k) and item.fits(v) for k, v in value.items()),
        )
    words = " or ".join(part.words for part in parts)
    return _JsonType(words, lambda value: any(part.fits(value) for part in parts))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
