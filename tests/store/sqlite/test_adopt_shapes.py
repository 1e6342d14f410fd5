"""Five tables that applications made by hand, each with 1,000 rows of every kind, taken over and worked on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.errors import NothingToAdopt, StoreError
from supervisor.domain.job import Status
from supervisor.domain.settlement import done
from supervisor.engine import open_engine
from supervisor.store.base import AdoptedColumn, AdoptReport
from tests import forkserver
from tests.samples import sampled
from tests.store.kit import Desk
from tests.store.sqlite.adoptable import ROWS, SHAPES, Shape

HANDLERS = """
import os

def work(payload, ctx):
    line = f"{payload['n']} {ctx.type}\\n".encode()
    ledger = os.open(os.path.join(os.path.dirname(__file__), "ledger"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, line)
    os.close(ledger)
    return {"n": payload["n"]}

tag = caption = nsfw = my_job_type = send_mail = work
"""


@dataclass
class Application:
    """One of the five, with its own plain connection."""

    shape: Shape
    path: Path
    db: sqlite3.Connection

    def run(self, sql: str, *parameters: Any) -> list[Any]:
        return self.db.execute(sql, parameters).fetchall()

    def adopt(self, *, rehearse: bool = False, **more: Any) -> AdoptReport:
        options = self.shape.options._replace(**more)
        return open_engine(f"sqlite:///{self.path}").database.adopt(options, rehearse=rehearse)

    @contextlib.contextmanager
    def desk(self) -> Iterator[Desk]:
        opened = Desk.at(open_engine(f"sqlite:///{self.path}"))
        try:
            yield opened
        finally:
            opened.close()


Make = Callable[..., Application]


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def make(name: str, rows: int = 40) -> Application:
            path = tmp_path / "app.db"
            SHAPES[name].make(path, rows)
            db = stack.enter_context(contextlib.closing(sqlite3.connect(path, timeout=20, isolation_level=None)))
            return Application(SHAPES[name], path, db)

        yield make


def command(*arguments: str, folder: Path) -> str:
    """What `supervisor` prints, as a user would run it."""
    ended = forkserver.run(arguments, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", SHAPES)
class TestEachShape:
    def test_the_plan_changes_nothing_and_is_what_happens(self, application: Make, name: str) -> None:
        app = application(name, ROWS)
        app.db.close()

        def everything() -> tuple[str, list[str]]:
            digest = hashlib.sha256(app.path.read_bytes()).hexdigest()
            return digest, sorted(file.name for file in app.path.parent.iterdir())

        before = everything()
        plan = app.adopt(rehearse=True)
        assert everything() == before

        report = app.adopt()
        assert report.backup is not None
        assert report.backup.is_file()
        assert plan == report._replace(backup=None)

    def test_nothing_is_lost(self, application: Make, name: str) -> None:
        app = application(name, ROWS)
        shape = app.shape
        before = app.run(f"SELECT * FROM {shape.table} ORDER BY rowid")
        report = app.adopt()

        assert report.rows == ROWS
        assert report.recovered == ROWS // 4
        recovered = [tuple(shape.pending if v == shape.running else v for v in row) for row in before]
        # In the application's own columns and words, by the names that the plan tells,
        words = {shape.pending: "pending", shape.done: "done", shape.failed: "failed"}
        kept = ", ".join(f'"{column.kept_as}"' for column in report.columns)
        ours = [tuple(words.get(v, v) for v in row) for row in recovered]
        assert app.run(f"SELECT {kept} FROM jobs ORDER BY id") == ours
        # and as the table was.
        shown = app.run(f"SELECT {', '.join(c.column for c in report.columns)} FROM {report.view or 'jobs'}")
        assert len(shown) == ROWS
        for row, then in zip(shown, recovered, strict=True):
            # Only a finished job without a time of its end has one now.
            assert [v for v, was in zip(row, then, strict=True) if was is not None] == [
                v for v in then if v is not None
            ]


@pytest.mark.parametrize("name", sampled(SHAPES, quick=2))
def test_every_unfinished_job_runs_once_under_a_real_supervisor(application: Make, name: str) -> None:
    app = application(name, ROWS)
    folder = app.path.parent
    table = [] if app.shape.table == "jobs" else ["--table", app.shape.table]
    adopt = ["adopt", "--database", "sqlite:///app.db", *table, *app.shape.command]
    planned = command(*adopt, "--plan", folder=folder)
    said = command(*adopt, folder=folder)
    plan, marker, _ = planned.partition("nothing was changed;")
    assert marker
    assert said.startswith(plan)

    # As it is printed, with the application's functions.
    hint = said.partition("for supervisor.toml:")[2]
    (folder / "supervisor.toml").write_text(hint)
    (folder / "jobs.py").write_text(HANDLERS)
    command("run", "--burst", folder=folder)

    due = app.shape.unfinished() if name != "artifex" else [n for n in range(ROWS) if n % 4 in (0, 1)]
    types = {number: app.shape.kind(number) for number in due}
    ran = sorted((int(line.split()[0]), line.split()[1]) for line in (folder / "ledger").read_text().splitlines())
    assert ran == sorted(types.items())
    states = dict(app.run("SELECT status, count(*) FROM jobs GROUP BY 1"))
    later = ROWS // 2 - len(due)
    expected = {"done": ROWS // 4 + len(due), "failed": ROWS // 4, "pending": later}
    assert states == {state: count for state, count in expected.items() if count}
    assert json.loads(command("status", "--json", folder=folder))


class TestOldStatements:
    """Exactly as the application wrote them."""

    def test_an_insert_in_the_applications_columns_and_words_is_a_job_that_runs(self, application: Make) -> None:
        app = application("monitoring", 0)
        app.adopt()
        app.run("INSERT INTO jobs (type, data, status) VALUES ('MY_JOB_TYPE', '{\"n\": 7}', 'pending')")
        app.run("INSERT INTO jobs (type, data, scheduled_for) VALUES ('tag', NULL, '2999-01-01 10:00:00')")

        with app.desk() as desk:
            [claim] = desk.claim(["MY_JOB_TYPE", "tag"], 10, now=2e9)
            assert (claim.type, json.loads(claim.payload)) == ("MY_JOB_TYPE", {"n": 7})
            assert app.run("SELECT status FROM old_jobs WHERE id = 1") == [("processing",)]
            desk.settle(done(claim, '"fine"'), now=2e9)

        assert app.run("SELECT status, data, result FROM jobs WHERE id = 1") == [("done", '{"n": 7}', '"fine"')]
        assert app.run("SELECT status FROM old_jobs WHERE id = 1") == [("completed",)]
        assert app.run("SELECT completed_at FROM old_jobs WHERE id = 1") == [("2033-05-18 03:33:20",)]
        assert app.run("SELECT scheduled_at FROM jobs WHERE id = 2") == [(pytest.approx(32472180000.0, abs=86400),)]

    def test_a_claim_and_a_settlement_in_the_applications_words_count(self, application: Make) -> None:
        app = application("monitoring", 0)
        app.adopt()
        app.run("INSERT INTO jobs (type, data) VALUES ('tag', '{}')")
        claim = (
            "UPDATE jobs SET status = 'processing', attempts = attempts + 1 "
            "WHERE id = (SELECT id FROM jobs WHERE status = 'pending' LIMIT 1) RETURNING id, status"
        )

        assert app.run(claim) == [(1, "processing")]
        held = "SELECT status, locked_by, claim_token, lock_expires_at > 1e9, completed_at FROM jobs"
        assert app.run(held) == [("running", "foreign", 1, 1, None)]
        with app.desk() as desk:
            assert desk.claim(["tag"], 10, now=4e9) == []
        assert app.db.execute("UPDATE jobs SET status = 'completed' WHERE id = 1").rowcount == 1
        assert app.run("SELECT status, locked_by, completed_at > 1e9 FROM jobs") == [("done", None, 1)]
        # One recorded outcome a job,
        assert app.db.execute("UPDATE jobs SET status = 'failed' WHERE id = 1").rowcount == 0
        # and it may run again.
        assert app.db.execute("UPDATE jobs SET status = 'pending' WHERE id = 1").rowcount == 1
        assert app.run("SELECT status, completed_at FROM jobs") == [("pending", None)]

    @pytest.mark.parametrize("word", ["processing", "completed", "pending", "failed"])
    def test_no_word_of_the_applications_takes_a_job_from_our_worker(self, application: Make, word: str) -> None:
        app = application("monitoring", 0)
        app.adopt()
        app.run("INSERT INTO jobs (type, data) VALUES ('tag', '{}')")
        with app.desk() as desk:
            claim = desk.one(now=4e9)
            app.run("UPDATE jobs SET status = ?", word)
            assert app.run("SELECT status FROM jobs") == [("running",)]
            assert desk.settle(done(claim, None), now=4e9) == []
            assert desk.job(1).status == Status.DONE

    def test_a_finished_job_is_queued_again_by_the_applications_word(self, application: Make) -> None:
        app = application("article", 0)
        app.adopt()
        app.run("INSERT INTO old_jobs (id, queue, version, type, payload) VALUES ('a', 'q', 1, 'tag', '{}')")
        app.run("UPDATE old_jobs SET status = 'FAILED' WHERE id = 'a'")
        assert app.run("SELECT status, completed_at > 1e9 FROM jobs") == [("failed", 1)]
        assert app.db.execute("UPDATE jobs SET status = 'QUEUED' WHERE status = 'failed'").rowcount == 1
        assert app.run("SELECT status, completed_at FROM jobs") == [("pending", None)]
        app.run("UPDATE jobs SET status = 'DONE'")
        app.run("UPDATE old_jobs SET status = 'QUEUED' WHERE id = 'a'")
        assert app.run("SELECT status, completed_at FROM jobs") == [("pending", None)]

    def test_text_ids_go_on_through_the_view(self, application: Make) -> None:
        app = application("course", 8)
        app.adopt()
        insert = "INSERT INTO {} (id, type, payload, scheduled_at) VALUES ('my-uuid', 'tag', '{{}}', ?)"
        with pytest.raises(sqlite3.IntegrityError):
            app.run(insert.format("jobs"), "2024-01-01T00:00:00Z")
        app.run(insert.format("old_jobs"), "2024-01-01T00:00:00Z")
        app.run("UPDATE old_jobs SET priority = 9 WHERE id = 'my-uuid'")

        with app.desk() as desk:
            [claim] = desk.claim(["tag"], 1, now=2e9)
            assert claim.job_id == 9
            desk.settle(done(claim, None), now=2e9)
            ours = desk.put("tag", at=2e9)
        [row] = app.run("SELECT status, scheduled_at, completed_at FROM old_jobs WHERE id = 'my-uuid'")
        assert row == ("completed", "2024-01-01T00:00:00Z", "2033-05-18T03:33:20.000")
        assert app.run("SELECT id, scheduled_at, status FROM old_jobs WHERE priority = 0 ORDER BY 1 LIMIT 1") == [
            ("0f0000-uuid-0", "2024-05-01T10:00:00", "pending")
        ]
        assert app.run("SELECT status FROM old_jobs WHERE id = ?", str(ours)) == [("pending",)]
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            app.run(insert.format("old_jobs"), "2024-01-01T00:00:00Z")
        app.run("DELETE FROM old_jobs WHERE id = 'my-uuid'")
        assert app.run("SELECT count(*) FROM jobs WHERE id = 9") == [(0,)]

    def test_a_table_of_another_name_is_a_view_that_takes_all_but_claims(self, application: Make) -> None:
        app = application("node", 8)
        report = app.adopt()
        assert report.view == "job_queue"
        app.run(
            "INSERT INTO job_queue (type, scheduled_for, created_at) VALUES ('send:mail', 1714557600000, 1714557600000)"
        )
        assert app.run("SELECT type, payload, status, scheduled_at, created_at FROM jobs WHERE id = 9") == [
            ("send:mail", "{}", "pending", 1714557600.0, 1714557600000)
        ]
        assert app.run("SELECT type, data, status FROM job_queue WHERE id = 9") == [("send:mail", "{}", "queued")]

    def test_columns_of_the_same_meaning_are_kept_equal_both_ways(self, application: Make) -> None:
        app = application("monitoring", 0)
        app.adopt()
        with app.desk() as desk:
            desk.put("tag", at=2e9)
        assert app.run("SELECT data = payload, scheduled_for FROM jobs") == [(1, "2033-05-18 03:33:20")]
        app.run("UPDATE jobs SET scheduled_for = '2033-05-18T05:33:21+02:00', data = '[1]'")
        assert app.run("SELECT round(scheduled_at, 3), payload FROM jobs") == [(2000000001.0, "[1]")]
        app.run("UPDATE jobs SET scheduled_at = 2000000002.5")
        assert app.run("SELECT scheduled_for FROM jobs") == [("2033-05-18 03:33:22",)]
        app.run("UPDATE jobs SET priority = 1")
        assert app.run("SELECT scheduled_at FROM jobs") == [(2000000002.5,)]
        with pytest.raises(sqlite3.IntegrityError, match="scheduled_for is no time"):
            app.run("INSERT INTO jobs (type, scheduled_for) VALUES ('tag', 'soon')")

    def test_a_trigger_that_reads_a_word_which_is_gone_is_named(self, application: Make) -> None:
        app = application("course", 8)
        app.run("CREATE TRIGGER finished AFTER UPDATE ON jobs WHEN NEW.status = 'completed' BEGIN SELECT 1; END")
        assert any("trigger `finished` names 'completed'" in note for note in app.adopt().notes)


class TestTimes:
    @pytest.mark.parametrize(
        ("written", "seconds"),
        [
            ("2024-05-01 10:00:00", 1714557600.0),
            ("2024-05-01T10:00:00", 1714557600.0),
            ("2024-05-01T10:00:00Z", 1714557600.0),
            ("2024-05-01T10:00:00.250Z", 1714557600.25),
            ("2024-05-01T12:00:00+02:00", 1714557600.0),
            ("2024-05-01T12:00:00+0200", 1714557600.0),
            ("2024-05-01T05:30:00.5-0430", 1714557600.5),
            ("2024-05-01 10:00", 1714557600.0),
            ("2024-05-01", 1714521600.0),
            (1714557600, 1714557600.0),
            (1714557600.5, 1714557600.5),
            (1714557600500, 1714557600.5),
            ("1714557600", 1714557600.0),
            ("1714557600500", 1714557600.5),
            ("", None),
            (None, None),
        ],
    )
    @pytest.mark.parametrize(
        ("name", "declared"),
        sampled(
            [
                *(("scheduled_for", "DATETIME"), ("scheduled_at", "TEXT"), ("scheduled_at", "")),
                *(("scheduled_for", "TEXT"), ("scheduled_for", ""), ("scheduled_at", "DATETIME")),
            ],
            quick=3,
        ),
    )
    def test_every_usual_form_is_read_and_the_original_kept(
        self, application: Make, written: object, seconds: float | None, name: str, declared: str
    ) -> None:
        app = application("artifex", 0)
        app.run(f"ALTER TABLE jobs ADD COLUMN {name} {declared}")
        app.run(f"INSERT INTO jobs (type, {name}) VALUES ('tag', ?)", written)
        [(stored,)] = app.run(f"SELECT {name} FROM jobs")
        report = app.adopt()
        [(read, at_once)] = app.run("SELECT scheduled_at, scheduled_at > 1.75e9 FROM jobs")
        assert at_once if seconds is None else read == pytest.approx(seconds, abs=0.001)
        kept = next(column.kept_as for column in report.columns if column.column == name)
        if kept != "scheduled_at":  # plain seconds need no original
            assert app.run(f"SELECT {kept} FROM jobs") == [(stored,)]

    @pytest.mark.parametrize("written", ["soon", "2024-13-01", "9999-12-31", -5, b"x"])
    def test_what_is_no_time_is_refused(self, application: Make, written: object) -> None:
        app = application("artifex", 0)
        app.run("ALTER TABLE jobs ADD COLUMN run_at")
        app.run("INSERT INTO jobs (type, run_at) VALUES ('tag', ?)", written)
        with pytest.raises(StoreError, match="`run_at` holds what job-supervisor cannot take"):
            app.adopt()


class TestOptions:
    def test_what_an_option_says_is_done_and_the_rest_is_proposed(self, application: Make) -> None:
        app = application("monitoring", 8)
        report = app.adopt(renames={"scheduled_for": "scheduled_for", "error": "trouble"})
        columns = {column.column: column for column in report.columns}
        assert columns["scheduled_for"] == AdoptedColumn("scheduled_for", "scheduled_for", None, False)
        assert columns["error"] == AdoptedColumn("error", "trouble", None, False)
        assert columns["data"] == AdoptedColumn("data", "data", "payload", True)
        assert columns["locked_by"] == AdoptedColumn("locked_by", "old_locked_by", None, True)
        assert app.run("SELECT count(*) FROM jobs WHERE trouble = 'timeout'") == [(2,)]

    def test_words_that_become_one_are_told(self, application: Make) -> None:
        app = application("monitoring", 8)
        app.run("UPDATE jobs SET status = 'retrying' WHERE id = 1")
        report = app.adopt()
        assert any("'pending', 'retrying' become 'pending' alike" in note for note in report.notes)
        assert app.run("SELECT status FROM old_jobs WHERE id = 1") == [("pending",)]

    def test_a_column_of_our_name_with_another_meaning_can_be_kept_under_another(self, application: Make) -> None:
        app = application("course", 8)
        app.run("UPDATE jobs SET priority = 500")
        app.adopt(renames={"priority": "importance"})
        assert app.run("SELECT DISTINCT priority, importance FROM jobs") == [(0, 500)]

    def test_a_key_of_another_name_stays_beside_the_id(self, application: Make) -> None:
        app = application("artifex", 8)
        app.run("ALTER TABLE jobs RENAME COLUMN id TO job_id")
        app.run("CREATE TABLE results (job INTEGER REFERENCES jobs (job_id))")
        app.run("INSERT INTO results VALUES (3)")
        app.adopt()
        app.run("INSERT INTO jobs (type) VALUES ('tag')")
        assert app.run("SELECT count(*), sum(id = job_id) FROM jobs") == [(9, 9)]
        assert app.run("PRAGMA foreign_key_check") == []

    def test_our_own_table_is_left_alone(self, application: Make) -> None:
        app = application("monitoring", 8)
        app.adopt()
        before = list(app.db.iterdump())
        for rehearse in (True, False):
            with pytest.raises(NothingToAdopt, match="job-supervisor's already"):
                app.adopt(rehearse=rehearse)
        assert list(app.db.iterdump()) == before
