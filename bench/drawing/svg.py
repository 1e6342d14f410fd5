"""Just enough SVG: text, lines and shapes that take their colours from classes, for light and dark pages.

Colours are written out twice rather than kept in variables, which not every viewer of SVG knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

# Class: (property, colour on a light page, colour on a dark one).
_COLOURS: dict[str, tuple[str, str, str]] = {
    "page": ("fill", "#ffffff", "#0d1117"),
    "ink": ("fill", "#1f2328", "#f0f6fc"),
    "soft": ("fill", "#59636e", "#9198a1"),
    "grid": ("stroke", "#e4e8ec", "#262c36"),
    "axis": ("stroke", "#c4cbd2", "#464e59"),
    "ours": ("fill", "#0969da", "#4493f8"),
    "ours-too": ("fill", "#7ab8ff", "#2a5fa8"),
    "peer": ("fill", "#a9b1ba", "#59616c"),
    "floor": ("stroke", "#bc4c00", "#e58a3a"),
    "floor-text": ("fill", "#bc4c00", "#e58a3a"),
    "ours-line": ("stroke", "#0969da", "#4493f8"),
    "ours-too-line": ("stroke", "#7ab8ff", "#3d7fd6"),
    "halo": ("stroke", "#ffffff", "#0d1117"),
    "spread": ("stroke", "#1f2328", "#f0f6fc"),
    "peer-line": ("stroke", "#a9b1ba", "#6b7480"),
}
_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'


class Canvas:
    """A picture being drawn. Lengths are pixels, y grows downwards."""

    def __init__(self, width: int, height: int, description: str) -> None:
        self._size = (width, height)
        self._description = description
        self._elements: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = "ink",
        *,
        size: int = 13,
        anchor: str = "start",
        bold: bool = False,
        over: bool = False,
    ) -> None:
        """`over` keeps lines that it may cross at a distance."""
        weight = ' font-weight="600"' if bold else ""
        if over:
            weight += ' stroke-width="5" stroke-linejoin="round" paint-order="stroke"'
            colour += " halo"
        place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}'
        self._elements.append(f'<text class="{colour}" {place}>{escape(words)}</text>')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1, dashed: bool = False
    ) -> None:
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self._elements.append(f'<line class="{colour}" {ends} stroke-width="{width}"{dashes}/>')

    def path(self, points: Sequence[tuple[float, float]], colour: str, *, width: float = 2) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        shape = f'fill="none" stroke-width="{width}" stroke-linejoin="round" stroke-linecap="round"'
        self._elements.append(f'<polyline class="{colour}" points="{joined}" {shape}/>')

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 1.5):.1f}" height="{height:.1f}" rx="2"'
        self._elements.append(f'<rect class="{colour}" {place}/>')

    def dot(self, x: float, y: float, colour: str, radius: float = 4) -> None:
        self._elements.append(f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>')

    def __str__(self) -> str:
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        )
        return "\n".join(
            [
                f"{head} font-family='{_FONT}' role=\"img\">",
                f"<title>{escape(self._description)}</title>",
                f"<style>\n{_rules(1)}\n@media (prefers-color-scheme: dark) {{\n{_rules(2)}\n}}\n</style>",
                f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
                *self._elements,
                "</svg>\n",
            ]
        )


def _rules(column: int) -> str:
    return "\n".join(f".{name} {{ {row[0]}: {row[column]} }}" for name, row in _COLOURS.items())
