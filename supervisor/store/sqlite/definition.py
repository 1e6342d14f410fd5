"""Reads a CREATE TABLE statement: its columns, their clauses, its constraints, each as it was written.

SQLite keeps the text of a definition and offers no other way to learn its CHECKs, so whoever rebuilds
a table has to read it. Nothing here understands expressions; it only finds where things begin and end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
      | (?P<parameter>[?:@$]\w*)
      | (?P<word>\w+)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_CLAUSES = frozenset(
    ("CONSTRAINT", "PRIMARY", "NOT", "NULL", "UNIQUE", "CHECK", "DEFAULT", "COLLATE", "REFERENCES", "GENERATED", "AS")
)
_CONSTRAINTS = frozenset(("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"))


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The keyword, in capitals; empty if it is not one."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """What it names as an identifier."""
        if self.kind != "quoted":
            return self.text
        close = "]" if self.text[0] == "[" else self.text[0]
        return self.text[1:-1].replace(close * 2, close)


@lru_cache(maxsize=1024)  # the same CHECKs are read for each row of a plan, and the same migrations for each table
def tokens(sql: str, most: int | None = None) -> tuple[Token, ...]:
    """The tokens of a statement, or the first `most` of them, without white space and comments."""
    found = (match for match in _TOKEN.finditer(sql) if match.lastgroup != "skip")
    return tuple(Token(match.lastgroup or "", match[0], match.start(), match.end()) for match in islice(found, most))


def names(sql: str) -> set[str]:
    """Everything in a fragment that may name a column, in lower case."""
    return {token.name.lower() for token in tokens(sql) if token.kind in ("word", "quoted")}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Clause(NamedTuple):
    """One part of a column's definition: `kind` is its keyword, `text` as it was written."""

    kind: str
    text: str

    @property
    def value(self) -> str:
        """What follows the keyword: the expression of a CHECK or a DEFAULT."""
        found = next(token for token in tokens(self.text) if token.word == self.kind)
        return self.text[found.end :].strip()


class Column(NamedTuple):
    name: str
    declared: str  # its type, empty if none is declared
    clauses: tuple[Clause, ...]
    text: str

    def clause(self, kind: str) -> Clause | None:
        return next((clause for clause in self.clauses if clause.kind == kind), None)

    @property
    def not_null(self) -> bool:
        return self.clause("NOT") is not None

    @property
    def affinity(self) -> str:
        """By the rules of https://sqlite.org/datatype3.html#determination_of_column_affinity."""
        declared = self.declared.upper()
        for affinity, parts in (
            ("INTEGER", ("INT",)),
            ("TEXT", ("CHAR", "CLOB", "TEXT")),
            ("BLOB", ("BLOB",)),
            ("REAL", ("REAL", "FLOA", "DOUB")),
        ):
            if any(part in declared for part in parts):
                return affinity
        return "NUMERIC" if declared else "BLOB"


class Definition(NamedTuple):
    columns: tuple[Column, ...]
    constraints: tuple[str, ...]

    def column(self, name: str) -> Column | None:
        """A column by its name; case does not matter, as in SQL."""
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)


def table_created(sql: str) -> str | None:
    """The name of the table that a statement creates, in lower case."""
    words = tokens(sql, 6)
    if [token.word for token in words[:2]] != ["CREATE", "TABLE"]:
        return None
    return words[5 if words[2].word == "IF" else 2].name.lower()


def column_added(sql: str, table: str) -> str | None:
    """The name of the column that a statement adds to a table, in lower case; None for any other statement."""
    words = tokens(sql, 6)
    if [token.word for token in words[:2]] != ["ALTER", "TABLE"] or words[2].name.lower() != table:
        return None
    if [token.word for token in words[3:5]] != ["ADD", "COLUMN"]:
        return None
    return words[5].name.lower()


def parse(sql: str) -> Definition:
    """Read a CREATE TABLE statement as SQLite keeps it."""
    items = list(_items(tokens(sql)))
    return Definition(
        tuple(_column(sql, item) for item in items if item[0].word not in _CONSTRAINTS),
        tuple(_text(sql, item) for item in items if item[0].word in _CONSTRAINTS),
    )


def _text(sql: str, part: list[Token]) -> str:
    return sql[part[0].start : part[-1].end]


def _items(all_tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """The parts between the commas of the outermost parentheses."""
    depth, item = 0, list[Token]()
    for token in all_tokens:
        depth -= token.text == ")"
        if depth >= 1 and not (depth == 1 and token.text == ","):
            item.append(token)
        elif item:
            yield item
            item = []
        depth += token.text == "("


def _column(sql: str, item: list[Token]) -> Column:
    starts = _clause_starts(item)
    clauses = [item[start:end] for start, end in pairwise([*starts, len(item)])]
    declared = item[1 : starts[0] if starts else len(item)]
    return Column(
        item[0].name,
        _text(sql, declared) if declared else "",
        tuple(Clause(_kind(clause), _text(sql, clause)) for clause in clauses),
        _text(sql, item),
    )


def _kind(clause: list[Token]) -> str:
    """`CONSTRAINT name UNIQUE` is a UNIQUE."""
    return (clause[2] if clause[0].word == "CONSTRAINT" and len(clause) > 2 else clause[0]).word


def _clause_starts(item: list[Token]) -> list[int]:
    starts, depth = [], 0
    for index, token in enumerate(item):
        depth -= token.text == ")"
        if depth == 0 and index and token.word in _CLAUSES and not _continues(item, index):
            starts.append(index)
        depth += token.text == "("
    return starts


def _continues(item: list[Token], index: int) -> bool:
    """Whether a keyword belongs to the clause before it: SET NULL, NOT NULL, NOT DEFERRABLE, …"""
    word, before = item[index].word, item[index - 1].word
    following = item[index + 1].word if index + 1 < len(item) else ""
    return (
        before in ("SET", "DEFAULT", "CONSTRAINT")
        or (index >= 2 and item[index - 2].word == "CONSTRAINT")
        or (word == "NULL" and before == "NOT")
        or (word == "NOT" and following == "DEFERRABLE")
        or (word == "AS" and before == "ALWAYS")
    )
