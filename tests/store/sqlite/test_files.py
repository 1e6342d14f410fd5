"""What is special to SQLite: transactions of the caller's, forks, the log, modes, the writers' lock, backups."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
import threading
import time
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import cast

import pytest

from supervisor import Queue
from supervisor.domain.enqueueing import new_jobs, payload_of
from supervisor.domain.errors import Conflict, StoreBusy, StoreError
from supervisor.domain.job import AlikeJobs, NewJob, Status
from supervisor.domain.settlement import done
from supervisor.store.base import Engine
from supervisor.store.sqlite import SqliteEngine
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.files import DatabaseFiles
from supervisor.store.sqlite.maintenance import SqliteMaintenance, checkpoint
from tests.stopwatch import Stopwatch
from tests.store.kit import NOW, Desk, supervisor_record


class TestTheCallersOwnTransaction:
    def test_a_job_exists_if_and_only_if_the_transaction_commits(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        foreign.execute("CREATE TABLE pictures (path)")
        for end in ("ROLLBACK", "COMMIT"):
            foreign.execute("BEGIN")
            foreign.execute("INSERT INTO pictures VALUES ('cat.jpg')")
            [job_id] = desk.engine.transactional.insert(foreign, [NewJob("tag", "{}")])
            assert desk.producer.job(job_id) is None
            foreign.execute(end)
            there = end == "COMMIT"
            assert (desk.producer.job(job_id) is not None) is there
            assert foreign.execute("SELECT count(*) FROM pictures").fetchone() == (int(there),)

    def test_tables_made_in_a_transaction_that_is_rolled_back_are_made_again(self, tmp_path: Path) -> None:
        queue = Queue(f"sqlite:///{tmp_path}/new.db")
        with contextlib.closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as connection:
            connection.execute("BEGIN")
            assert [queue.enqueue("tag", connection=connection) for _ in range(3)] == [1, 2, 3]
            connection.execute("ROLLBACK")
            assert queue.enqueue("tag", connection=connection) == 1

    def test_a_duplicate_returns_the_existing_id_whatever_the_callers_row_factory(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        first = desk.put(unique_key="k")
        foreign.row_factory = lambda _, row: {"row": row}

        assert desk.engine.transactional.insert(foreign, [NewJob("tag", "{}", unique_key="k")]) == [first]

    def test_the_writers_lock_is_never_taken_on_it(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        with held_lock(desk.engine):
            watch = Stopwatch()
            desk.engine.transactional.insert(foreign, [NewJob("tag", "{}")])
            assert watch.seconds() < 0.5


def connection(desk: Desk) -> Connection:
    return cast("SqliteMaintenance", desk.maintenance)._connection


class TestForks:
    @pytest.mark.parametrize("role", ["producer", "claims", "maintenance", "operations"])
    def test_a_forked_child_is_refused_and_does_the_parent_no_harm(self, desk: Desk, role: str) -> None:
        job_id = desk.put()
        calls = {
            "producer": lambda: desk.producer.events([job_id]),
            "claims": lambda: desk.claim(),
            "maintenance": lambda: desk.maintenance.registry.supervisors(),
            "operations": lambda: desk.operations.statistics.counts(),
        }
        with warnings.catch_warnings():
            # The test runner's own threads do nothing that the child touches.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 1
            try:
                calls[role]()
            except StoreError as error:
                code = 0 if "before a fork" in str(error) else 2
            finally:
                desk.close()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

        assert desk.one().job_id == job_id
        assert desk.operations.statistics.counts() == [("tag", Status.RUNNING, 1)]


class TestTheLog:
    def test_enqueues_are_synced_and_claims_are_not(self, desk: Desk) -> None:
        def synchronous(role: object) -> int:
            return role._connection.raw.execute("PRAGMA synchronous").fetchone()[0]  # type: ignore[attr-defined]

        assert [synchronous(r) for r in (desk.producer, desk.operations)] == [2, 2]
        assert [synchronous(r) for r in (desk.claims, desk.maintenance)] == [1, 1]

    def test_only_the_maintainer_empties_the_log(self, desk: Desk) -> None:
        ids = [desk.put(payload='"' + "x" * 4000 + '"') for _ in range(200)]
        grown = connection(desk).files.log_size()
        for claim in desk.claim(want=200):
            desk.settle(done(claim, None))
        assert connection(desk).files.log_size() > grown > 0

        assert checkpoint(connection(desk)) == 0
        assert desk.status(ids[0]) is Status.DONE

    def test_a_reader_keeps_what_it_reads_in_the_log(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        desk.put()
        foreign.execute("BEGIN")
        foreign.execute("SELECT * FROM jobs").fetchall()
        desk.put()

        assert checkpoint(connection(desk)) > 0
        foreign.execute("COMMIT")
        assert checkpoint(connection(desk)) == 0


class TestFiles:
    def test_a_new_database_and_all_beside_it_belong_to_their_owner_alone(self, tmp_path: Path) -> None:
        with contextlib.closing(SqliteEngine(f"sqlite:///{tmp_path}/jobs.db").producer()) as producer:
            producer.enqueue([NewJob("tag", "{}")])

            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
        assert modes.pop("jobs.db-supervisor") == 0o700
        assert set(modes.values()) == {0o600}, modes

    def test_files_beside_an_existing_database_take_its_mode(self, tmp_path: Path) -> None:
        path = tmp_path / "shared.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE pictures (path)")
        path.chmod(0o660)
        SqliteEngine(f"sqlite:///{path}").database.migrate()

        folder = path.with_name("shared.db-supervisor")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o770
        assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o660}

    def test_a_link_and_its_target_are_one_database(self, desk: Desk, path: Path, tmp_path: Path) -> None:
        link = tmp_path / "link.db"
        link.symlink_to(path)

        assert SqliteEngine(f"sqlite:///{link}").url == desk.engine.url

    @pytest.mark.parametrize("url", ["sqlite://jobs.db", "sqlite:///", "jobs.db"])
    def test_what_is_no_url_is_refused(self, url: str) -> None:
        with pytest.raises(StoreError, match="not an SQLite URL"):
            SqliteEngine(url)

    @pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite://:memory:"])
    def test_a_database_in_memory_is_refused_as_such(self, url: str) -> None:
        with pytest.raises(StoreError, match="in-memory databases are not supported"):
            SqliteEngine(url)

    def test_a_database_that_is_not_there_is_made_only_by_who_may(self, tmp_path: Path) -> None:
        engine = SqliteEngine(f"sqlite:///{tmp_path}/none.db")

        for role in (engine.claims, engine.maintenance, engine.operations, lambda: engine.producer(create=False)):
            with pytest.raises(StoreError, match="the database does not exist"):
                role()
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_no_database_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "text.db").write_text("hello, I am not a database at all" * 100)

        with pytest.raises(StoreError, match="not an SQLite database"):
            SqliteEngine(f"sqlite:///{tmp_path}/text.db").database.migrate()


@contextlib.contextmanager
def held_lock(engine: Engine):  # type: ignore[no-untyped-def]
    """Somebody holds the writers' lock file and does not let go."""
    with (engine.database.folder / "write.lock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class TestTheWritersLock:
    def test_whoever_waits_too_long_goes_on_without_it(self, desk: Desk) -> None:
        with held_lock(desk.engine):
            began, watch = time.monotonic(), Stopwatch()
            desk.put()
            assert time.monotonic() - began > 0.5
            assert watch.seconds() < 4

    def test_reading_and_an_empty_claim_never_wait_for_it(self, desk: Desk) -> None:
        job_id = desk.put("other")
        with held_lock(desk.engine):
            watch = Stopwatch()
            assert desk.claim() == []
            assert desk.status(job_id) is Status.PENDING
            assert desk.maintenance.locks.renew(["w1"], NOW, NOW) == 0
            assert watch.seconds() < 0.5

    def test_a_foreign_writer_that_holds_on_is_reported_as_busy(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        desk.claims._connection.raw.execute("PRAGMA busy_timeout = 50")  # type: ignore[attr-defined]
        desk.put()
        foreign.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreBusy, match="write lock"):
            desk.one()

        foreign.execute("COMMIT")
        assert desk.one().token == 1


class TestSchema:
    @pytest.mark.parametrize(("oldest", "refused"), [(99, True), (1, False)])
    def test_a_newer_schema_is_refused_only_if_it_says_that_we_are_too_old(
        self, desk: Desk, foreign: sqlite3.Connection, oldest: int, refused: bool
    ) -> None:
        foreign.execute("UPDATE job_meta SET value = '99' WHERE key = 'schema'")
        foreign.execute("UPDATE job_meta SET value = ? WHERE key = 'oldest_writer'", [str(oldest)])

        if refused:
            with pytest.raises(StoreError, match="upgrade"):
                desk.engine.database.migrate()
        else:
            assert desk.engine.database.migrate() == []


class TestBackups:
    def test_a_backup_taken_amid_writes_is_whole(self, desk: Desk, path: Path, tmp_path: Path) -> None:
        ids = [desk.put() for _ in range(100)]
        target = tmp_path / "copy.db"
        stop = threading.Event()

        def write() -> None:
            with contextlib.closing(SqliteEngine(desk.engine.url).producer()) as producer:
                while not stop.is_set():
                    producer.enqueue([NewJob("tag", "{}")])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            SqliteEngine(desk.engine.url).database.back_up(target)
        finally:
            stop.set()
            writer.join(20)

        with contextlib.closing(sqlite3.connect(target)) as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert copy.execute("SELECT count(*) FROM jobs").fetchone()[0] >= len(ids)
        assert not target.with_name("copy.db-wal").exists()
        assert stat.S_IMODE(target.stat().st_mode) == 0o600

    def test_a_backup_that_cannot_be_written_leaves_nothing(self, desk: Desk, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="backup failed"):
            SqliteEngine(desk.engine.url).database.back_up(tmp_path / "no" / "copy.db")

    def test_the_owners_of_an_old_backup_are_dead(self, desk: Desk, tmp_path: Path, engine: Engine) -> None:
        desk.maintenance.registry.register(
            supervisor_record("s1", engine, str(engine.database.folder / "owner-s1.lock"))
        )
        desk.put()
        desk.one()
        SqliteEngine(desk.engine.url).database.back_up(tmp_path / "copy.db")

        restored = SqliteEngine(f"sqlite:///{tmp_path}/copy.db").maintenance()
        [record] = restored.registry.supervisors()
        assert restored.registry.owner_lives(record) is False
        assert len(restored.locks.held_by("w1")) == 1
        restored.close()


ODD: tuple[object, ...] = (
    None, "text", '{"a": 1}', "[]", "", 0, 10**30, 1.0, 1e300, -0.0, True, [], [1, [2]], (1, 2), {"a": {"b": [None]}},
    {"é": "\0\u2028\"'"}, {"[": "]]{{"}, {1: 2}, OrderedDict(a=1), {"big": 2**63, "exact": 0.1},
)  # fmt: skip


def alike(*payloads: object) -> AlikeJobs:
    jobs = new_jobs("tag", payloads)
    assert isinstance(jobs, AlikeJobs)
    return jobs


class TestManyAtOnce:
    """Whatever the application's rules make of one of them, every id is the id of its job."""

    def put(self, desk: Desk, count: int = 5) -> list[str]:
        ids = desk.producer.enqueue(alike(*({"n": number} for number in range(count))))
        return [str(desk.job(job_id).payload) for job_id in ids]

    def test_beside_a_trigger_that_inserts_others(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        foreign.execute(
            "CREATE TRIGGER more AFTER INSERT ON jobs WHEN NEW.type = 'tag' "
            "BEGIN INSERT INTO jobs (type) VALUES ('other'); END"
        )
        assert self.put(desk) == [str({"n": number}) for number in range(5)]
        assert foreign.execute("SELECT count(*) FROM jobs").fetchone() == (10,)

    @pytest.mark.parametrize("how", ["IGNORE", "ABORT, 'no'", "ROLLBACK, 'no'"])
    def test_beside_a_rule_that_refuses_one(self, desk: Desk, foreign: sqlite3.Connection, how: str) -> None:
        foreign.execute(
            f"CREATE TRIGGER rule BEFORE INSERT ON jobs WHEN NEW.payload = '{{\"n\":3}}' BEGIN SELECT RAISE({how}); END"
        )
        with pytest.raises((Conflict, StoreError)):
            self.put(desk)
        assert foreign.execute("SELECT count(*) FROM jobs").fetchone() == (0,)

    def test_on_a_connection_without_a_transaction(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        for jobs in ([NewJob("tag", "{}")] * 3, alike({}, {}, {})):
            ids = desk.engine.transactional.insert(foreign, jobs)
            assert not foreign.in_transaction
            assert [desk.status(job_id) for job_id in ids] == [Status.PENDING] * 3

    @pytest.mark.parametrize("apart", [False, True])
    def test_on_such_a_connection_it_is_all_or_nothing(
        self, desk: Desk, foreign: sqlite3.Connection, apart: bool
    ) -> None:
        foreign.execute(
            "CREATE TRIGGER rule BEFORE INSERT ON jobs WHEN NEW.payload = '{\"n\":1}' "
            "BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        jobs = [NewJob("tag", '{"n":0}'), NewJob("tag", '{"n":1}')] if apart else alike({"n": 0}, {"n": 1})
        with pytest.raises(sqlite3.IntegrityError):
            desk.engine.transactional.insert(foreign, jobs)
        assert not foreign.in_transaction
        assert foreign.execute("SELECT count(*) FROM jobs").fetchone() == (0,)

    def test_a_transaction_that_the_driver_began_is_the_callers_to_end(self, desk: Desk, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            for end, left in ((connection.rollback, 0), (connection.commit, 3)):
                desk.engine.transactional.insert(connection, alike({}, {}, {}))
                assert connection.in_transaction
                end()
                assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (left,)

    @pytest.mark.parametrize("trigger", [False, True])  # with it, they are inserted one by one
    def test_every_payload_is_stored_as_if_it_were_alone(
        self, desk: Desk, foreign: sqlite3.Connection, trigger: bool
    ) -> None:
        if trigger:
            foreign.execute(
                "CREATE TRIGGER more AFTER INSERT ON jobs WHEN NEW.type = 'tag' "
                "BEGIN INSERT INTO jobs (type) VALUES ('other'); END"
            )
        payloads = [*ODD, *({"n": number} for number in range(2500)), {"large": "x" * 1_000_000}, *ODD]
        ids = desk.producer.enqueue(alike(*payloads))
        stored = [foreign.execute("SELECT payload FROM jobs WHERE id = ?", (job,)).fetchone()[0] for job in ids]
        assert stored == [payload_of(payload) for payload in payloads]


def test_a_file_that_is_replaced_while_it_is_opened_is_not_taken_for_the_new_one(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection has the old file then, however soon it is used."""
    engine.database.migrate()
    path = engine.database.file
    connect = sqlite3.connect

    def replaced_meanwhile(*arguments: object, **options: object) -> sqlite3.Connection:
        raw = cast("sqlite3.Connection", connect(*arguments, **options))  # type: ignore[call-overload]
        path.with_name("other.db").write_bytes(path.read_bytes())
        path.with_name("other.db").rename(path)
        return raw

    monkeypatch.setattr(sqlite3, "connect", replaced_meanwhile)
    connection = Connection(DatabaseFiles(path), synchronous="NORMAL")
    monkeypatch.undo()
    with contextlib.closing(connection):
        assert connection.moved
        with pytest.raises(StoreError, match="replaced"):
            connection.check()
