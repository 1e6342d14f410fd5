"""Taking over a `jobs` table that an application made by hand."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.errors import StoreError
from supervisor.domain.settlement import done
from supervisor.engine import open_engine
from supervisor.store.base import AdoptOptions, AdoptReport, JobSelector
from tests.store.kit import Desk, until

PLAIN = """CREATE TABLE jobs (
  id INTEGER PRIMARY KEY,
  type TEXT NOT NULL,                 -- tag, caption, nsfw
  payload TEXT,
  status TEXT NOT NULL DEFAULT 'pending',
  attempts INTEGER NOT NULL DEFAULT 0,
  last_error TEXT,
  created_at TEXT DEFAULT CURRENT_TIMESTAMP,
  updated_at TEXT DEFAULT CURRENT_TIMESTAMP
)"""
CLAIM = (
    "UPDATE jobs SET status='running', attempts=attempts+1, updated_at=CURRENT_TIMESTAMP "
    "WHERE id=(SELECT id FROM jobs WHERE status='pending' ORDER BY id LIMIT 1) RETURNING *"
)
DONE = "UPDATE jobs SET status='done', updated_at=CURRENT_TIMESTAMP WHERE id=?"


class App:
    """The application: a database made by hand, and its own plain connection to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path, timeout=20, isolation_level=None)

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return self.db.execute(sql, parameters).fetchall()

    def adopt(self, *, rehearse: bool = False, **options: Any) -> AdoptReport:
        return open_engine(f"sqlite:///{self.path}").database.adopt(AdoptOptions(**options), rehearse=rehearse)

    def refusal(self, **options: Any) -> str:
        before = "\n".join(self.db.iterdump()), sorted(p.name for p in self.path.parent.iterdir())
        with pytest.raises(StoreError) as refused:
            self.adopt(**options)
        assert ("\n".join(self.db.iterdump()), sorted(p.name for p in self.path.parent.iterdir())) == before
        return str(refused.value)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(tmp_path / "app.db")
    yield app
    app.db.close()


@contextlib.contextmanager
def desk(app: App) -> Iterator[Desk]:
    opened = Desk.at(open_engine(f"sqlite:///{app.path}"))
    try:
        yield opened
    finally:
        opened.close()


def fill(app: App, count: int = 1000) -> None:
    statuses = ["pending", "running", "done", "failed"]
    app.db.executemany(
        "INSERT INTO jobs (type, payload, status, attempts, last_error, created_at, updated_at) "
        "VALUES (?, ?, ?, ?, ?, '2024-05-01 10:00:00', '2024-05-02 10:00:00')",
        [(["tag", "caption", "nsfw"][n % 3], json.dumps({"n": n}), statuses[n % 4], n % 5, None) for n in range(count)],
    )


