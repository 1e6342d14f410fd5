"""The supervisor is readable: its main road in one sitting, no module that needs half the house, no circle."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.test_layers import ROOT, imports, sources

MOST_LINES = 2000  # of the modules on the main road together
MOST_IMPORTS = 20  # of our own modules, by one module
MOST_FIELDS = 10  # of an object
PACKAGES = ("supervisor/supervision", "supervisor/template")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def ours(path: Path) -> set[str]:
    return {found.module for found in imports(path) if found.module.startswith("supervisor.")}


def main_road() -> list[str]:
    """The modules that docs/internals/architecture.md names in reading order."""
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    road = page.split("## The supervisor's side, in reading order\n")[1].split("\n## ")[0]
    return re.findall(r"`(\w+\.py)`", road)


def test_the_main_road_is_read_in_one_sitting() -> None:
    road = [ROOT / "supervisor" / "supervision" / name for name in main_road()]
    assert len(road) == 10
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in road) <= MOST_LINES


def test_no_module_imports_half_the_house() -> None:
    assert {name_of(path): len(ours(path)) for path in sources(*PACKAGES) if len(ours(path)) > MOST_IMPORTS} == {}


def fields_of(node: ast.ClassDef) -> set[str]:
    """Those of a dataclass, and what its methods set."""
    declared = {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
    return declared | {
        part.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        for part in ast.walk(method)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and ast.unparse(part.value) == "self"
    }


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=name_of)
def test_no_object_has_many_fields(path: Path) -> None:
    classes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)]
    assert {node.name: sorted(fields) for node in classes if len(fields := fields_of(node)) > MOST_FIELDS} == {}
