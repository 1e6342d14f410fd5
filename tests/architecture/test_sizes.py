"""Classes stay small: one with many public methods has several tasks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_METHODS = 15
MOST_OF_A_PROTOCOL = 10  # each implementation, and each double in a test, must have them all


def public_methods(node: ast.ClassDef) -> set[str]:
    """Properties count, too; an overloaded method and a property with a setter count once."""
    methods = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {part.name for part in node.body if isinstance(part, methods) and not part.name.startswith("_")}


def is_protocol(node: ast.ClassDef) -> bool:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return any(ast.unparse(base).split(".")[-1] == "Protocol" for base in bases)


def too_large(source: str) -> Iterator[str]:
    """The classes of a module that have too many public methods."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            count, most = len(public_methods(node)), MOST_OF_A_PROTOCOL if is_protocol(node) else MOST_METHODS
            if count > most:
                yield f"{node.name} has {count} public methods; the limit is {most}"


def test_no_class_has_many_public_methods() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {found}"
        for path in sorted((ROOT / "supervisor").rglob("*.py"))
        for found in too_large(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("bases", "most"),
    [
        ("", MOST_METHODS),
        ("(Base)", MOST_METHODS),
        ("(Protocol)", MOST_OF_A_PROTOCOL),
        ("(Protocol[T])", MOST_OF_A_PROTOCOL),
    ],
)
def test_one_method_more_is_found(bases: str, most: int) -> None:
    def module(count: int) -> str:
        lines = [f"class Some{bases}:", "    def __init__(self): ...", "    def _private(self): ..."]
        for number in range(count):
            lines += ["    @property" if number % 2 else "", f"    def public_{number}(self): ..."]
        return "\n".join(lines)

    assert list(too_large(module(most))) == []
    assert list(too_large(module(most + 1))) == [f"Some has {most + 1} public methods; the limit is {most}"]
