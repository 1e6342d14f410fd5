"""`supervisor move`: every row of one engine is in the other, or listed; the old database says where the jobs are."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from supervisor import AsyncQueue, Queue, StoreError
from supervisor.cli import main
from supervisor.domain.errors import Conflict, InvalidOption, StoreBusy, StoreMoved, StoreUnavailable
from supervisor.domain.job import NewJob
from supervisor.domain.text import without_password
from supervisor.engine import open_engine
from supervisor.ops import move as moving
from supervisor.ops.move import MoveReport
from supervisor.store.moving import KEYS, MoveEnd
from supervisor.testing import run_due
from tests.postgres_server import Databases
from tests.store.kit import supervisor_record
from tests.store.movable import OF_AN_ENGINE, contents, empty_server, fill

WAYS = ("there", "back")
Made = Callable[[str], tuple[str, str]]


@pytest.fixture
def made(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """From a way to the URLs of the source and of an empty target."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(way: str) -> tuple[str, str]:
        server = empty_server(postgres, monkeypatch)
        file = f"sqlite:///{tmp_path}/{len(list(tmp_path.iterdir()))}.db"
        return (file, server) if way == "there" else (server, file)

    return make


def moved(source: str, target: str) -> MoveReport:
    return moving.move(source, target)


def write(url: str, sql: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw, raw:
            raw.execute(sql)
    else:
        with psycopg.connect(url) as connection:
            connection.execute(sql.encode())


def test_every_table_and_column_is_moved(made: Made) -> None:
    file, server = made("there")
    for url in (file, server):
        open_engine(url).database.migrate()
    with closing(open_engine(file).move_end()) as here, closing(open_engine(server).move_end()) as there:
        for table in KEYS:
            ours, theirs = set(here.columns(table)), set(there.columns(table))
            assert ours == theirs, f"{table}: name a column of one engine alone in its move.py"


@pytest.mark.parametrize("way", WAYS)
def test_all_rows_are_equal_after_a_move(made: Made, way: str) -> None:
    source, target = made(way)
    fill(source, 2500)
    before = contents(source)

    planned = moving.plan(source, target)
    assert contents(source) == before
    report = moved(source, target)

    assert contents(target) == before
    assert report.set_aside == 0
    assert report.rows == planned.rows == {table: len(before[table]) for table in KEYS}
    at = sorted_columns(source).index("id")
    highest = max(row[at] for row in before["jobs"])
    assert Queue(target).enqueue("tag") == highest + 1001  # a sequence never goes back
    again = moved(source, target)  # there is nothing left to do
    assert again.moved_at is not None
    assert report == replace(again, moved_at=None)
    assert moving.plan(source, target) == again


def sorted_columns(url: str) -> list[str]:
    with closing(open_engine(url).move_end()) as end:
        return sorted(column for column in end.columns("jobs") if ("jobs", column) not in OF_AN_ENGINE)


@pytest.mark.parametrize("way", WAYS)
def test_the_source_says_where_the_jobs_are_and_queues_follow(made: Made, way: str) -> None:
    source, target = made(way)
    old = Queue(source)
    first = old.enqueue("tag", {"n": 1})
    reader = Queue(source)
    assert reader.job(first).payload == {"n": 1}

    moved(source, target)

    for sql in ("INSERT INTO jobs (type) VALUES ('tag')", "UPDATE jobs SET priority = 1", "DELETE FROM jobs"):
        with pytest.raises((sqlite3.IntegrityError, psycopg.Error), match=re.escape(without_password(target))):
            write(source, sql)
    with pytest.raises(StoreMoved, match="the jobs were moved to"):
        open_engine(source).operations()
    assert old.enqueue("tag") == first + 1
    assert old.enqueue_many("tag", [1, 2]) == [first + 2, first + 3]
    assert Queue(source).put("tag", unique_key="k") == (first + 4, True)
    assert without_password(old.url) == without_password(target)
    asyncio.run(asynchronous(source, first + 5))
    write(target, f"UPDATE jobs SET priority = 7 WHERE id = {first}")
    reader._connections.reader.producer._look_at = 0.0  # type: ignore[union-attr]  # in half a second
    assert reader.job(first).priority == 7
    run_due(Queue(target), {"tag": lambda payload, ctx: payload})
    assert reader.job(first).result == {"n": 1}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_follows_is_told_to_correct_the_url(
    made: Made, way: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = made(way)
    Queue(source).enqueue("tag")
    moved(source, target)
    caplog.clear()
    with Queue(source) as queue:
        job = queue.enqueue("tag")
        assert queue.job(job).status == "pending"
    words = f"the jobs were moved to {without_password(target)}; this program should use that URL"
    assert [record.getMessage() for record in caplog.records] == [f"{without_password(source)}: {words}"]
    caplog.clear()
    capsys.readouterr()
    assert main(["--database", source, "enqueue", "tag", "--wait", "--timeout", "0s"]) == 1
    assert capsys.readouterr().out == f"{job + 1}\n"
    assert words in caplog.text


def test_a_move_that_was_complete_says_so_and_compares_nothing(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = made("there")
    Queue(source).enqueue("tag")
    file = source.removeprefix("sqlite:///")
    assert main(["move", file, target]) == 0
    assert "every row was read back from the target" in capsys.readouterr().out
    Queue(target).enqueue("tag")
    for arguments in ([file, target], ["--plan", file, target]):
        assert main(["move", *arguments]) == 0
        printed = capsys.readouterr().out
        assert re.search(r"already moved at \d{4}-\d\d-\d\d .*; nothing was compared or changed now", printed)
        assert "was read back" not in printed
        assert re.search(r"jobs +1 row\n", printed)


async def asynchronous(url: str, expected: int) -> None:
    async with AsyncQueue(url) as queue:
        assert await queue.enqueue("tag") == expected


def test_jobs_that_wait_in_one_transaction_follow_together(made: Made) -> None:
    source, target = made("there")
    queue = Queue(source)
    queue.enqueue("tag")

    async def many() -> list[int]:
        async with AsyncQueue.of(queue) as opened:
            return await asyncio.gather(*(opened.enqueue("tag", n) for n in range(20)))

    moved(source, target)
    assert sorted(asyncio.run(many())) == list(range(2, 22))
    assert Queue(target).count("tag") == 21


def test_a_queue_without_the_password_names_the_new_database(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = made("there")
    queue = Queue(source)
    queue.enqueue("tag")
    moved(source, target)
    monkeypatch.setenv("PGPASSWORD", "wrong")
    for one in (queue, Queue(source)):
        with pytest.raises(StoreError, match=r"the jobs were moved to postgresql://.* cannot be used here: .*password"):
            one.enqueue("tag")


def test_what_the_target_cannot_hold_is_listed_and_stays(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = made("there")
    fill(source, 30)
    whole = contents(source)
    with closing(sqlite3.connect(source.removeprefix("sqlite:///"))) as raw, raw:
        insert = "INSERT INTO jobs (id, type, payload, created_at) VALUES (?, 'tag', CAST(? AS TEXT), ?)"
        raw.execute(insert, [10_001, b'"a\0b"', 1])
        raw.execute(insert, [10_002, b'"\xff"', 1])
        raw.execute(insert, [10_003, b"{}", "last Tuesday"])
        raw.execute(insert, [10_004, b"{}", "2026-01-02T03:04:05Z"])  # of an adopted table
        raw.execute(
            "INSERT INTO job_errors (id, job_id, attempt, kind, message, created_at) VALUES (900, 10001, 1, '', '', 1)"
        )
        raw.execute(
            "INSERT INTO job_errors (id, job_id, attempt, kind, message, created_at) VALUES (901, 77777, 1, '', '', 1)"
        )
        raw.execute("UPDATE job_controls SET updated_at = 9e999 WHERE name = 'tag'")  # infinite: both engines have that

    report = moved(source, target)

    assert [row.rpartition(": ")[0] for row in report.aside] == [
        *("jobs 10001: payload", "jobs 10002: payload", "jobs 10003: created_at"),
        *("job_errors 900: job_id", "job_errors 901: job_id"),
    ]
    assert Queue(target).job(10_004).created_at == 1767323045.0
    assert len(contents(target)["jobs"]) == len(whole["jobs"]) + 1
    assert Queue(target).enqueue("tag") == 10_005

    capsys.readouterr()
    assert main(["move", source, target]) == 1  # something needs a look
    printed = capsys.readouterr().out
    assert "jobs 10001: payload: a text with a NUL character" in printed
    assert "jobs 10002: payload: not valid UTF-8" in printed


def test_what_the_tables_of_the_target_refuse_stops_the_move(made: Made) -> None:
    source, target = made("there")
    fill(source, 30)
    open_engine(target).database.migrate()
    write(target, "ALTER TABLE jobs ADD CONSTRAINT odd CHECK (payload NOT LIKE '%\"n\": 7,%')")
    with pytest.raises(StoreError, match="violates check constraint"):
        moved(source, target)
    assert contents(target)["jobs"] == []
    write(target, "ALTER TABLE jobs DROP CONSTRAINT odd")
    assert moved(source, target).rows["jobs"] == 30


@pytest.mark.parametrize("way", WAYS)
def test_running_supervisors_are_refused(made: Made, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = made(way)
    fill(source, 5)
    alive = open_engine(source)
    store = alive.maintenance()
    record = supervisor_record("alive", alive, "/nowhere")
    lives = "supervisor.store.ownership.Ownership.lives"
    monkeypatch.setattr(lives, lambda self, owner: owner.id == "alive")
    store.registry.register(record)
    with pytest.raises(Conflict, match=f"supervisor {record.pid} on .* is running on .*; stop it first"):
        moved(source, target)
    assert moving.plan(source, target).running == [f"{record.pid} on {record.host}"]
    store.registry.register(record._replace(id="alive too", host="beta"))
    monkeypatch.setattr(lives, lambda self, owner: owner.id.startswith("alive"))
    both = f"supervisor {record.pid} on .*, supervisor {record.pid} on beta is running on .*; stop it first"
    with pytest.raises(Conflict, match=both):
        moved(source, target)
    store.registry.forget("alive too", 0.0)
    store.registry.register(record)  # again, so that it is this registry's own
    store.registry.forget("alive", 0.0)
    store.close()
    moved(source, target)


def test_a_supervisor_that_starts_at_the_end_is_refused_or_refuses(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = made("there")
    fill(source, 5)
    store = open_engine(source).maintenance()
    monkeypatch.setattr("supervisor.store.ownership.Ownership.lives", lambda self, owner: owner.id == "late")
    record = supervisor_record("late", open_engine(source), "/nowhere")

    columns = moving._columns

    def before_it_is_shut(*ends: MoveEnd) -> tuple[dict[str, list[str]], list[str]]:
        store.registry.register(record)
        return columns(*ends)

    monkeypatch.setattr(moving, "_columns", before_it_is_shut)
    with pytest.raises(Conflict, match="is running on"):
        moved(source, target)
    monkeypatch.setattr(moving, "_columns", columns)
    store.registry.forget("late", 0.0)

    def afterwards(place: str) -> None:
        with pytest.raises(StoreError, match=r"the jobs (are being|were) moved to"):
            store.registry.register(record)

    monkeypatch.setattr(moving.failpoints, "reach", afterwards)
    moved(source, target)
    with pytest.raises(StoreError, match="the jobs were moved to"):
        store.registry.register(record)
    store.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_target_with_jobs_is_refused(made: Made, way: str) -> None:
    source, target = made(way)
    fill(source, 5)
    Queue(target).enqueue("tag")
    for attempt in (moving.plan, moved):
        with pytest.raises(Conflict, match="it has 1 job already; a move needs an empty target"):
            attempt(source, target)
    assert Queue(source).enqueue("tag")


def test_nobody_uses_either_database_while_jobs_are_moved(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = made("there")
    fill(source, 5)
    seen: list[str] = []
    open_engine(target).database.migrate()
    other = open_engine(target).producer(patience=0.1)

    def tried(place: str) -> None:
        if place == "move.copied":
            with pytest.raises(StoreBusy):
                other.put(NewJob("tag", "{}"))
        if place in ("move.closed", "move.copied"):
            with pytest.raises(StoreUnavailable, match="the jobs are being moved to postgresql://"):
                Queue(source).enqueue("tag")
            with pytest.raises(sqlite3.IntegrityError, match="the jobs are being moved to postgresql://"):
                write(source, "DELETE FROM jobs")
        seen.append(place)

    monkeypatch.setattr(moving.failpoints, "reach", tried)
    moved(source, target)
    other.close()
    assert seen[-2:] == ["move.arrived", "move.finished"]


def test_a_block_that_reads_differently_than_it_was_written_stops_the_move(made: Made) -> None:
    source, target = made("there")
    fill(source, 5)
    open_engine(target).database.migrate()
    write(
        target,
        "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.payload = ''1''; RETURN NEW; END'; "
        "CREATE TRIGGER spoil BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION spoil()",
    )
    with pytest.raises(StoreError, match="jobs after None differs from what was written"):
        moved(source, target)
    write(target, "DROP TRIGGER spoil ON jobs")
    before = contents(source)
    moved(source, target)
    assert contents(target) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_move_can_be_given_up(made: Made, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = made(way)
    fill(source, 5)
    before = contents(source)

    def stopped(place: str) -> None:
        if place == "move.copied":
            raise KeyboardInterrupt

    monkeypatch.setattr(moving.failpoints, "reach", stopped)
    with pytest.raises(KeyboardInterrupt):
        moved(source, target)
    with pytest.raises(StoreUnavailable):
        Queue(source).enqueue("tag")
    moving.abandon(source, target)
    assert contents(source) == before
    assert Queue(source).enqueue("tag")
    assert contents(target)["jobs"] == []
    monkeypatch.setattr(moving.failpoints, "reach", lambda place: None)
    moved(source, target)
    assert contents(target) == contents(source)
    with pytest.raises(Conflict, match="the move is complete"):
        moving.abandon(source, target)


def test_columns_of_the_application_are_named(made: Made) -> None:
    source, target = made("there")
    fill(source, 5)
    write(source, "ALTER TABLE jobs ADD COLUMN customer TEXT")
    with pytest.raises(Conflict, match=r"jobs\.customer would stay behind.*--leave-columns"):
        moved(source, target)
    assert moving.plan(source, target).left_columns == ["jobs.customer"]
    report = moving.move(source, target, leave_columns=True)
    assert report.rows["jobs"] == 5


def test_mistakes_get_one_sentence(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = made("there")
    for arguments, code, words in (
        ([f"{tmp_path}/missing.db", target], 3, "the database does not exist"),
        ([source, f"{tmp_path}/other.db"], 2, "a move is from SQLite to PostgreSQL, or back; `supervisor backup`"),
        ([target, target], 2, "pg_dump and pg_restore"),
        ([target, f"{tmp_path}/other.db"], 3, "has no job tables yet"),
        (["mysql://x", target], 2, "is not an SQLite or PostgreSQL URL"),
    ):
        assert main(["move", *arguments]) == code
        printed = capsys.readouterr()
        assert words in printed.err
        assert printed.err.count("\n") == 1
        assert printed.out == ""
    with pytest.raises(InvalidOption):
        moving.plan(source, source)
    fill(source, 3)
    assert main(["move", "--plan", source, target]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    with psycopg.connect(target) as connection:
        assert connection.execute("SELECT to_regclass('jobs'), to_regclass('job_meta')").fetchone() == (None, None)
    moved(source, target)
    assert main(["--database", source, "status"]) == 3
    assert "the jobs were moved to postgresql://" in capsys.readouterr().err