class TestWhatIsKept:
    def test_the_backup_is_the_database_as_it_was(self, app: App) -> None:
        app.run(PLAIN)
        fill(app, 50)
        before = list(app.db.iterdump())

        report = app.adopt()

        assert report.backup.name.startswith("app.db.before-adopt-")
        with contextlib.closing(sqlite3.connect(report.backup)) as backup:
            assert list(backup.iterdump()) == before

    def test_old_jobs_are_due_at_once_in_the_order_of_their_ids(self, app: App) -> None:
        app.run(PLAIN)
        fill(app, 40)
        app.adopt()

        with desk(app) as opened:
            now = app.run("SELECT max(scheduled_at) FROM jobs")[0][0]
            ids = [claim.job_id for claim in opened.claim(["tag", "caption", "nsfw"], 100, now=now)]

        assert ids == [n + 1 for n in range(40) if n % 4 in (0, 1)]

    def test_payloads_of_any_kind_are_kept_byte_for_byte(self, app: App) -> None:
        app.run("CREATE TABLE jobs (id INTEGER PRIMARY KEY, type, payload, status)")
        odd = [None, b"\xff\x00raw", 5, 1.5, "{not json", "\x00"]
        app.db.executemany("INSERT INTO jobs (type, payload, status) VALUES ('t', ?, 'pending')", [(p,) for p in odd])
        app.run("INSERT INTO jobs (type, payload, status) VALUES ('t', CAST(x'c328' AS TEXT), 'pending')")

        app.adopt()

        kept = app.run("SELECT CAST(payload AS BLOB) FROM jobs ORDER BY id")
        assert [row[0] for row in kept] == [
            b"{}", b"\xff\x00raw", b"5", b"1.5", b"{not json", b"\x00", b"\xc3\x28",
        ]  # fmt: skip
        with desk(app) as opened:
            claims = opened.claim(["t"], 100, now=2e9)
        assert [claim.payload for claim in claims] == [
            "{}", b"\xff\x00raw", "5", "1.5", "{not json", "\x00", b"\xc3\x28",
        ]  # fmt: skip

    def test_columns_indexes_triggers_views_keys_and_the_sequence_of_the_application_are_kept(self, app: App) -> None:
        app.db.executescript("""
            PRAGMA foreign_keys = ON;
            CREATE TABLE users (id INTEGER PRIMARY KEY, name);
            CREATE TABLE log (what);
            CREATE TABLE jobs (
              "id" INTEGER PRIMARY KEY AUTOINCREMENT, type VARCHAR(50) NOT NULL, payload TEXT NOT NULL,
              status TEXT DEFAULT 'pending' CHECK (status IN ('pending','running','done','failed')),
              owner INTEGER REFERENCES users (id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
              [odd, name] TEXT COLLATE NOCASE DEFAULT ('a,b'), /* a comment, with a comma */
              size GENERATED ALWAYS AS (length(payload)) VIRTUAL,
              CONSTRAINT no_twins UNIQUE (type, owner), -- the last
              CHECK (owner > 0)
            );
            CREATE TABLE results (job INTEGER REFERENCES jobs (id) ON DELETE CASCADE, text);
            CREATE INDEX by_owner ON jobs (owner) WHERE owner IS NOT NULL;
            CREATE TRIGGER noted AFTER INSERT ON jobs BEGIN INSERT INTO log VALUES (NEW.type); END;
            CREATE TRIGGER elsewhere AFTER INSERT ON results
              BEGIN UPDATE jobs SET status = 'done' WHERE id = NEW.job; END;
            CREATE VIEW waiting AS SELECT id, type FROM jobs WHERE status = 'pending';
            INSERT INTO users VALUES (7, 'me');
            INSERT INTO jobs (type, payload, owner) VALUES ('tag', '{}', 7), ('tag', '{}', NULL), ('x', '{}', 7);
            INSERT INTO results VALUES (1, 'r');
            DELETE FROM jobs WHERE id = 3;
        """)
        others = (
            "SELECT name, sql FROM sqlite_schema "
            "WHERE name IN ('results', 'by_owner', 'noted', 'elsewhere', 'waiting') ORDER BY name"
        )
        before = app.run(others)

        report = app.adopt()

        assert app.run(others) == before
        assert report.extra_columns == ("owner", "odd, name", "size")
        assert app.run('SELECT owner, "odd, name", size FROM jobs') == [(7, "a,b", 2), (None, "a,b", 2)]
        assert app.run("SELECT * FROM waiting") == [(2, "tag")]  # the result's trigger finished the other
        app.run("INSERT INTO jobs (type, payload) VALUES ('y', '{}')")
        assert app.run("SELECT max(id) FROM jobs") == [(4,)]  # 3 is never given again
        assert app.run("SELECT what FROM log") == [("tag",), ("tag",), ("x",), ("y",)]
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            app.run("INSERT INTO jobs (type, payload, owner) VALUES ('tag', '{}', 7)")
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            app.run("INSERT INTO jobs (type, payload, owner) VALUES ('tag', '{}', -7)")
        app.run("DELETE FROM users")
        assert app.run("SELECT owner FROM jobs WHERE id = 1") == [(None,)]
        app.run("DELETE FROM jobs WHERE id = 1")
        assert app.run("SELECT count(*) FROM results") == [(0,)]
        assert app.run("PRAGMA foreign_key_check") == []
        assert app.run("PRAGMA integrity_check") == [("ok",)]

    def test_the_database_has_what_a_fresh_one_has(self, app: App, tmp_path: Path) -> None:
        app.run(PLAIN)
        app.adopt()
        fresh = open_engine(f"sqlite:///{tmp_path}/fresh.db")
        fresh.database.migrate()

        query = (
            "SELECT type, name, tbl_name, sql FROM sqlite_schema "
            "WHERE name NOT LIKE 'jobs_times%' AND name <> 'jobs' ORDER BY name"
        )
        with contextlib.closing(sqlite3.connect(tmp_path / "fresh.db")) as model:
            assert app.run(query) == model.execute(query).fetchall()
            assert (
                app.run("SELECT * FROM job_meta WHERE key <> 'epoch' ORDER BY key")
                == model.execute("SELECT * FROM job_meta WHERE key <> 'epoch' ORDER BY key").fetchall()
            )
            names = "SELECT name FROM pragma_table_info('jobs')"
            assert {*app.run(names)} == {*model.execute(names).fetchall()}
        assert open_engine(f"sqlite:///{app.path}").database.migrate() == []


