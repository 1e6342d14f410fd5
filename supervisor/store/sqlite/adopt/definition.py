"""Splits a CREATE TABLE statement into its columns and constraints, each as it was written.

SQLite keeps the text of a definition and offers no other way to learn its CHECKs, so whoever rebuilds
a table has to read it. Nothing here understands expressions; it only finds where things begin and end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
      | (?P<parameter>[?:@$]\w*)
      | (?P<word>\w+)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_CONSTRAINTS = frozenset(("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"))


class Item(NamedTuple):
    """A column or a constraint."""

    column: str  # its name; empty for a constraint
    text: str
    keywords: frozenset[str]  # words outside parentheses, in capitals
    names: frozenset[str]  # everything that may name a column, in lower case
    literals: tuple[str, ...]


def split(sql: str) -> Iterator[Item]:
    """The parts between the commas of the outermost parentheses."""
    depth, item, keywords = 0, list[re.Match[str]](), set[str]()
    for token in _TOKEN.finditer(sql):
        if token.lastgroup == "skip":
            continue
        depth -= token[0] == ")"
        if depth >= 1 and not (depth == 1 and token[0] == ","):
            item.append(token)
            keywords |= {token[0].upper()} if depth == 1 and token.lastgroup == "word" else set()
        elif item:
            first = item[0]
            constraint = first.lastgroup == "word" and first[0].upper() in _CONSTRAINTS
            yield Item(
                "" if constraint else _plain(first),
                sql[first.start() : item[-1].end()],
                frozenset(keywords),
                frozenset(_plain(one).lower() for one in item if one.lastgroup in ("word", "quoted", "text")),
                tuple(_plain(one) for one in item if one.lastgroup == "text"),
            )
            item, keywords = [], set()
        depth += token[0] == "("


def _plain(token: re.Match[str]) -> str:
    """What it names as an identifier, or says as a text."""
    text = token[0]
    if token.lastgroup == "word":
        return text
    close = "]" if text[0] == "[" else text[0]
    return text[1:-1].replace(close * 2, close)


def parameters(sql: str) -> list[str]:
    """The names of a statement's parameters; empty ones for those that have none."""
    return [match[0][1:] for match in _TOKEN.finditer(sql) if match.lastgroup == "parameter"]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
