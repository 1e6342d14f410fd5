"""What one has to read stays small: classes, modules, what they import, and the way through them."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_METHODS = 16
MOST_OF_A_PROTOCOL = 11  # each implementation, and each double in a test, must have them all


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


# May be raised only with a reason in the commit.
MOST_LINES, MOST_MODULES = 46_473, 260
MOST_LINES_OF_TESTS = 73_856
MOST_WORDS_OF_INTERNALS = 6_000
MOST_ON_THE_PATH = 1800  # lines, in at most twelve modules


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "supervisor").rglob("*.py")
    }


def imported(tree: ast.Module, known: Container[str]) -> set[str]:
    """The known modules that it imports: also for types, and inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
    return {name for name in found if name in known}


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or not."""

    def reached(start: str) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            for name in imports[waiting.pop()] - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    reach = {name: reached(name) for name in imports}
    together = {tuple(sorted(two for two in reach[one] if one in reach[two])) for one in imports if one in reach[one]}
    return sorted(map(list, together))


def test_the_code_does_not_grow_unnoticed() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules().values())
    assert lines <= MOST_LINES
    assert len(modules()) <= MOST_MODULES
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    assert tests <= MOST_LINES_OF_TESTS
    pages = (ROOT / "docs/internals").rglob("*.md")
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MOST_WORDS_OF_INTERNALS


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    imports = {
        name: imported(ast.parse(path.read_text(encoding="utf-8")), known) - {name} for name, path in known.items()
    }
    assert circles(imports) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    source = "if TYPE_CHECKING:\n  from s import m\ndef f():\n  import s.n\n  from s.o import p"
    assert imported(ast.parse(source), {"s.m", "s.n", "s.o"}) == {"s.m", "s.n", "s.o"}


def test_the_path_of_a_job_is_read_in_one_sitting() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    told = page.partition("\n### In reading order\n\n")[2].partition("\n\n")[0]
    path = [ROOT / "supervisor" / name for name in re.findall(r"`([\w/]+\.py)`", told)]
    assert 8 <= len(path) <= 12
    assert sum(len(module.read_text(encoding="utf-8").splitlines()) for module in path) <= MOST_ON_THE_PATH
