"""What the reports of all benchmarks are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.goals import Goal, shown
from bench.record import Record

NONE = "–"


def table(head: list[str], rows: list[list[str]]) -> str:
    """In Markdown; the first column is text, the others are figures."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)


def page(title: str, about: str, picture: str, sections: Mapping[str, str]) -> str:
    """The sections that have a text, by their titles."""
    parts = [f"# {title}", about, picture, *(f"## {name}\n\n{text}" for name, text in sections.items() if text)]
    return "\n\n".join(parts) + "\n"


def median(record: Record, figure: str, contestant: str, case: str = "", digits: int = 0) -> str:
    series = record.get(figure, contestant, case)
    return f"{series.median:,.{digits}f}" if series else NONE


def words(texts: Mapping[str, str | None]) -> str:
    """What each name stands for, as a list."""
    return "\n".join(f"- `{name}`: {' '.join((text or '').split())}" for name, text in texts.items())


def goals(record: Record, wanted: Iterable[Goal]) -> str:
    rows = []
    for goal in wanted:
        value = goal.value(record)
        if value is None:
            rows.append([goal.figure, goal.words, NONE, "not measured"])
        else:
            rows.append([goal.figure, goal.words, shown(value, goal.unit), "yes" if goal.reached(value) else "**no**"])
    return table(["figure", "goal", "this run", "reached"], rows)


def about(facts: dict[str, Any], *, less: str, where: str, notes: str) -> str:
    """A run's machine and course. `less` is what a quick look has less of, `where` precedes the load."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    rounds = "1 round" if facts["rounds"] == 1 else f"{facts['rounds']} rounds"
    kind = f"A quick look: {less}; not for quoting. " if facts["quick"] else ""
    return (
        f"{kind}{facts['made']}, {facts['cores']} cores ({facts['processor']}), {facts['memory']}, {facts['kernel']}, "
        f"{where}load before {facts['load before']}. {versions}.\n\nThe contestants took turns, {rounds}; {notes}"
    )
