"""What the page about several machines and the files that it names promise."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from supervisor import Queue, Status
from supervisor.config import load
from supervisor.domain.errors import StoreError
from tests.docs.markdown import ROOT, blocks
from tests.docs.test_snippets import environment
from tests.postgres_server import Server

PAGE = ROOT / "docs/deploying/several-machines.md"
COMPOSE, POD, SCALING = (
    ROOT / "deploy" / name
    for name in ("compose.postgres.yaml", "kubernetes/job-supervisor.yaml", "kubernetes/scaling.yaml")
)
JOBS = "from supervisor import task\n\n\n@task\ndef greet(name: str) -> str:\n    return f'Hello, {name}!'\n"
CONFIGURATION = '[pools.default]\ntasks = ["jobs"]\nworkers = 1\n'


def test_the_roles_of_the_page_can_do_their_work_and_no_more(
    own_postgres: Callable[..., Server], tmp_path: Path
) -> None:
    psycopg = pytest.importorskip("psycopg")
    url = own_postgres().fresh_database()
    sql = [block.text for block in blocks("sql", document=PAGE) if block.mark == "run: postgres"]
    create, grant, paths, restored = sql
    passwords = dict(re.findall(r"CREATE ROLE (\w+) LOGIN PASSWORD '([^']+)'", create))
    roles = {role: _as(url, role, password) for role, password in passwords.items()}
    assert len(roles) == 4
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(create)
    (tmp_path / "supervisor.toml").write_text(CONFIGURATION)
    (tmp_path / "jobs.py").write_text(JOBS)

    assert _supervisor(tmp_path, "migrate", "--database", roles["jobs_owner"]).returncode == 0
    with psycopg.connect(roles["jobs_owner"], autocommit=True) as connection:
        connection.execute(grant)
        connection.execute(restored)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(paths)

    with Queue(roles["jobs_enqueuer"], create=False) as queue:
        job = queue.enqueue("greet", {"name": "Ada"})
        assert job > 100_000_000  # as after a restore
        with pytest.raises(StoreError, match="lacks a right"):
            queue.cancel(job)
        ran = _supervisor(tmp_path, "run", "--burst", "--database", roles["jobs_worker"])
        assert ran.returncode == 0, ran.stderr
        assert (queue.job(job).status, queue.job(job).result) == (Status.DONE, "Hello, Ada!")
    assert "1 done" in _supervisor(tmp_path, "status", "--database", roles["jobs_reader"]).stdout
    _only_enqueues(roles["jobs_enqueuer"])
    _operates(tmp_path, roles["jobs_worker"])
    _only_looks(tmp_path, roles["jobs_reader"])
    assert _supervisor(tmp_path, "pause", "greet", "--database", roles["jobs_worker"]).returncode == 0
    assert "not visible" not in _supervisor(tmp_path, "doctor", "--database", roles["jobs_worker"]).stdout

    with Queue(roles["jobs_enqueuer"].partition("?")[0], create=False) as queue:  # as through a pooler
        assert queue.enqueue("greet", {"name": "Bob"}) > job


def _refused(own: Any, *statements: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    for statement in statements:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            own.execute(statement)


def _only_enqueues(url: str) -> None:
    """In each way, also those that reserve ids, and in the caller's transaction."""
    psycopg = pytest.importorskip("psycopg")
    with Queue(url, create=False) as queue:
        many = queue.enqueue_many("greet", [{"name": str(number)} for number in range(1200)])
        assert len(set(many)) == 1200
        assert queue.enqueue("greet", {"name": "x"}, unique_key="k") == queue.enqueue("greet", {}, unique_key="k")
        with psycopg.connect(url) as own:
            inside = queue.enqueue("greet", {"name": "y"}, connection=own)
        assert queue.job(inside).status is Status.PENDING
        with pytest.raises(TimeoutError):
            queue.wait(inside, timeout=0.2)
        for refused in (lambda: queue.cancel(inside), lambda: queue.pause("greet")):
            with pytest.raises(StoreError, match="lacks a right"):
                refused()
    with psycopg.connect(url, autocommit=True) as own:
        changes = ("UPDATE jobs SET priority = 1", "DELETE FROM jobs", "UPDATE job_meta SET value = 'x'")
        reads = (f"SELECT * FROM {table}" for table in ("job_errors", "job_workers"))
        sequences = ("job_token_floor", "job_timeline", "job_sleepers", "jobs_id_seq")
        _refused(own, *changes, *reads, *(f"SELECT setval('{name}', 1)" for name in sequences))


