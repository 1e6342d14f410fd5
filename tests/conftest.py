"""Fixtures that every kind of test may use, and the count of faults.

A test of a fault carries the number of its row in docs/internals/faults.md; the closing line counts the different ones.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import structlog
from hypothesis import HealthCheck, settings

from supervisor.telemetry import configure, unconfigure
from tests.postgres_server import VARIABLE, Databases, Home, NoServerError, Server, home_of_run, programs
from tests.site_under_test import HANDLERS, Site, site

_ROW = "fault"
_FAULTS = Path(__file__).parent / "faults"
_SERVERS = {"postgres_home", "shared_postgres", "postgres", "own_postgres", "kept_database"}  # fixtures
_MEMORY = Path("/dev/shm")  # a file system in memory
_NEEDED = 4 << 30  # bytes


# On a busy machine examples take long, and that is no fault of what is tested.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where events go, as JSON."""
    stream = io.StringIO()
    configure("json", "info", stream)
    yield stream
    unconfigure()


@pytest.fixture
def make_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Make an installation from the text of its pools; everything it started is ended afterwards, and has left
    nothing behind, see tests/watch.py. Its database is that of the engine which is the fixture's parameter, see
    `pytest_generate_tests`; SQLite's without one.
    """
    yield from _sites(tmp_path, _new_urls(request, getattr(request, "param", "sqlite")))


@pytest.fixture
def make_site_on_disk() -> Iterator[Callable[..., Site]]:
    """The same where what disks alone can do counts: other tests may write to memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield from _sites(Path(folder))


def _new_urls(request: pytest.FixtureRequest, engine: str) -> Callable[[], str]:
    """Gives the URL of a new database with each call; none for a file, which is beside the configuration."""
    if engine == "sqlite":
        return str
    server: Databases = request.getfixturevalue("postgres")
    state = request.getfixturevalue("tmp_path_factory").mktemp("state")
    request.getfixturevalue("monkeypatch").setenv("XDG_STATE_HOME", str(state))
    return server.fresh_database


def _sites(parent: Path, new_url: Callable[[], str] = str) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []
    with contextlib.ExitStack() as stack:

        def make(config: str, handlers: str = HANDLERS, url: str = "") -> Site:
            folder = parent / f"site-{len(list(parent.iterdir()))}"
            folder.mkdir()
            made.append(stack.enter_context(site(folder, config, handlers, url or new_url())))
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


@pytest.fixture(scope="session")
def shared_postgres(request: pytest.FixtureRequest) -> str:
    """The DSN of a server that all tests share."""
    given = os.environ.get(VARIABLE)
    with _or_skip():
        return given or request.getfixturevalue("postgres_home").shared().dsn


@pytest.fixture
def postgres(shared_postgres: str) -> Iterator[Databases]:
    """A PostgreSQL server that all tests share. The databases that a test makes are dropped after it."""
    server = Databases(shared_postgres)
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Faults are provoked on each engine: on PostgreSQL in `make long-postgres`, and in `make test-postgres` by those
    tests that are marked `each_engine`. Tests marked `sqlite` or `postgres` are of what that engine alone has: files
    and one writers' lock, or connections.
    """
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    chosen = any("make_site" in str(mark.args[:1]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "make_site" not in metafunc.fixturenames or chosen or "sqlite" in marks:
        return
    if "postgres" in marks:
        metafunc.parametrize("make_site", ["postgres"], indirect=True)
    if "postgres" in marks or not marks & {"fault", "each_engine"}:
        return
    server = pytest.param("postgres", marks=() if "each_engine" in marks else pytest.mark.on_postgres)
    metafunc.parametrize("make_site", ["sqlite", server], indirect=True)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fault(number): shows what survives the fault of that number in docs/internals/faults.md"
    )
    config.addinivalue_line("markers", "faults: stands in tests/faults; set by itself")
    config.addinivalue_line("markers", "sqlite: of what SQLite alone has; not run on PostgreSQL")
    config.addinivalue_line("markers", "postgres: of what a server alone has; not run on SQLite")
    config.addinivalue_line("markers", "server: uses a PostgreSQL server; set by itself")
    config.addinivalue_line("markers", "long_on_postgres: takes seconds there, so it is `on_postgres`")
    config.addinivalue_line("markers", "each_engine: is run on PostgreSQL, too, in `make test-postgres`")
    gc.disable()  # until all tests are collected: that makes many objects, and they stay
    _log_plainly()
    if _has_room(_MEMORY):  # thousands of databases are made and removed: that is half the time of many tests
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def _log_plainly() -> None:
    """The usual console draws a traceback with the source and the variables of every frame: that takes seconds."""
    console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], console])


def pytest_runtest_setup() -> None:
    if not structlog.is_configured():  # a test before has reset it, as `unconfigure` does
        _log_plainly()


def _has_room(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        memory = psutil.virtual_memory()
        return shutil.disk_usage(folder).free >= _NEEDED and memory.available >= 2 * _NEEDED
    return False


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_faults = {path: path.is_relative_to(_FAULTS) for path in {item.path for item in items}}
    for item in items:
        if in_faults[item.path]:
            item.add_marker("faults")
        if item.get_closest_marker("long_on_postgres") and "[postgres" in item.name:
            item.add_marker("on_postgres")
        if _SERVERS & set(getattr(item, "fixturenames", ())) or "[postgres" in item.name:
            item.add_marker("server")
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
