"""Every statement of everything that a role can do fails in turn: before it, after it, and at begin and commit.

In one process, on a copy of one database for each place; the role is used again afterwards, as a worker and the
maintainer do. tests/store/deeds.py has the deeds.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.errors import Conflict, StoreBusy, StoreError
from supervisor.domain.job import NewJob
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from supervisor.store.failing import OTHERS
from supervisor.store.sqlite.connection import QUERIES
from supervisor.system import failpoints
from supervisor.system.failpoints import VARIABLE
from tests.armed import arm, in_a_child
from tests.postgres_server import Databases
from tests.site_under_test import wait_for
from tests.stopwatch import Stopwatch
from tests.store.deeds import DEEDS, ROLES, Deed, contents, make_world

KINDS = {
    "sqlite": ("busy", "error", "integrity", "full"),
    "postgres": ("lost", "deadlock", "integrity", "full"),
}
BUSY = ("busy", "deadlock")  # kinds of which StoreBusy tells
WORDS = {"busy": "another transaction held", "full": "the disk is full", "error": "the disk reports an"}  # SQLite's
NEVER = "*=fail:busy@1000000"
# In `make test` on a server, too: one deed of each class.
CHOSEN = ("enqueue", "settle and claim", "settle dead", "fire")
# By which a deed is done: what fails later has been committed.
COMMITS = ("commit.before", "settle_and_claim.before")
# Statements that no deed runs, with the test that does.
ELSEWHERE = {
    "count_jobs": "tests/cli/test_restore.py",
    "flags": "tests/store/test_moving.py",
    "tables": "test_a_migration_can_be_tried_again",
    "has_column": "test_a_migration_can_be_tried_again",
    "make_epoch": "test_a_migration_can_be_tried_again",
    "named_parts": "tests/store/sqlite/test_damage_check.py",
    "whole_backlog": "tests/store/sqlite/test_many_kinds.py, where there are thousands of kinds",
    "any_moves": "tests/store/gates/test_foreign.py, where a worker lets pass what another program has inserted",
    "drop_move": "tests/store/gates/test_foreign.py, where the job after a batch is refused",
    "about_job": "tests of ctx.meta, which has a connection for itself",
    "job_status": "tests/queue/test_operating.py, where a cancel is refused",
    "set_aside": "the claims here, where a row is refused",
    "note_set_aside": "the claims here, where a row is refused",
    "pending_token": "the claims here, where a row is refused",
    "payloads": "tests/store/sqlite/test_files.py, where a trigger inserts rows in between",
    "to_renew": "the renewal here, where a row is refused",
    "renew_one": "the renewal here, where a row is refused",
    "open": "test_a_role_whose_opening_fails_leaves_nothing_behind",
}


class FileWorld:
    """Copies of one file."""

    def __init__(self, folder: Path) -> None:
        self._made = folder / "jobs.db"
        make_world(open_engine(f"sqlite:///{self._made}"))

    def fresh(self, folder: Path) -> Engine:
        folder.mkdir()
        shutil.copy(self._made, folder / "jobs.db")
        return open_engine(f"sqlite:///{folder}/jobs.db")

    def same_ids(self) -> None:
        """Ids that were taken by what was rolled back are free again by themselves."""

    def is_free(self, engine: Engine) -> bool:
        """Whether everybody else may write: no transaction is open, and the writers' lock is not held."""
        path = engine.url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        with Path(f"{path}-supervisor", "write.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True


class ServerWorld:
    """One database whose rows are put back: to make another one would take much longer."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._url = url
        make_world(open_engine(url))
        self._session = psycopg.connect(url, autocommit=True)
        found = self._session.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
        ).fetchall()
        tables = [name for (name,) in found]
        self._session.execute("CREATE SCHEMA kept; SET session_replication_role = replica")  # no triggers
        for table in tables:
            self._session.execute(f"CREATE TABLE kept.{table} AS TABLE public.{table}")
        self._put_back = "; ".join(
            f"DELETE FROM {table}; INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM kept.{table}"
            for table in tables
        )

    def fresh(self, folder: Path) -> Engine:
        self._session.execute(self._put_back)
        self.same_ids()
        return open_engine(self._url)

    def same_ids(self) -> None:
        """Ids that were taken by what was rolled back are given again, so that results can be compared."""
        self._session.execute("SELECT setval('jobs_id_seq', (SELECT max(id) FROM jobs))")

    def is_free(self, engine: Engine) -> bool:
        """A session that was cut off ends as soon as the server notices."""
        open_ones = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"
        )
        wait_for(lambda: not self._session.execute(open_ones).fetchall(), "transactions to end")
        return True

    def close(self) -> None:
        self._session.close()


World = FileWorld | ServerWorld


@pytest.fixture(scope="module")
def worlds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], World]]:
    """Each engine's, made when it is asked for."""
    made: dict[str, World] = {}

    def world(engine: str) -> World:
        if engine not in made and engine == "sqlite":
            made[engine] = FileWorld(tmp_path_factory.mktemp("world"))
        elif engine not in made:
            server = Databases(request.getfixturevalue("shared_postgres"))
            made[engine] = ServerWorld(server.fresh_database())
            ended.callback(server.drop_all)
            ended.callback(made[engine].close)
        return made[engine]

    with contextlib.ExitStack() as ended, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv(VARIABLE, raising=False)
        yield world


@pytest.fixture
def world(worlds: Callable[[str], World]) -> World:
    return worlds("sqlite")


class Trial:
    """A deed on a fresh copy of the world."""

    def __init__(self, deed: Deed, world: World, folder: Path) -> None:
        self.deed = deed
        self._world = world
        self.engine = world.fresh(folder)
        arm(NEVER)
        self.role = ROLES[deed.role](self.engine)

    def act(self, points: str = NEVER) -> Any:
        self._world.same_ids()
        arm(points)
        try:
            return self.deed.act(self.role)
        finally:
            arm(NEVER)

    def contents(self) -> dict[str, list[tuple[Any, ...]]]:
        return contents(self.engine)

    def is_free(self) -> bool:
        return self._world.is_free(self.engine)

    def close(self) -> None:
        self.role.close()


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    before = os.environ.pop(VARIABLE, None)
    yield
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before
    failpoints._armed.cache_clear()


def passed(trial: Trial, monkeypatch: pytest.MonkeyPatch, kind: str = "") -> tuple[list[str], Any]:
    """The places that an undisturbed deed passes, in their order, and what it returns; with a kind those where it can
    happen, which are those that are counted.
    """
    places = []
    reach = failpoints.reach

    def noting(place: str, *error: Any) -> None:
        if not kind or error[0](kind) is not None:
            places.append(place)
        reach(place, *error)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", noting)
        answer = trial.act()
    return places, answer


def cases() -> Iterator[object]:
    for engine, kinds in KINDS.items():
        for number, kind in enumerate(kinds):
            for at, deed in enumerate(DEEDS[engine]):
                # A lock is waited for and an error is not; what comes then is the deed's own.
                quick = number == at % 2 if engine == "sqlite" else number == 0 and deed.name in CHOSEN
                marks = [] if quick else [pytest.mark.long if engine == "sqlite" else pytest.mark.on_postgres]
                name = f"{engine}: {deed.role}: {deed.name}: {kind}"
                if quick and engine == "sqlite":
                    yield pytest.param(engine, deed, kind, ends, id=f"{name}, first and last")
                    marks = [pytest.mark.long]
                yield pytest.param(engine, deed, kind, list, marks=marks, id=name)


def ends(places: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The first and the last time that each place is passed: some deeds pass the same ones for each of many rows."""
    first = {place: at for at, place in reversed(places)}
    last = {place: at for at, place in places}
    return [(at, place) for at, place in places if at in (first[place], last[place])]


@pytest.mark.fault(70, 71)
@pytest.mark.parametrize(("engine", "deed", "kind", "chosen"), list(cases()))
def test_whichever_statement_fails_the_deed_can_be_done_afterwards(
    engine: str,
    deed: Deed,
    kind: str,
    chosen: Callable[[Sequence[tuple[int, str]]], list[tuple[int, str]]],
    worlds: Callable[[str], World],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = worlds(engine)
    undisturbed = Trial(deed, world, tmp_path / "undisturbed")
    untouched = undisturbed.contents()
    places, answer = passed(undisturbed, monkeypatch, kind)
    done = undisturbed.contents()
    undisturbed.close()
    last = max((at for at, place in enumerate(places) if place in COMMITS), default=len(places))
    assert places
    for at, place in chosen(list(enumerate(places))):
        trial = Trial(deed, world, tmp_path / f"{at}")
        told = None
        try:
            trial.act(f"*=fail:{kind}@{at + 1}")
        except StoreError as error:
            told = error
        where = f"{at}: {place}, told {told!r}"
        assert told is None or isinstance(told, StoreBusy) == (kind in BUSY), where
        assert told is None or engine != "sqlite" or WORDS.get(kind, "") in str(told), where
        assert trial.is_free(), where
        if kind == "integrity" and not told:
            with contextlib.suppress(Conflict):  # what a trigger refuses is perhaps answered in the same transaction
                trial.act()
        elif not told and (kind == "busy" or engine == "postgres"):
            pass  # it was asked again until it succeeded
        elif at < last and (place == "commit" or place.endswith(".committed")):
            trial.act()  # its answer was lost, and with it what the first part of the deed has counted
        elif at <= last:
            if places.count("begin") == 1 and at >= places.index("begin.before") and told:
                assert trial.contents() == untouched, where
            assert trial.act() == answer, where
        elif deed.repeatable:
            trial.act()
        if kind != "integrity" or told:
            assert trial.contents() == done, where
        trial.close()


@pytest.mark.fault(2)
@pytest.mark.parametrize("deed", DEEDS["sqlite"], ids=lambda deed: f"{deed.role}: {deed.name}")
def test_a_process_killed_inside_a_write_transaction_leaves_nothing_of_it(
    deed: Deed, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Trial(deed, world, tmp_path / "undisturbed")
    untouched = undisturbed.contents()
    places, _ = passed(undisturbed, monkeypatch)
    done = undisturbed.contents()
    undisturbed.close()
    if "commit.before" not in places:
        return  # it only reads
    last = places.index("commit.before")  # of its first transaction
    for at in {places.index("begin") + 1, last}:
        folder = tmp_path / f"{at}"
        assert in_a_child(lambda folder=folder, at=at: Trial(deed, world, folder).act(f"*=kill@{at + 1}"), NEVER)  # type: ignore[misc]
        engine = open_engine(f"sqlite:///{folder}/jobs.db")
        assert world.is_free(engine)
        assert contents(engine) == untouched
        role = ROLES[deed.role](engine)
        watch = Stopwatch()
        deed.act(role)
        assert watch.seconds() < 0.5  # our own next writer does not wait for the dead
        assert contents(engine) == done
        role.close()


@pytest.mark.fault(2)
def test_a_process_killed_while_it_makes_the_tables_leaves_none(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/jobs.db")
    assert in_a_child(engine.database.migrate, "program:set_meta=kill@2")
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        assert list(connection.iterdump()) == ["BEGIN TRANSACTION;", "COMMIT;"]
    assert engine.database.migrate()


@pytest.mark.fault(70, 71)
def test_jobs_that_may_have_been_committed_are_not_put_again(world: World, tmp_path: Path) -> None:
    deed = Deed("put each", "producer", lambda role: role.put_each([NewJob("new", "{}"), NewJob("new", "{}")]))
    trial = Trial(deed, world, tmp_path / "trial")
    with pytest.raises(StoreError):
        trial.act("insert_job.committed=fail:error")
    producer = trial.engine.producer()
    assert ("new", "pending", 2) in producer.operations.statistics.counts()
    producer.close()
    trial.close()


@pytest.mark.fault(70, 71)
def test_every_statement_is_one_of_some_deed(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[str] = set()
    for number, deed in enumerate(DEEDS["sqlite"]):
        trial = Trial(deed, world, tmp_path / f"{number}")
        reached |= {place.partition(".")[0] for place in passed(trial, monkeypatch)[0]}
        trial.close()
    assert sorted({*QUERIES.statements, *OTHERS.values()} - reached) == sorted(ELSEWHERE)


@pytest.mark.fault(71)
@pytest.mark.parametrize("kind", ["busy", "full", "error"])
def test_a_migration_can_be_tried_again(kind: str, tmp_path: Path) -> None:
    arm(NEVER)
    for at in range(1, 1000):
        engine = open_engine(f"sqlite:///{tmp_path}/{at}.db")
        arm(f"*=fail:{kind}@{at}")
        try:
            engine.database.migrate()
            failed = False
        except StoreError:
            failed = True
        arm(NEVER)
        engine.database.migrate()
        producer = engine.producer()
        assert producer.enqueue([NewJob("tag", "{}")]) == [1]
        producer.close()
        if not failed and (at > 10 or kind != "busy"):  # what is busy once is tried again
            assert at > 10
            return


@pytest.mark.fault(70, 71)
@pytest.mark.parametrize("kind", ["busy", "full", "error"])
@pytest.mark.parametrize("role", ROLES)
def test_a_role_whose_opening_fails_leaves_nothing_behind(
    role: str, kind: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.store.sqlite.connection.BUSY_TIMEOUT", 0.05)
    engine = world.fresh(tmp_path / "world")
    before = descriptors()
    arm(f"open.before=fail:{kind}*99;open=fail:{kind}*99")
    for _ in range(3):
        with pytest.raises(StoreError):
            ROLES[role](engine)
    if descriptors() != before:
        gc.collect()
        assert descriptors() == before


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