def _operates(folder: Path, url: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with Queue(url, create=False) as queue:
        first, second = (str(queue.enqueue("greet", {"name": "z"}, delay="1h")) for _ in range(2))
    for line in (
        *(f"jobs cancel {first}", f"jobs retry {first}", f"jobs cancel {first} {second} --yes", f"jobs delete {first}"),
        *("pause greet", "resume greet", "scale default 1", "drain elsewhere --force", "undrain elsewhere"),
    ):
        ended = _supervisor(folder, *line.split(), "--database", url)
        assert ended.returncode == 0, (line, ended.stderr)
    with psycopg.connect(url, autocommit=True) as own:
        _refused(own, "DROP TABLE jobs", "CREATE TABLE jobs.other (x int)", "ALTER TABLE jobs DISABLE TRIGGER ALL")


def _only_looks(folder: Path, url: str) -> None:
    for line in ("status", "jobs list", "schedules list", "doctor", "logs"):
        ended = _supervisor(folder, *line.split(), "--database", url)
        assert "lacks a right" not in ended.stdout + ended.stderr, (line, ended.stdout, ended.stderr)
    for line in ("pause greet", "enqueue greet {}", "drain x --force", "scale default 3"):
        ended = _supervisor(folder, *line.split(), "--database", url)
        assert ended.returncode == 3, (line, ended.stdout, ended.stderr)
        assert "lacks a right" in ended.stderr
    with Queue(url, create=False) as queue, pytest.raises(StoreError, match="lacks a right"):
        queue.enqueue("greet", {})


def _as(url: str, role: str, password: str) -> str:
    parts = urlsplit(url)
    where = f"{role}:{password}@{parts.hostname}:{parts.port}"
    return parts._replace(netloc=where, query=urlencode({"options": "-csearch_path=jobs"})).geturl()


def _supervisor(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60)


# The files


def _documents(path: Path) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text()))


def test_both_hosts_of_the_compose_file_are_as_small_as_the_only_one_of_the_other(tmp_path: Path) -> None:
    [other], [here] = _documents(ROOT / "deploy/compose.yaml"), _documents(COMPOSE)
    alone, services = other["services"]["jobs"], here["services"]
    kept = ("user", "read_only", "tmpfs", "cap_drop", "security_opt", "restart", "stop_grace_period", "healthcheck")
    for name in ("one", "two"):
        assert {key: services[name][key] for key in kept} == {key: alone[key] for key in kept}
        assert services[name]["environment"]["SUPERVISOR_HOST"] == name
        assert "postgres" in services[name]["build"]["args"]["EXTRAS"].split(",")
    assert services["one"]["depends_on"] == {"db": {"condition": "service_healthy"}}
    shell = [part.replace("$$", "$") for part in (*services["one"]["entrypoint"], *services["one"]["command"])]
    assert _started(shell, "/run/secrets/password", tmp_path) == ["run"]


def test_the_pod_starts_the_supervisor_with_the_password_of_its_secret(tmp_path: Path) -> None:
    assert _started(_container()["command"], "/run/secrets/job-supervisor/password", tmp_path) == ["run"]


def _started(shell: list[str], secret: str, folder: Path) -> list[str]:
    """Starts a container's command with a program in the supervisor's place. Returns its arguments."""
    (folder / "secret").write_text("0a1b\n")
    program = folder / "supervisor"
    program.write_text('#!/bin/sh\necho "$@" > arguments\n')
    program.chmod(0o755)
    passwords = folder / "pgpass"
    env = {"PATH": f"{folder}:{os.defpath}", "PGPASSFILE": str(passwords)}
    command = [part.replace(secret, str(folder / "secret")) for part in shell]
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=20)
    assert passwords.read_text() == "*:*:*:*:0a1b\n"
    assert stat.S_IMODE(passwords.stat().st_mode) == 0o600  # libpq ignores what others may read
    return (folder / "arguments").read_text().split()


def test_the_pod_has_the_time_that_its_jobs_have_and_the_probes_of_its_dashboard(tmp_path: Path) -> None:
    [configuration, deployment] = _documents(POD)
    path = tmp_path / "supervisor.toml"
    path.write_text(configuration["data"]["supervisor.toml"])
    (tmp_path / "jobs.py").write_text(JOBS)
    settings = load(path)
    grace = max(pool.shutdown_grace for pool in settings.pools.values())
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= grace + 10
    container = _container()
    assert settings.admin is not None
    [port] = [port["containerPort"] for port in container["ports"]]
    assert settings.admin.listen == f"0.0.0.0:{port}"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    script = container["readinessProbe"]["exec"]["command"][-1]
    assert f"127.0.0.1:{port}/readyz" in script
    compile(script, "probe", "exec")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    token = str(tomllib.loads(path.read_text())["admin"]["token_file"])
    assert token == f"{mounts['secret']}/token"
    assert token in script


def _container() -> Any:
    [container] = _documents(POD)[1]["spec"]["template"]["spec"]["containers"]
    return container


def test_the_scaling_by_metrics_asks_for_metrics_that_there_are() -> None:
    [scaling] = _documents(SCALING)
    known = (ROOT / "docs/metrics.md").read_text()
    names = {
        name
        for trigger in scaling["spec"]["triggers"]
        for name in re.findall(r"supervisor_\w+", trigger["metadata"]["query"])
    }
    assert names
    assert all(f"| `{name}` |" in known for name in names)
    assert scaling["spec"]["scaleTargetRef"]["name"] == _documents(POD)[1]["metadata"]["name"]
