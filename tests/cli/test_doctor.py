"""What the doctor finds, in states made by hand, and what it says to do."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import supervisor
from supervisor import Queue
from supervisor.config import Settings, load
from supervisor.ops.doctor import database as place
from supervisor.ops.doctor import examine, machine, services
from supervisor.ops.views import Finding
from tests.docs.markdown import ROOT
from tests.site_under_test import Site, wait_for

from .conftest import CONFIGURATION, Run

WORK = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'


def settings_of(folder: Path, more: str = "", text: str = CONFIGURATION) -> Settings:
    (folder / "supervisor.toml").write_text(f"{text}\n{more}")
    return load(folder / "supervisor.toml")


def told(cli: Run, about: str, *words: str) -> dict[str, str]:
    """The one finding about this that has all the words; it says what to do."""
    found = cli("doctor", "--json").document["findings"]
    assert all(list(one) == ["level", "about", "fact", "advice"] for one in found)
    fitting = [one for one in found if one["about"] == about and all(word in one["fact"] for word in words)]
    assert len(fitting) == 1, found
    assert fitting[0]["level"] == "ok" or fitting[0]["advice"]
    return dict(fitting[0])


def change(database: Path, sql: str, *parameters: Any) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(sql, parameters)


# Rows


def test_jobs_of_supervisors_that_are_gone_are_found(cli: Run, database: Path) -> None:
    cli("enqueue", "greet")
    columns = "id, pid, host, machine_id, boot_id, owner_lock, scoreboard, config, version, started_at"
    values = "'gone', 4711, 'here', 'm', 'b', '/x/owner-gone.lock', '/x', 'c', '1', 1"
    claim = "status = 'running', locked_by = 'w', locked_at = 1, lock_expires_at = 9e9, claim_token = 1"
    change(database, f"INSERT INTO job_supervisors ({columns}) VALUES ({values})")
    change(database, "INSERT INTO job_workers VALUES ('w', 'gone', 'greet', 'greet-1', 4712, 1, '{}', 1, NULL)")
    change(database, f"UPDATE jobs SET {claim}")

    assert told(cli, "leftovers", "supervisor 4711 has ended unexpectedly")["level"] == "note"
    assert told(cli, "leftovers", "1 job is still running in workers that have ended")["level"] == "note"


def test_a_batch_that_its_program_has_left_open_is_found_once_all_its_jobs_have_ended(cli: Run, database: Path) -> None:
    with contextlib.closing(supervisor.Queue(f"sqlite:///{database}")) as queue:
        left = queue.batches.open("report")
        queue.enqueue("greet", batch=left)
        change(database, "UPDATE job_batches SET created_at = created_at - 7200")
        queue.batches.open("report")  # its program may still add jobs
        assert "has been open for" not in cli("doctor").out
        change(database, "UPDATE jobs SET status = 'cancelled', completed_at = 1")
        assert f"batch {left} has been open for 2h, " in told(cli, "batches", "all its jobs have ended")["fact"]


def test_claims_that_ran_out_long_ago_are_a_warning(cli: Run, database: Path) -> None:
    cli("enqueue", "greet")
    change(database, "UPDATE jobs SET status = 'running', locked_by = 'foreign', lock_expires_at = 5, claim_token = 1")
    assert told(cli, "leftovers", "has a claim that expired")["level"] == "warning"


def test_what_waits_for_nobody_is_found(cli: Run, database: Path) -> None:
    cli("enqueue", "other")
    cli("enqueue", "greet")
    cli("pause", "greet")
    change(database, "UPDATE jobs SET status = 'quarantined', completed_at = 1 WHERE type = 'greet'")

    assert told(cli, "jobs", "no pool takes the type other: 1 job waits")["level"] == "warning"
    assert "→ add a pool" in cli("doctor").out
    assert told(cli, "jobs", "1 job is quarantined")["level"] == "warning"
    told(cli, "jobs", "the type greet is paused")


def test_a_living_supervisor_of_another_version_is_told(make_site: Callable[..., Site], cli: Run) -> None:
    site = make_site(WORK)
    process = site.start()
    site.rows("UPDATE job_supervisors SET version = '0.0.1'")

    found = cli("doctor", "--json", "-c", str(site.config)).document["findings"]

    assert f"supervisor {process.pid} has version 0.0.1, this is {supervisor.__version__}" in [
        one["fact"] for one in found
    ]
    bad = {one["about"] for one in found if one["level"] in ("warning", "fault")}
    assert bad <= {"jobs", "file system"}  # these tests may run in memory
    assert [one["fact"] for one in found if one["about"] == "leftovers"] == ["none"]


def test_files_of_supervisors_that_are_gone_are_named(make_site: Callable[..., Site], cli: Run) -> None:
    site = make_site(WORK)
    site.start()
    left = [Path(f"{site.database}-supervisor", name) for name in ("owner-gone.lock", "scoreboard-gone.run-logs")]
    for path in left:
        path.touch()
    found = cli("doctor", "--json", "-c", str(site.config)).document["findings"]
    [fact] = [one["fact"] for one in found if one["about"] == "leftovers"]
    assert fact.endswith(": owner-gone.lock, scoreboard-gone.run-logs")
    for path in left:
        path.unlink()


# Files


def test_copies_and_broken_copies_are_counted(cli: Run, database: Path) -> None:
    (database.parent / "jobs.db.before-4-20260101-000000").write_bytes(b"x" * 2048)
    (database.parent / ".jobs.db.restore-0123abcd").touch()
    (database.parent / ".copy.db.partial-0123abcd").touch()  # of another name: not ours to judge

    assert "1 kept beside the database, 2KiB" in told(cli, "copies", "kept")["fact"]
    assert told(cli, "copies", "incomplete copies")["fact"].endswith(": .jobs.db.restore-0123abcd")


@pytest.mark.parametrize(("megabytes", "blocked"), [(70, 0), (20, 40), (20, 10)])
def test_a_long_log_is_a_warning_and_soon_one_if_a_reader_keeps_it(
    cli: Run, database: Path, megabytes: int, blocked: int
) -> None:
    grown = f"{database.name}-wal has grown to "

    def facts() -> list[str]:
        return [one["fact"] for one in cli("doctor", "--json").document["findings"] if one["fact"].startswith(grown)]

    with contextlib.closing(sqlite3.connect(database)) as reader:  # so that the log stays
        reader.execute("SELECT count(*) FROM jobs").fetchall()
        reader.execute("PRAGMA wal_autocheckpoint = 0")
        reader.execute("CREATE TABLE large (x)")
        reader.execute(f"INSERT INTO large VALUES (zeroblob({megabytes}000000))")
        reader.commit()
        last = Path(f"{database}-wal").stat().st_mtime - blocked
        os.utime(database, (last, last))
        assert [("because" in fact) for fact in facts()] == [False] * (megabytes > 64)

        program = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN')"
        program += "; c.execute('SELECT * FROM jobs').fetchall(); print('reads', flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", program, database]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout
            assert other.stdout.readline() == "reads\n"
            found = facts()
            assert len(found) == (megabytes > 64 or blocked > 30)
            for fact in found:
                assert f" because process {other.pid} ({sys.executable} -c" in fact
                assert fact.endswith(") keeps a read transaction open")
            assert other.stdin
            other.stdin.close()


@pytest.mark.parametrize(
    ("made", "advice"),
    [(0, "sqlite3 {} 'PRAGMA auto_vacuum = INCREMENTAL; VACUUM'"), (2, "a running supervisor gives most of")],
)
def test_a_file_that_is_mostly_free_is_told(cli: Run, tmp_path: Path, made: int, advice: str) -> None:
    path = tmp_path / "large.db"

    def free() -> list[str]:
        found = cli("doctor", "--database", f"sqlite:///{path}", "--json").document["findings"]
        return [one["advice"] for one in found if "are free" in one["fact"]]

    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA auto_vacuum = {made}")
        raw.execute("CREATE TABLE mine (x)")
    Queue(f"sqlite:///{path}").create_tables()
    assert free() == []
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute("INSERT INTO mine VALUES (zeroblob(80000000))")
        raw.execute("DELETE FROM mine")
        raw.commit()
    [told] = free()
    assert advice.format(path) in told


def test_a_log_that_is_more_open_than_the_database_is_a_fault(cli: Run, database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as reader:
        reader.execute("SELECT count(*) FROM jobs").fetchall()
        Path(f"{database}-wal").chmod(0o666)
        assert told(cli, "permissions", "its permissions are wider than")["level"] == "fault"


def test_a_configuration_that_others_may_write_or_whose_secrets_they_may_read_is_told(
    cli: Run, project: Path, database: Path
) -> None:
    file = project / "supervisor.toml"
    file.chmod(0o646)
    assert told(cli, "permissions", "supervisor.toml: any user can write to it")["level"] == "fault"

    file.chmod(0o644)
    file.write_text(CONFIGURATION + 'env = { API_TOKEN = "x", COLOUR = "red" }\n')
    assert told(cli, "permissions", "including API_TOKEN")["level"] == "warning"
    file.chmod(0o600)
    assert not [f for f in cli("doctor", "--json").document["findings"] if "API_TOKEN" in f["fact"]]


def test_a_disk_without_room_for_a_copy_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "jobs.db"
    with database.open("wb") as file:
        file.truncate(10 << 30)
    usage = type("Usage", (), {"free": 1 << 30})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert place._room(tmp_path, database).level == "warning"
    usage.free = 1 << 20
    assert "no job can be enqueued" in place._room(tmp_path, database).advice
    usage.free = 20 << 30
    assert place._room(tmp_path, database).level == "ok"


# The machine

LIMITED = CONFIGURATION + 'max_memory = "1GiB"\n'


@pytest.mark.parametrize(
    ("more", "text", "available", "level", "word"),
    [
        ("", LIMITED, 1 << 40, "ok", "the pools use 1GiB at most"),
        ("", LIMITED, 1 << 29, "warning", "the pools may use 1GiB"),
        ("", CONFIGURATION, 1 << 40, "note", "no limit is set for greet"),
        (
            '[machine]\nmemory = "600MiB"\n',
            LIMITED,
            1 << 30,
            "ok",
            "1GiB for this machine or container; the pools share",
        ),
        ('[machine]\nmemory = "600MiB"\n', LIMITED, 1 << 29, "warning", "but [machine] has memory = 600MiB"),
    ],
)
def test_the_memory_that_pools_may_need_is_compared_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, text: str, available: int, level: str, word: str
) -> None:
    monkeypatch.setattr(machine, "available", lambda: available)
    [found] = machine.memory(settings_of(tmp_path, more, text))
    assert found.level == level
    assert word in found.fact


def levels(found: list[Finding]) -> list[str]:
    assert all(one.advice for one in found if one.level != "ok"), found
    return [one.level for one in found]


def test_gpus_are_looked_for_among_the_devices(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, 'gpus = ["0", "1"]')
    assert machine.gpus(settings_of(tmp_path)) == []
    assert levels(machine.gpus(settings, tmp_path)) == ["fault", "fault"]

    for name in ("nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    [found] = machine.gpus(settings, tmp_path)
    assert (found.level, found.fact) == ("ok", "0, 1 can be used")
    named = settings_of(tmp_path, 'gpus = ["GPU-1a2b"]')  # only its handler can tell whether it exists
    assert levels(machine.gpus(named, tmp_path)) == ["ok"]


def test_devices_of_pools_that_run_elsewhere_are_not_looked_for(tmp_path: Path) -> None:
    config = CONFIGURATION + '\n[pools.far]\nhandler = "handlers.examples:echo"\ngpus = ["77"]\nhosts = ["nowhere-*"]\n'
    (tmp_path / "supervisor.toml").write_text(config)
    found = examine(tmp_path / "supervisor.toml", None)
    assert not [one for one in found if one.about == "gpus"]
    assert [one.fact for one in found if one.about == "limits" and "for 1 worker" in one.fact]


def test_limits_that_are_too_low_for_the_workers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(tmp_path, text=CONFIGURATION.replace("workers = 1", "workers = 100"))
    allowed = {resource.RLIMIT_NOFILE: (1024, 1 << 20), resource.RLIMIT_NPROC: (resource.RLIM_INFINITY,) * 2}
    monkeypatch.setattr(resource, "getrlimit", allowed.__getitem__)
    assert [one.level for one in machine.limits(settings)] == ["ok"]

    allowed |= {resource.RLIMIT_NOFILE: (256, 512), resource.RLIMIT_NPROC: (300, 300)}
    files, processes = machine.limits(settings)
    assert "LimitNOFILE" in files.advice
    assert "hard limit" in files.advice
    assert "LimitNPROC" in processes.advice


# systemd

UNIT = (ROOT / "deploy" / "job-supervisor.service").read_text(encoding="utf-8")


def unit_of(tmp_path: Path, text: str = UNIT, drop_in: str = "", more: str = "") -> list[Finding]:
    """What is found with a unit for a configuration in `tmp_path`."""
    folder = tmp_path / "units"
    folder.mkdir(exist_ok=True)
    (folder / "jobs.service").write_text(
        text.replace("/srv/app/data", str(tmp_path)).replace("/srv/app", str(tmp_path))
    )
    (folder / "other.service").write_text("[Service]\nExecStart=/bin/supervisord run\n")
    if drop_in:
        (folder / "jobs.service.d").mkdir(exist_ok=True)
        (folder / "jobs.service.d" / "my.conf").write_text(f"[Service]\n{drop_in}\n")
    return [*services.systemd(settings_of(tmp_path, more), (tmp_path / "none", folder))]


def test_our_own_unit_suits_a_configuration_and_those_of_others_are_none_of_our_business(tmp_path: Path) -> None:
    assert levels(unit_of(tmp_path)) == ["ok"]
    assert unit_of(tmp_path, UNIT.replace("supervisor.toml", "other.toml")) == []
    assert unit_of(tmp_path, UNIT.replace("supervisor run", "supervisor status")) == []
    for stop in ("2min 30s", "infinity"):
        assert levels(unit_of(tmp_path, drop_in=f"TimeoutStopSec={stop}", more='shutdown_grace = "2m"')) == ["ok"]


@pytest.mark.parametrize(
    ("line", "level", "word", "more"),
    [
        ("KillMode=control-group", "warning", "KillMode", ""),
        ("TimeoutStopSec=20", "fault", "shutdown_grace", ""),
        ("TimeoutStopSec=500ms", "fault", "500ms", ""),
        ("", "fault", "TimeoutStopSec", 'shutdown_grace = "2m"'),
        ("OOMPolicy=stop", "warning", "OOMPolicy", ""),
        ("RuntimeDirectoryPreserve=no", "warning", "RuntimeDirectoryPreserve", ""),
        ("Restart=no", "warning", "Restart", ""),
        ("Type=simple", "note", "Type", ""),
        ("ProcSubset=pid", "fault", "ProcSubset", ""),
    ],
)
def test_each_fault_of_a_unit_is_told_with_its_drop_ins(
    tmp_path: Path, line: str, level: str, word: str, more: str
) -> None:
    [found] = unit_of(tmp_path, drop_in=line, more=more)
    assert (found.level, found.about) == (level, "systemd")
    assert word in found.fact
    assert found.fact.startswith("jobs.service: ")
    assert not more or "TimeoutStopSec=135" in found.advice


# [admin]


def with_admin(folder: Path, *lines: str) -> None:
    more = "\n".join(("[admin]", f'listen = "unix:{folder}/admin.sock"', *lines))
    (folder / "supervisor.toml").write_text(f"{CONFIGURATION}\n{more}\n")


def test_admin_that_nobody_serves_or_everybody_may_use_is_told(cli: Run, database: Path) -> None:
    with_admin(database.parent)
    assert told(cli, "admin", "no supervisor of this database listens on unix:")["level"] == "note"
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(database.parent / "admin.sock"))
        (database.parent / "admin.sock").chmod(0o666)
        assert told(cli, "admin", "every user of this machine can use the socket")["level"] == "fault"
    token = database.parent / "token"
    with_admin(database.parent, 'token_file = "token"')
    token.write_text("a" * 30)
    token.chmod(0o604)
    assert told(cli, "configuration", "admin.token_file: ", "is open to every user")["level"] == "fault"


def test_admin_that_a_supervisor_serves_is_good(make_site: Callable[..., Site], cli: Run) -> None:
    site = make_site(f'{WORK}[admin]\nlisten = "127.0.0.1:0"\n')
    process = site.start()
    url = wait_for(lambda: (site.event("admin_listening") or {}).get("url"), "the admin process")

    def told_of_it() -> list[tuple[str, str]]:
        found = cli("doctor", "--json", "-c", str(site.config)).document["findings"]
        return [(one["level"], one["fact"]) for one in found if one["about"] == "admin"]

    wait_for(lambda: told_of_it() == [("ok", f"supervisor {process.pid} listens on {url}")], "its finding")


def test_the_doctor_finds_what_check_finds(cli: Run, database: Path) -> None:
    with (database.parent / "supervisor.toml").open("a") as file:
        file.write("[pools.bad]\nhandler = 'jobs:nothing'\n[[schedules]]\nname='n'\ntype='gret'\nevery='1h'\n")
    assert told(cli, "configuration", "pools.bad.handler: jobs:nothing")["level"] == "fault"
    assert told(cli, "schedules", "no pool takes the type gret of the schedule n")["level"] == "warning"


def test_an_invalid_configuration_is_one_finding_among_others(cli: Run, project: Path, database: Path) -> None:
    cli("enqueue", "greet")
    change(database, "UPDATE jobs SET status = 'quarantined', completed_at = 1")
    (project / "supervisor.toml").write_text(CONFIGURATION + "timeout = 3\ntimeouts = 4\n")

    told(cli, "configuration", "pools.greet.timeout: 3 is not a duration")
    told(cli, "configuration", "pools.greet.timeouts: unknown key")
    told(cli, "database", "the schema is current")
    told(cli, "jobs", "1 job is quarantined")
    assert cli("doctor").code == 1


def test_jobs_whose_capabilities_no_pool_has_are_found_before_a_supervisor_runs(cli: Run, database: Path) -> None:
    cli("enqueue", "greet", "--requires", "gpu")
    found = told(cli, "jobs", "no pool that takes greet has the capabilities that some of its jobs require: gpu")
    assert found["level"] == "warning"


def test_status_says_what_the_doctor_says_of_the_jobs(cli: Run, database: Path) -> None:
    cli("enqueue", "greet")
    cli("pause", "greet")
    paused = told(cli, "jobs", "the type greet is paused: 1 job waits")
    shown = cli("status").out
    assert f"note: {paused['fact']}\n→ {paused['advice']}\n" in shown
    assert "fault: no supervisor is running\n→ `supervisor run` starts one; 1 job waits until then\n" in shown
