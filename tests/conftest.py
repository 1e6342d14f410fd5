"""Fixtures that every kind of test may use, and the count of faults.

A test of a fault carries the number of its row in docs/faults.md; the closing line counts the different ones.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import structlog

from tests.postgres_server import VARIABLE, Databases, Home, NoServerError, Server, home_of_run, programs
from tests.site_under_test import HANDLERS, Site, site

_ROW = "fault"
_FAULTS = Path(__file__).parent / "faults"
_MEMORY = Path("/dev/shm")  # a file system in memory
_NEEDED = 4 << 30  # bytes


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Make an installation from the text of its pools; everything it started is ended afterwards, and has left
    nothing behind, see tests/watch.py.
    """
    yield from _sites(tmp_path)


@pytest.fixture
def make_site_on_disk() -> Iterator[Callable[..., Site]]:
    """The same where what disks alone can do counts: other tests may write to memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield from _sites(Path(folder))


def _sites(parent: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []
    with contextlib.ExitStack() as stack:

        def make(config: str, handlers: str = HANDLERS, url: str = "") -> Site:
            folder = parent / f"site-{len(list(parent.iterdir()))}"
            folder.mkdir()
            made.append(stack.enter_context(site(folder, config, handlers, url)))
            return made[-1]

        yield make
    assert [words for one in made for words in one.wrong] == []


@pytest.fixture(scope="session")
def postgres_home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Where the servers of this run are, see tests/postgres_server.py."""
    with _or_skip():
        programs()
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # one for all workers: it ends with the process that they belong to
        yield home_of_run(base.parent, os.getppid())
    else:
        home = home_of_run(base, os.getpid())
        yield home
        home.close()


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """A PostgreSQL server that all tests share. The databases that a test makes are dropped after it."""
    given = os.environ.get(VARIABLE)
    with _or_skip():
        server = Databases(given) if given else request.getfixturevalue("postgres_home").shared()
    yield server
    server.drop_all()


@pytest.fixture
def own_postgres(postgres_home: Home) -> Iterator[Callable[..., Server]]:
    """Starts a server of the test's own, with settings of the test; it may be stopped, restarted and killed."""
    made: list[Server] = []

    def make(**settings: object) -> Server:
        made.append(postgres_home.server(settings))
        return made[-1]

    yield make
    for server in made:
        server.remove()


@contextlib.contextmanager
def _or_skip() -> Iterator[None]:
    """The one place that decides what happens where there is no server."""
    try:
        yield
    except NoServerError as error:
        pytest.skip(str(error))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(number): shows what survives the fault of that number in docs/faults.md")
    config.addinivalue_line("markers", "faults: stands in tests/faults; set by itself")
    gc.disable()  # until all tests are collected: that makes many objects, and they stay
    # The usual console draws a traceback with the source of every frame: that takes a second.
    console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], console])
    if _has_room(_MEMORY):  # thousands of databases are made and removed: that is half the time of many tests
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def _has_room(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        memory = psutil.virtual_memory()
        return shutil.disk_usage(folder).free >= _NEEDED and memory.available >= 2 * _NEEDED
    return False


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FAULTS):
            item.add_marker("faults")
        for mark in item.iter_markers(_ROW):
            item.user_properties += [(_ROW, number) for number in mark.args]


def pytest_collection_finish() -> None:
    gc.freeze()  # what has been collected is not looked at again
    gc.enable()


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