class TestTimes:
    def test_when_a_finished_job_ended_is_converted_from_text(self, app: App) -> None:
        app.run(PLAIN)
        fill(app, 8)
        app.adopt()

        ended = set(app.run("SELECT status, round(completed_at, 3) FROM jobs"))
        assert ended == {("pending", None), ("done", 1714644000.0), ("failed", 1714644000.0)}

    @pytest.mark.parametrize(
        ("value", "form", "settled"),
        [
            ("2024-05-01 10:00:00", "____-__-__ __:__:__", "2033-05-18%"),
            ("2024-05-01T10:00:00", "____-__-__T__:__:__", "2033-05-18%"),
            ("2024-05-01T10:00:00.123456+00:00", "____-__-__T__:__:__.___+00:00", "2033-05-18%"),
            ("2024-05-01T10:00:00Z", "____-__-__T__:__:__Z", "2033-05-18%"),
            (1714644000123, "_____________", "2000000000000"),
        ],
    )
    def test_what_we_write_into_its_columns_has_the_form_that_the_application_writes(
        self, app: App, value: object, form: str, settled: str
    ) -> None:
        app.run(PLAIN if isinstance(value, str) else PLAIN.replace("TEXT DEFAULT CURRENT_TIMESTAMP", "INTEGER"))
        app.run("INSERT INTO jobs (type, created_at, updated_at) VALUES ('tag', ?, ?)", [value, value])
        app.adopt()

        with desk(app) as opened:
            opened.put()
            claims = opened.claim(want=2, now=2e9)
            opened.settle(*(done(claim, None) for claim in claims), now=2e9)

        like = app.run("SELECT created_at LIKE ?, updated_at LIKE ? FROM jobs WHERE id = 2", [form, form])
        assert like == [(1, 1)]
        assert app.run("SELECT created_at FROM jobs WHERE id = 1") == [(value,)]
        assert app.run("SELECT updated_at LIKE ? FROM jobs", [settled]) == [(1,), (1,)]

    def test_the_applications_own_cleaning_deletes_only_what_is_old(self, app: App) -> None:
        app.run(PLAIN)
        fill(app, 4)
        app.adopt()
        with desk(app) as opened:
            job_id = opened.put()
            claim = next(c for c in opened.claim(want=9, now=time.time()) if c.job_id == job_id)
            opened.settle(done(claim, None), now=time.time())

        app.run("DELETE FROM jobs WHERE status = 'done' AND updated_at < datetime('now', '-7 days')")

        assert app.run("SELECT id FROM jobs WHERE status = 'done'") == [(job_id,)]


class TestGuarantees:
    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("type", "tag!"),
            ("type", b"tag"),
            ("status", "finished"),
            ("status", None),
            ("priority", 101),
            ("priority", 1.5),
            ("priority", "high"),
            ("requires", b"gpu"),
            ("scheduled_at", "2024-05-01 10:00:00"),
            ("scheduled_at", 1714644000123),
            ("scheduled_at", None),
            ("max_attempts", 0),
            ("attempts", "three"),
            ("claim_token", "x"),
            ("lock_expires_at", "tomorrow"),
            ("completed_at", "2024-05-01 10:00:00"),
            ("unique_key", b"k"),
        ],
    )
    def test_an_adopted_table_refuses_what_ours_refuses(
        self, app: App, column: str, value: object, tmp_path: Path
    ) -> None:
        app.run(PLAIN.replace("status TEXT NOT NULL DEFAULT 'pending'", "status TEXT NOT NULL"))
        app.adopt()
        open_engine(f"sqlite:///{tmp_path}/ours.db").database.migrate()
        with contextlib.closing(sqlite3.connect(tmp_path / "ours.db")) as ours:
            for database in (app.db, ours):
                database.execute("INSERT INTO jobs (type, payload, status) VALUES ('tag', '{}', 'pending')")
                with pytest.raises(sqlite3.IntegrityError):
                    database.execute(f"UPDATE jobs SET {column} = ?", [value])

    def test_the_applications_poller_and_our_workers_never_run_a_job_twice(self, app: App) -> None:
        app.run(PLAIN)
        fill(app)
        app.adopt()
        todo = {row[0] for row in app.run("SELECT id FROM jobs WHERE status = 'pending'")}
        theirs: list[int] = []
        ours: list[int] = []

        def poll() -> None:
            with contextlib.closing(sqlite3.connect(app.path, timeout=20, isolation_level=None)) as db:
                while rows := db.execute(CLAIM).fetchall():
                    theirs.append(rows[0][0])
                    until(lambda: len(theirs) <= len(ours) + 5 or ended.is_set())  # both get some
                    db.execute(DONE, [rows[0][0]])

        ended = threading.Event()
        poller = threading.Thread(target=poll)
        with desk(app) as opened:
            wanted = JobSelector(("tag", "caption", "nsfw"))
            poller.start()
            until(lambda: theirs)
            settlements: list[Any] = []
            while True:
                settle_and_claim = opened.claims.settle_and_claim("w1", settlements, wanted, 3, 60, 4e9)
                assert settle_and_claim.lost == []
                if not settle_and_claim.claims:
                    break
                ours += [claim.job_id for claim in settle_and_claim.claims]
                settlements = [done(claim, None) for claim in settle_and_claim.claims]
            ended.set()
            poller.join(30)

        assert theirs
        assert ours
        assert sorted(theirs + ours) == sorted(todo)
        assert app.run(
            "SELECT DISTINCT status FROM jobs WHERE id IN (SELECT id FROM jobs WHERE status <> 'failed')"
        ) == [("done",)]


