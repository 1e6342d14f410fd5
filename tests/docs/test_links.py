"""Links lead somewhere, and the pages about the code name files, classes and functions that it has."""

from __future__ import annotations

import builtins
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.docs.markdown import DOCUMENTS, ROOT, anchors, links, prose, spans


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
    assert words <= 1200, f"README.md has {words} words: move reference to docs/"


OURS = ("supervisor", "tests", "handlers", "bench", "clients")
PYTHON = [path for folder in OURS for path in (ROOT / folder).rglob("*.py")]
SOURCES = {f"/{path.relative_to(ROOT)}": path.read_text(encoding="utf-8") for path in PYTHON}
DEFINED = r"^ *(?:async )?(?:def|class) (\w+)|^ *(\w+)(?:: | = )"
NAMES = {name for source in SOURCES.values() for names in re.findall(DEFINED, source, re.M) for name in names}
FOLDERS = {place[: slash.end()] for place in SOURCES for slash in re.finditer("/", place)}
CLASSES: defaultdict[str, str] = defaultdict(str)
for source in SOURCES.values():
    for match in re.finditer(r"^class (\w+).*(?:\n(?: .*)?)*", source, re.M):
        CLASSES[match[1]] += match[0]


def has(name: str, part: str) -> bool:
    """Whether a class, or one that it extends, has a method or an attribute."""
    bases = set(re.findall(r"\w+", " ".join(re.findall(r"^class \w+\((.*)\):", CLASSES[name], re.M)))) - {name}
    defined = re.search(rf"^ +(async )?(def |self\.)?{part}\b", CLASSES[name], re.M)
    return defined is not None or any(has(base, part) for base in bases & CLASSES.keys())


def exists(span: str, *, of_code: bool) -> bool:
    """False for a file of ours that is not there; `of_code`, also for a folder, a class, a part of one, a test, or
    something private.
    """
    if re.match(r"(supervisor|tests|bench|handlers|clients|docs|deploy|examples)/[\w/.]+$", span):
        return (ROOT / span).exists()
    if of_code and re.fullmatch(r"[\w./]+(\.py|/)", span):
        return any(place.endswith(f"/{span}") for place in [*SOURCES, *FOLDERS])
    if of_code and (match := re.fullmatch(r"([A-Z]\w*[a-z]\w*)(?:\.(\w+))?", span)):
        return hasattr(builtins, span) or (match[1] in CLASSES and (match[2] is None or has(match[1], match[2])))
    return not (of_code and re.fullmatch(r"(test)?_\w+", span)) or span in NAMES


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_what_the_code_has(page: Path) -> None:
    of_code = page == ROOT / "CONTRIBUTING.md" or page.parent.name == "internals"
    assert [span for span in spans(prose(page)) if not exists(span, of_code=of_code)] == []
    for name, file in re.findall(r"`(\w+)[.\w]*` in\s+`([\w/]+\.py)`", prose(page)) if of_code else ():
        there = "".join(source for place, source in SOURCES.items() if place.endswith(f"/{file}"))
        assert re.search(rf"^ *(async )?(def|class) {name}\b", there, re.M), f"{name} is not in {file}"


def test_the_code_names_pages_that_exist() -> None:
    named = set(re.findall(r"\bdocs/[\w/-]+\.md\b", "".join(SOURCES.values())))
    assert [page for page in named if not (ROOT / page).exists()] == []
