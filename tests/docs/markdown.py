"""Just enough Markdown for our own documents: fenced blocks with marks, tables, links, headings.

A mark is a comment on the line before a block or a table: `<!-- run -->`, `<!-- file: jobs.py -->`,
`<!-- keys: pools -->`.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").glob("*.md"),
    ]
)

_FENCE = re.compile(
    r"^(?:[ ]*<!-- (?P<mark>[^\n]*?) -->\n)?(?P<indent>[ ]*)```(?P<language>\w+)\n(?P<text>.*?)^[ ]*```$", re.M | re.S
)
_LINK = re.compile(r"\]\((?P<target>[^()\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is where its text begins, from 1."""

    document: Path
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.mark == "run"

    @property
    def file(self) -> str:
        """The name of the file that the block is, or nothing."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else ""


def blocks(*languages: str, document: Path | None = None) -> list[Block]:
    """Every block of these languages, in order; of all documents, or of one."""
    found = []
    for path in DOCUMENTS if document is None else [document]:
        text = path.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if not languages or match["language"] in languages:
                line = text.count("\n", 0, match.start("text")) + 1
                found.append(Block(path, line, match["language"], match["mark"] or "", textwrap.dedent(match["text"])))
    return found


def table(document: str, mark: str) -> list[list[str]]:
    """The rows of a marked table, without its head. Cells are stripped."""
    text = (ROOT / document).read_text(encoding="utf-8")
    match = re.search(rf"^<!-- {re.escape(mark)} -->\n(?P<rows>(?:\|.*\n)+)", text, re.M)
    assert match is not None, f"{document} has no table <!-- {mark} -->"
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in match["rows"].splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def spans(text: str) -> list[str]:
    """What stands in `code` in a text."""
    return _SPAN.findall(text)


def named(rows: list[list[str]]) -> list[str]:
    """The names in the first cells of a table's rows; a cell may have several."""
    return [name for row in rows for name in spans(row[0])]


def prose(document: Path) -> str:
    """A document without its blocks."""
    return _FENCE.sub("", document.read_text(encoding="utf-8"))


def links(document: Path) -> list[str]:
    return [match["target"] for match in _LINK.finditer(prose(document))]


def anchors(document: Path) -> set[str]:
    """The names by which headings are linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(document), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
