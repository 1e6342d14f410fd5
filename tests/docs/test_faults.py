"""docs/internals/faults.md tells every fault that a test shows, by its number, and no other."""

from __future__ import annotations

import ast
import re

from tests.docs.markdown import ROOT

PAGE = "docs/internals/faults.md"
# `- 2: a process is killed` in the list of those without consequences, `| 9, 10: a fault | what follows |` in tables.
_ENTRY = re.compile(r"^(?:- (?P<plain>[\d, ]+): \S.*|\| (?P<row>[\d, ]+): \S.*? \| \S.* \|)$", re.M)


def marked() -> set[int]:
    """The faults whose number a test, or a class of tests, carries as its mark, wherever it stands."""
    return {
        ast.literal_eval(number)
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for mark in getattr(node, "decorator_list", [])
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault"
        for number in mark.args
    }


def listed() -> list[int]:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    numbers = [match["plain"] or match["row"] for match in _ENTRY.finditer(page)]
    return [int(number) for some in numbers for number in some.split(", ")]


def test_every_fault_is_told_once_and_is_one_that_tests_show() -> None:
    assert listed()
    assert sorted(listed()) == sorted(marked())


def test_the_number_of_faults_told_is_the_number_listed() -> None:
    for page in ("README.md", "docs/guarantees.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert re.findall(r"(\d+) \[?faults\b", text)[0] == str(len(listed())), page
