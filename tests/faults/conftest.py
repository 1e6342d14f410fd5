"""Fault tests carry the number of the fault in docs/faults.md; the closing line counts them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_ROW = "fault"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(number): shows what survives the fault of that number in docs/faults.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers(_ROW):
            item.user_properties += [(_ROW, number) for number in mark.args]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many faults were provoked, and what came of it."""
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
