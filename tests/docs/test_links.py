"""Links lead somewhere."""

from __future__ import annotations

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
