"""docs/tour.md has ten stops, and each names a file and what that file defines."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.markdown import ROOT

PAGE = "docs/tour.md"
_STOP = re.compile(r"^## (?P<number>\d+)\. .+\n\n`(?P<file>supervisor/[\w/]+\.py)`: `(?P<name>\w+)`\n\n", re.M)


def stops() -> list[tuple[int, str, str]]:
    """(number, file, name) of each stop."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    return [(int(match["number"]), match["file"], match["name"]) for match in _STOP.finditer(text)]


def defined(file: str) -> set[str]:
    """The functions and classes of a module, without those inside others."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}


def test_the_tour_has_ten_stops() -> None:
    headings = re.findall(r"^## ", (ROOT / PAGE).read_text(encoding="utf-8"), re.M)
    assert [number for number, _, _ in stops()] == list(range(1, 11))
    assert len(headings) == 10


@pytest.mark.parametrize(("file", "name"), [(file, name) for _, file, name in stops()])
def test_each_stop_names_what_its_file_defines(file: str, name: str) -> None:
    assert (ROOT / file).is_file()
    assert name in defined(file)
