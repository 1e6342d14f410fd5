"""`supervisor restore`: the copy or the database before, and never something between."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from supervisor import Queue, Status
from supervisor.system.failpoints import VARIABLE
from tests import forkserver
from tests.site_under_test import Site, wait_for

from .conftest import Run, execute


@pytest.fixture
def copy(cli: Run, database: Path) -> Path:
    """A copy with one job; the database has two more, still in its log."""
    cli("enqueue", "greet")
    assert cli("backup", "copy.db").code == 0
    for _ in range(2):
        cli("enqueue", "greet")
    return database.with_name("copy.db")


def jobs(database: Path) -> int:
    return int(execute(database, "SELECT count(*) FROM jobs")[0][0])


def whole(database: Path) -> bool:
    return execute(database, "PRAGMA integrity_check") == [("ok",)]


def test_the_copy_takes_the_place_and_the_database_before_is_kept(cli: Run, database: Path, copy: Path) -> None:
    database.chmod(0o640)
    ran = cli("restore", "--yes", "copy.db", "--json")

    assert ran.code == 0, ran
    assert (jobs(database), ran.document["jobs"], database.stat().st_mode & 0o777) == (1, 1, 0o640)
    kept = Path(ran.document["kept"])
    assert kept.name.startswith("jobs.db.before-restore-")
    assert jobs(kept) == 3
    assert jobs(copy) == 1
    assert cli("enqueue", "greet").code == 0
    assert jobs(database) == 2


def test_the_log_of_the_database_before_never_meets_the_copy(cli: Run, database: Path, copy: Path) -> None:
    """A log left behind by a killed program would be taken for the copy's own."""
    program = (
        "import os, sqlite3\n"
        f"c = sqlite3.connect({str(database)!r}, isolation_level=None)\n"
        "c.execute('PRAGMA wal_autocheckpoint = 0')\n"
        "c.execute(\"INSERT INTO jobs (type) VALUES ('left.in.log')\")\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert Path(f"{database}-wal").stat().st_size > 0

    kept = Path(cli("restore", "--yes", "copy.db", "--json").document["kept"])

    assert (jobs(database), jobs(kept)) == (1, 4)
    assert whole(database)
    assert whole(kept)


def test_it_is_refused_while_a_supervisor_lives(make_site: Callable[..., Site], cli: Run) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 1\n')
    target = site.folder / "copy.db"
    assert cli("backup", str(target), "-c", str(site.config)).code == 0
    process = site.start()

    ran = cli("restore", "--yes", str(target), "-c", str(site.config))

    assert ran.code == 4
    assert f"supervisor {process.pid} is running" in ran.errors()[0]
    site.stop(process)
    assert cli("restore", "--yes", str(target), "-c", str(site.config)).code == 0


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM jobs").fetchall()
print(flush=True)
sys.stdin.read()
"""


def test_it_is_refused_while_anybody_uses_the_file(cli: Run, database: Path, copy: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, database], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        ran = cli("restore", "--yes", "copy.db")
        assert (ran.code, jobs(database)) == (4, 3)
        assert "is open elsewhere" in ran.errors()[0]
        other.communicate()
    assert cli("restore", "--yes", "copy.db").code == 0


def damaged(copy: Path) -> None:
    changed(copy, "CREATE TABLE more (x)", f"INSERT INTO more VALUES {','.join(['(hex(zeroblob(250)))'] * 200)}")
    with copy.open("r+b") as file:
        file.seek(copy.stat().st_size - 3 * 4096)
        file.write(b"\xff" * 4096)


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def of_another_program(copy: Path) -> None:
    copy.unlink()
    changed(copy, "CREATE TABLE pictures (id INTEGER PRIMARY KEY)")


UNFIT: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "damaged": (damaged, "copy.db", 3),
    "no database": (lambda copy: copy.write_text("this is no database, and was never one" * 200), "copy.db", 3),
    "of another program": (of_another_program, "copy.db", 3),
    "too new": (lambda copy: changed(copy, "UPDATE job_meta SET value = '99'"), "copy.db", 3),
    "missing": (Path.unlink, "copy.db", 2),
    "itself": (lambda copy: None, "jobs.db", 2),
}


@pytest.mark.parametrize(("spoil", "given", "code"), UNFIT.values(), ids=UNFIT)
def test_a_copy_that_would_not_do_is_refused_and_nothing_changed(
    cli: Run, database: Path, copy: Path, spoil: Callable[[Path], object], given: str, code: int
) -> None:
    spoil(copy)
    ran = cli("restore", "--yes", given)
    assert (ran.code, len(ran.errors())) == (code, 1), ran
    assert (jobs(database), whole(database)) == (3, True)
    assert not [path.name for path in database.parent.iterdir() if "restore" in path.name]


def test_a_database_is_not_replaced_without_being_asked(cli: Run, database: Path, copy: Path) -> None:
    refused = cli("restore", "copy.db")

    assert (refused.code, jobs(database)) == (2, 3)
    assert refused.errors() == [f"this would replace sqlite:///{database} with copy.db"]
    assert "--yes" in refused.err
    database.unlink()
    for end in ("-wal", "-shm"):
        Path(f"{database}{end}").unlink(missing_ok=True)
    said = cli("restore", "copy.db")
    assert (said.code, said.out.splitlines()[0].endswith("jobs.db: 1 job of copy.db")) == (0, True)


def test_a_lost_or_damaged_database_can_be_replaced(cli: Run, database: Path, copy: Path) -> None:
    database.write_bytes(b"\xff" * 8192)
    kept = Path(cli("restore", "--yes", "copy.db", "--json").document["kept"])
    assert (jobs(database), kept.read_bytes()) == (1, b"\xff" * 8192)

    database.unlink()
    Path(f"{database}-wal").write_bytes(b"what a lost database left")
    ran = cli("restore", "--yes", "copy.db", "--json")
    assert (ran.code, jobs(database), whole(database)) == (0, 1, True)
    assert database.stat().st_mode & 0o777 == 0o600
    assert Path(f"{ran.document['kept']}-wal").read_bytes() == b"what a lost database left"


@pytest.mark.parametrize(("place", "left"), [("copied", 3), ("gathered", 3), ("kept", 3), ("replaced", 1)])
def test_killed_in_the_middle_it_leaves_the_old_or_the_new_whole(
    cli: Run, database: Path, copy: Path, place: str, left: int
) -> None:
    failpoint = os.environ | {VARIABLE: f"restore.{place}=kill"}
    ran = forkserver.run(["restore", "--yes", "copy.db"], env=failpoint, cwd=database.parent)

    assert ran.returncode == -9
    assert (jobs(database), whole(database)) == (left, True)
    assert cli("enqueue", "greet").code == 0
    assert cli("restore", "--yes", "copy.db").code == 0
    assert (jobs(database), whole(database)) == (1, True)


def test_what_ran_when_the_copy_was_made_runs_again(make_site: Callable[..., Site], cli: Run) -> None:
    site = make_site('[pools.once]\nhandler = "jobs:once"\nworkers = 1\n')
    process = site.start()
    job = site.queue.enqueue("once")
    site.running_pid(job)
    site.queue.close()
    target = site.folder / "copy.db"
    assert cli("backup", str(target), "-c", str(site.config)).code == 0
    process.kill()
    process.wait()
    wait_for(lambda: not site.survivors(process))

    assert cli("restore", "--yes", str(target), "-c", str(site.config)).code == 0
    site.start()

    with Queue(site.url) as queue:
        done = queue.wait(job, timeout=20)
    assert (done.status, done.crashes) == (Status.DONE, 1)
    shutil.rmtree(site.once)
