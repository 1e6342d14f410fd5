"""docs/internals/faults.md names every fault by its number, with the tests that show it, and those tests say so."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.docs.markdown import ROOT, spans, table

PAGE = "docs/internals/faults.md"
_MARK = re.compile(r"^<!-- (faults: [\d\- ]+) -->$", re.M)


def marked() -> dict[int, set[str]]:
    """The tests, or classes of tests, that carry the mark of each fault, wherever they stand."""
    found = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    for number in mark.args:
                        found[ast.literal_eval(number)].add(node.name)
    return dict(found)


def tables() -> dict[str, list[list[str]]]:
    """The rows of each table, by its mark."""
    marks = _MARK.findall((ROOT / PAGE).read_text(encoding="utf-8"))
    return {mark: table(PAGE, mark) for mark in marks}


def listed() -> dict[int, set[str]]:
    """The tests that the page names for each fault; one may stand in several tables."""
    found = defaultdict(set)
    for rows in tables().values():
        for number, fault, follows, shown in rows:
            assert fault, number
            assert follows, number
            assert spans(shown), number
            found[int(number)] |= set(spans(shown))
    return dict(found)


def test_each_table_of_faults_has_a_row_for_every_number_that_it_is_for() -> None:
    """`faults: 1-3 7` means 1, 2, 3 and 7."""
    assert tables()
    for mark, rows in tables().items():
        ends = [part.partition("-") for part in mark.removeprefix("faults: ").split()]
        assert [int(row[0]) for row in rows] == [n for a, _, b in ends for n in range(int(a), int(b or a) + 1)]


def test_every_fault_is_listed_with_what_follows_and_just_the_tests_that_carry_its_mark() -> None:
    assert listed() == marked()


def test_the_number_of_faults_told_is_the_number_listed() -> None:
    for page in ("README.md", "docs/guarantees.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert re.findall(r"(\d+) \[?faults\b", text)[0] == str(len(listed())), page
