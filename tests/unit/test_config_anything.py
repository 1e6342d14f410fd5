"""The configuration: properties that hold for any text, and for the search of a key's line in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import load
from supervisor.config.checks import Way
from supervisor.config.problems import line_of, lines
from supervisor.domain.errors import ConfigError

POOL = '[pools.tag]\nhandler = "jobs:tag"\n'

VALUES = [
    "1",
    "1979-05-27 07:32:00",
    '"a # b = [c]"',
    '"a \\" b"',
    "'a \" b'",
    '"""\n[not.a.table]\nkey = 1 # "" \\""" x"""',
    '"""a"""""',
    '""',
    '""""""',
    "'''\n''a = 1\n'''",
    '[ # comment ]\n  1, "]", # another\n  [2], { x = "}" },\n]',
    '{ a = 1, "b.c" = { d = ["}"] } }',
]
NAMES = st.text("ab-_1", min_size=1, max_size=3) | st.text(' ."\\#=[]ä\n\t', max_size=3).map(
    lambda name: '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'
)
GAPS = st.sampled_from(["", "\n", "# [x]\n", "  # a = 1\n\n"])


def plain(name: str) -> str:
    if not name.startswith('"'):
        return name
    return name[1:-1].encode("latin-1").decode("unicode_escape")


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[Way, int]]:
    """A TOML text, and the line of each key in it."""
    text = ""
    lines: dict[Way, int] = {}
    table: tuple[str, ...] = ()
    for number, name in enumerate(draw(st.lists(NAMES, unique_by=plain, max_size=8))):
        text += draw(GAPS)
        line = text.count("\n") + 1
        kind = draw(st.sampled_from(["table", "dotted", "key"]))
        if kind == "table":
            table = (f"t{number}", plain(name))
            lines[table] = line
            text += f"[ t{number} . {name} ]"
        elif kind == "dotted":
            lines[(*table, f"d{number}", plain(name))] = line
            text += f"  d{number}.{name} = {draw(st.sampled_from(VALUES))}"
        else:
            lines[(*table, plain(name))] = line
            text += f"{name}={draw(st.sampled_from(VALUES))}"
        text += draw(st.sampled_from(["\n", " # c = 1\n"]))
    return text, lines


@given(documents(), st.booleans())
def test_each_key_is_found_on_its_line(document: tuple[str, dict[Way, int]], windows: bool) -> None:
    text, expected = document

    found = lines(text.replace("\n", "\r\n") if windows else text)

    assert {key: line_of(key, found) for key in expected} == expected


def test_a_key_that_is_not_there_is_found_where_its_table_is() -> None:
    known = lines("a = 1\n[[s]]\nx = 1\n[[s]]\ny = 1\n[s.z]\nq = [\n1,\n2]\n")

    assert line_of(("s", 1, "missing"), known) == 4
    assert line_of(("s", 1, "z", "q", 1), known) == 7
    assert line_of(("missing",), known) == 0


WORDS = ["[[", "]]", "pools", "tag", "defaults", "schedules", "retry", "handler", "env", "workers", '"a:b"']
WORDS += ["1", "nan", "true", "1979-05-27", '"""', "'''", "0x" + "f" * 5000]
SCRAPS = st.sampled_from([*"[]{}=.,#'\"\\\n \t\r\0é\u2028", *WORDS])
WRITTEN = """
    types handler command workers min_workers max_workers capabilities prefetch timeout max_memory retry retry.base
    retry.max env env.A options preload start preload_setup gpus threads cpu_affinity nice env.CUDA_VISIBLE_DEVICES x.y
    listen token_file read_token_file hosts allow_remote
"""
TABLES = '[defaults] [pools.tag] [pools.b] [pools."c.d"] [[schedules]] [admin] [log] [retention]'
KEYS = st.sampled_from(WRITTEN.split())
TEXTS = ["", "a:b", "tag", "10s", "5m", "auto", "2GiB", "a b", "9" * 400 + "s", "9" * 400 + "B"]
FRAGMENTS = [*(f'"{text}"' for text in TEXTS), *(f'["{text}"]' for text in TEXTS), *VALUES]
FRAGMENTS += ["-1", "0", "2", "1e400", "nan", "true", "[]", "{}", '{ base = "1d" }', "9" * 4000]
LINES = st.tuples(KEYS, st.sampled_from(FRAGMENTS)).map(" = ".join) | st.sampled_from(TABLES.split())


@given(
    text=st.lists(SCRAPS, max_size=40).map("".join)
    | st.lists(LINES, max_size=12).map("\n".join)
    | st.lists(LINES, max_size=8).map(lambda lines: "\n".join([POOL, *dict.fromkeys(lines)]))
    | st.text(max_size=60)
)
def test_any_text_loads_or_is_a_list_of_one_line_problems(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    found: list[str] = []
    try:
        pools = load(path).pools
    except ConfigError as error:
        found, pools = error.problems, {}

    assert bool(found) is not bool(pools)
    assert all(problem.startswith(str(path)) and len(problem.splitlines()) == 1 for problem in found)
    assert all(pool.min_workers <= pool.max_workers for pool in pools.values())