class TestOldStatements:
    def test_an_explicit_null_that_the_old_table_took_becomes_the_default(self, app: App) -> None:
        app.run(PLAIN)
        app.adopt()

        app.run("INSERT INTO jobs (type, payload) VALUES ('tag', NULL)")

        assert app.run("SELECT payload FROM jobs") == [("{}",)]

    def test_constraints_that_cannot_stay_are_named(self, app: App) -> None:
        app.run(
            PLAIN.replace("last_error TEXT", "last_error TEXT NOT NULL DEFAULT ''").replace(
                "DEFAULT 'pending'", "DEFAULT 'pending' CHECK (status <> 'cancelled')"
            )
        )
        notes = "\n".join(app.adopt().notes)

        assert "`last_error` gave up its NOT NULL" in notes
        assert "`status` gave up its CHECK" in notes

    def test_a_column_that_only_the_application_can_fill_is_named(self, app: App) -> None:
        app.run(PLAIN.replace("last_error TEXT,", "last_error TEXT, owner INTEGER NOT NULL,"))
        app.run("INSERT INTO jobs (type, owner) VALUES ('tag', 7)")

        report = app.adopt()

        assert "`owner` must have a value, so that `supervisor enqueue` is refused" in report.notes


class TestRefused:
    @pytest.mark.parametrize(
        ("sql", "reason"),
        [
            (PLAIN.replace("PRIMARY KEY", ""), "it needs a primary key of one column"),
            (
                PLAIN.replace("PRIMARY KEY", "").replace("\n)", ", PRIMARY KEY (id, type))"),
                "a primary key of one column",
            ),
            (PLAIN + " WITHOUT ROWID", "WITHOUT ROWID"),
            (PLAIN.replace("payload", "data").replace("last_error", "body"), "say so with --rename data=payload"),
            (PLAIN.replace("payload", "content"), "say so with --rename OTHER=payload"),
            (PLAIN.replace("status", "phase"), "it has no column `status`"),
            (
                PLAIN.replace("id INTEGER", "id TEXT") + "; CREATE TABLE r (job TEXT REFERENCES jobs (id))",
                "r.job refers to its ids",
            ),
            ("CREATE VIEW jobs AS SELECT 1 AS id", "no ordinary table"),
            ("CREATE TABLE other (id)", "there is no table `jobs`"),
            (PLAIN + "; CREATE INDEX jobs_unfinished ON jobs (type)", "the name `jobs_unfinished` is needed"),
            (PLAIN + "; CREATE TABLE job_errors (x)", "the name `job_errors` is needed"),
            (PLAIN + "; INSERT INTO jobs (type) VALUES ('tag!'), ('tag!'), ('a b')", "'tag!' (2 rows), 'a b' (1 row)"),
            (PLAIN + "; INSERT INTO jobs (type, status) VALUES ('t', 'odd')", "--status odd=pending"),
            (
                PLAIN.replace("attempts", "priority") + "; INSERT INTO jobs (type, priority) VALUES ('t', 500)",
                "`priority` holds what job-supervisor cannot take: 500 (1 row)",
            ),
            (
                PLAIN.replace("created_at TEXT", "scheduled_at TEXT")
                + "; INSERT INTO jobs (type, scheduled_at) VALUES ('t', 'soon')",
                "'soon' (1 row)",
            ),
        ],
    )
    def test_other_shapes_are_refused_with_the_reason_and_nothing_is_touched(
        self, app: App, sql: str, reason: str
    ) -> None:
        app.db.executescript(sql)

        assert reason in app.refusal()

    def test_a_table_whose_triggers_our_workers_could_not_run_is_refused(self, app: App) -> None:
        app.run(PLAIN)
        fill(app, 10)
        app.run("CREATE TRIGGER t AFTER UPDATE ON jobs BEGIN SELECT app_function(NEW.id); END")
        before = list(app.db.iterdump())

        with pytest.raises(StoreError, match="no such function"):
            app.adopt()

        assert list(app.db.iterdump()) == before
        assert not list(app.path.parent.glob("*.before-adopt*"))

    def test_what_we_refuse_to_migrate_says_that_it_can_be_adopted(self, app: App) -> None:
        app.run(PLAIN)

        with pytest.raises(StoreError, match="supervisor adopt"):
            open_engine(f"sqlite:///{app.path}").database.migrate()
