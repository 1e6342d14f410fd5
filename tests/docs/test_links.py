"""Links lead somewhere, and each stop of docs/tour.md names a file and what that file defines."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCUMENTS, ROOT, anchors, links


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_resolves(document: Path) -> None:
    for target in links(document):
        if target.startswith("https://"):
            continue
        assert "://" not in target, target
        file, _, anchor = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        assert path.exists(), target
        assert path.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(path), target


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        document = ahead.pop()
        if document in reached or document.suffix != ".md":
            continue
        reached.add(document)
        targets = [target.partition("#")[0] for target in links(document) if "://" not in target]
        ahead += [(document.parent / target).resolve() for target in targets if target]
    assert set(DOCUMENTS) <= reached


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in links(index)}
    assert {page for page in DOCUMENTS if page.parent == index.parent} - {index} <= listed


def test_the_readme_is_short() -> None:
    words = len((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert words <= 1500, f"README.md has {words} words: move reference to docs/"


TOUR = "docs/tour.md"
_STOP = re.compile(r"^## (?P<number>\d+)\. .+\n\n`(?P<file>supervisor/[\w/]+\.py)`: `(?P<name>\w+)`\n\n", re.M)


def stops() -> list[tuple[int, str, str]]:
    """(number, file, name) of each stop."""
    text = (ROOT / TOUR).read_text(encoding="utf-8")
    return [(int(match["number"]), match["file"], match["name"]) for match in _STOP.finditer(text)]


def defined(file: str) -> set[str]:
    """The functions and classes of a module, without those inside others."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}


def test_the_tour_has_ten_stops() -> None:
    headings = re.findall(r"^## ", (ROOT / TOUR).read_text(encoding="utf-8"), re.M)
    assert [number for number, _, _ in stops()] == list(range(1, 11))
    assert len(headings) == 10


@pytest.mark.parametrize(("file", "name"), [(file, name) for _, file, name in stops()])
def test_each_stop_names_what_its_file_defines(file: str, name: str) -> None:
    assert (ROOT / file).is_file()
    assert name in defined(file)
