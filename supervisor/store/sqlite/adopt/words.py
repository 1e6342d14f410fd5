"""The application's words for states and types, and ours: a pure proposal, which options change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from supervisor.domain.errors import InvalidOption
from supervisor.domain.intake import TYPE
from supervisor.domain.job import Status
from supervisor.domain.text import counted, like
from supervisor.store.sqlite.definition import Column, names, tokens

_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "pending": ("queued", "waiting", "new", "ready", "scheduled", "created", "todo", "retry", "retrying", "delayed"),
    "running": ("processing", "in_progress", "in-progress", "claimed", "active", "started", "working", "locked"),
    "done": ("completed", "complete", "success", "succeeded", "successful", "finished", "ok", "processed"),
    "failed": ("error", "errored", "failure", "dead"),
    "cancelled": ("canceled", "aborted", "skipped"),
}
_PROPOSED = {word: status for status, words in _SYNONYMS.items() for word in (status, *words)}
_OURS = frozenset(Status)


class Words(NamedTuple):
    """The meaning of each word. `foreign` are those that job-supervisor does not use itself."""

    statuses: dict[str, str]
    types: dict[str, str]
    used: frozenset[str] = frozenset()  # new types that are the application's already

    @property
    def foreign_statuses(self) -> dict[str, str]:
        return {word: status for word, status in self.statuses.items() if word not in _OURS}

    @property
    def foreign_types(self) -> dict[str, str]:
        """Without those that are another one's new name, which job-supervisor uses, too."""
        return {word: new for word, new in self.types.items() if word not in self.types.values()}

    @property
    def shown_statuses(self) -> dict[str, str]:
        """The application's word for each of our states that has another one there; the first named counts."""
        plain = {status for word, status in self.statuses.items() if word == status}
        shown: dict[str, str] = {}
        for word, status in self.statuses.items():
            if status not in plain:
                shown.setdefault(status, word)
        return shown

    @property
    def shown_types(self) -> dict[str, str]:
        shown: dict[str, str] = {}
        for word, new in self.foreign_types.items():
            if new not in self.used:
                shown.setdefault(new, word)
        return shown

    def merged(self) -> list[tuple[str, list[str]]]:
        """States that stand for several words of the application's: the difference is gone."""
        by_status: dict[str, list[str]] = {}
        for word, status in self.statuses.items():
            by_status.setdefault(status, []).append(word)
        return [(status, words) for status, words in by_status.items() if len(words) > 1]


def understand(
    found: Sequence[tuple[str | None, int]],
    column: Column,
    constraints: Sequence[str],
    statuses: Mapping[str, str],
    types: Mapping[str, str],
) -> tuple[Words, list[str]]:
    """The words, and a reason for each one in the rows that nobody has explained. Raises InvalidOption.

    `found` are the words in the rows with their numbers, the most frequent first; those in the column's
    DEFAULT and CHECK, and in constraints of the table about it, are taken from there.
    """
    _check(statuses, types)
    meanings: dict[str, str] = {}
    reasons = []
    clauses = [clause.text for kind in ("DEFAULT", "CHECK") if (clause := column.clause(kind))]
    about = [text for text in constraints if column.name.lower() in names(text)]
    declared = [word for text in (*clauses, *about) for word in _literals(text)]
    counts = {word: count for word, count in found if word is not None}
    for count in (count for word, count in found if word is None):
        reasons.append(f"`{column.name}` holds what job-supervisor cannot take: NULL ({counted(count, 'row')})")
    for word in dict.fromkeys([*declared[:1], *counts, *statuses, *declared]):
        meaning = statuses.get(word) or _PROPOSED.get(word.strip().lower().replace(" ", "_")) or _own(word)
        if meaning is not None:
            meanings[word] = meaning
        elif word in counts:
            reasons.append(
                f"`{column.name}` holds what job-supervisor cannot take: {word!r} ({counted(counts[word], 'row')}); "
                f"say what it means with --status {word}=pending"
            )
    return Words(meanings, dict(types)), reasons


def _check(statuses: Mapping[str, str], types: Mapping[str, str]) -> None:
    """Raises InvalidOption."""
    for word, status in statuses.items():
        if status not in _OURS:
            known = ", ".join(Status)
            raise InvalidOption(f"--status {word}={status}: {status} is not one of {known}{like(status, Status)}")
        if word in _OURS and word != status:
            raise InvalidOption(
                f"--status {word}={status}: job-supervisor writes `{word}` itself, with its own meaning"
            )
    for word, new in types.items():
        if not TYPE.fullmatch(new):
            raise InvalidOption(f"--type-map {word}={new}: a type is 1 to 100 characters of a-z A-Z 0-9 _ . : / -")


def _own(word: str) -> str | None:
    return word if word in _OURS else None


def _literals(sql: str) -> list[str]:
    return [token.name for token in tokens(sql) if token.kind == "quoted" and token.text[0] == "'"]
