"""Fixtures that every kind of test may use, and the count of faults.

A test of a fault carries the number of its row in docs/faults.md; the closing line counts the different ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.site_under_test import HANDLERS, Site, site

_ROW = "fault"
_FAULTS = Path(__file__).parent / "faults"


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Make an installation from the text of its pools; everything it started is ended afterwards, and has left
    nothing behind, see tests/watch.py.
    """
    made: list[Site] = []
    with contextlib.ExitStack() as stack:

        def make(config: str, handlers: str = HANDLERS) -> Site:
            folder = tmp_path / f"site-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            made.append(stack.enter_context(site(folder, config, handlers)))
            return made[-1]

        yield make
    assert [words for one in made for words in one.wrong] == []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(number): shows what survives the fault of that number in docs/faults.md")
    config.addinivalue_line("markers", "faults: stands in tests/faults; set by itself")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FAULTS):
            item.add_marker("faults")
        for mark in item.iter_markers(_ROW):
            item.user_properties += [(_ROW, number) for number in mark.args]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many faults were provoked, and how many tests of them passed."""
    passed = _rows(terminalreporter, "passed")
    skipped = _rows(terminalreporter, "skipped")
    failed = _rows(terminalreporter, "failed") + _rows(terminalreporter, "error")
    run = len(passed) + len(failed)
    if not run and not skipped:
        return
    numbers = {number for rows in (passed, failed) for row in rows for number in row}
    terminalreporter.write_line(
        f"faults: {len(numbers)} different ones in {run} tests run: {len(passed)} passed, {len(failed)} failed; "
        f"{len(skipped)} skipped"
    )


def _rows(reporter: pytest.TerminalReporter, outcome: str) -> list[list[object]]:
    """The fault numbers of each test with that outcome."""
    return [row for report in reporter.stats.get(outcome, []) if (row := list(_numbers(report)))]


def _numbers(report: object) -> Iterator[object]:
    return (value for name, value in getattr(report, "user_properties", []) if name == _ROW)
