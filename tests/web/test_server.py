"""The admin process of a real supervisor: what it serves, how it dies and comes back, and that no job minds."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.config import load
from supervisor.domain.errors import ConfigError
from supervisor.ops import admin_files
from supervisor.ops.admin_files import granted
from tests.site_under_test import Site, descendants, kill, wait_for
from tests.stopwatch import Stopwatch
from tests.web.client import ADMIN, WORK, Admin, admin_of

MakeSite = Callable[..., Site]
MEGABYTE = 1 << 20
PRIVATE = "/api/admin/pools"  # something that is not for everybody
USS_LIMIT = 60 * MEGABYTE
NO_TOKEN = "does not contain a token: one word of at least 16 printable ASCII characters; remove it for a new one"

MODULES = """
import sys

def work(payload, ctx):
    return {"modules": sorted(name.partition(".")[0] for name in sys.modules)}
"""
OF_THE_WEB = {"fastapi", "starlette", "uvicorn", "h11", "jinja2", "markupsafe", "prometheus_client"}


def curl(*arguments: str, **options: Any) -> str:
    """The status that curl saw."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    ended = subprocess.run(
        ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "30", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        **options,
    )
    return ended.stdout


def started(make_site: MakeSite, config: str = WORK + ADMIN, **options: Any) -> tuple[Site, Any, Admin]:
    site = make_site(config, **options)
    supervisor = site.start()
    return site, supervisor, admin_of(site, supervisor)


def test_it_may_open_as_many_files_as_the_system_allows_and_complains_once_if_that_is_too_few(
    make_site: MakeSite,
) -> None:
    site = make_site(WORK + ADMIN)
    supervisor = site.start(program=("prlimit", "--nofile=512:4096", sys.executable, "-m", "supervisor"))
    admin = admin_of(site, supervisor)
    assert resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE) == (512, 4096)
    assert resource.prlimit(admin.pid, resource.RLIMIT_NOFILE) == (4096, 4096)

    used = max(int(path.name) for path in Path(f"/proc/{admin.pid}/fd").iterdir())
    resource.prlimit(admin.pid, resource.RLIMIT_NOFILE, (used + 4, 4096))
    with contextlib.ExitStack() as stack:
        for _ in range(used + 10):
            stack.enter_context(admin.connect())
        wait_for(lambda: "Too many open files" in site.log.read_text(), "the warning")
        time.sleep(2.5)  # it tries again every second
        resource.prlimit(admin.pid, resource.RLIMIT_NOFILE, (4096, 4096))
        assert admin.get(PRIVATE) == 200
    log = site.log.read_text()
    assert log.count("out of system resource: Too many open files") == 1
    assert "Traceback" not in log


# What it refuses


def test_curl_is_refused_for_each_reason_by_its_own_status(make_site: MakeSite, tmp_path: Path) -> None:
    _, _, admin = started(make_site)
    token = ("-H", f"Authorization: Bearer {admin.token}")
    asked = ("-H", "Content-Type: application/json", "-H", "X-Requested-With: supervisor")
    jobs = f"{admin.listen}/api/admin/jobs"
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(100_000_000)

    assert curl(f"{admin.listen}/healthz") == "200"
    assert curl("-H", "Host: evil.example", f"{admin.listen}/healthz") == "421"
    assert curl(jobs) == "401"
    assert curl("-H", "Authorization: Bearer wrong-wrong-wrong-wrong", jobs) == "401"
    assert curl(*token, "-H", "Host: evil.example", jobs) == "421"
    assert curl(*token, *asked, "-H", "Origin: https://evil.example", "-d", "{}", jobs) == "403"
    assert curl(*token, *asked, "-H", "Sec-Fetch-Site: cross-site", "-d", "{}", jobs) == "403"
    assert curl(*token, "-d", "{}", jobs) == "415"  # a form, as curl says
    with admin.connect() as connection:
        connection.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = connection.makefile("rb").read().partition(b"\r\n\r\n")[0].lower()
    assert (b"\r\ndate: " in head, b"\r\nserver: " in head) == (True, False)  # what serves it is nobody's business
    before = psutil.Process(admin.pid).memory_full_info().uss
    for expect in ("Expect: 100-continue", "Expect:"):
        assert curl(*token, *asked, "-H", expect, "--data-binary", f"@{large}", jobs) == "413"
        with Path("/dev/zero").open("rb") as endless:
            assert curl(*token, *asked, "-H", expect, "-X", "POST", "-T", "-", jobs, stdin=endless) == "413"
    assert psutil.Process(admin.pid).memory_full_info().uss - before < 12 * MEGABYTE


# Only where it is asked for


def test_without_the_table_there_is_no_admin_process(make_site: MakeSite) -> None:
    site = make_site(WORK)
    supervisor = site.start()
    wait_for(lambda: len(site.workers("work")) == 2, "both workers")
    assert wait_for(lambda: site.supervisor_status(supervisor), "its bulletin")["admin"] is None
    assert len(descendants(supervisor.pid)) == 4  # maintainer, template, two workers
    assert not site.event("admin_listening")
    assert not Path(f"{site.database}-supervisor/admin-token").exists()


def test_no_other_process_carries_the_web_framework(make_site: MakeSite) -> None:
    site = make_site(WORK + ADMIN, handlers=MODULES)
    supervisor = site.start(close_fds=True)  # an option: it is not forked from a process that has imported anything
    admin = admin_of(site, supervisor)
    # A template that was forked after the admin process has whatever that has left in the supervisor.
    site.configure(WORK + ADMIN + "show_payloads = true\n")  # so that it is replaced, too
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: site.event("reloaded"), "the reload")
    admin = admin_of(site, supervisor, other_than=admin.pid)
    job = site.queue.enqueue("work")
    modules = site.done(job).result["modules"]
    assert "supervisor" in modules
    assert OF_THE_WEB & set(modules) == set()
    assert mapped(admin.pid, "markupsafe")  # so it would show
    others = {supervisor.pid, *(process.pid for process in descendants(supervisor.pid))} - {admin.pid}
    assert len(others) >= 5
    assert [pid for pid in others if mapped(pid, "markupsafe")] == []


def mapped(pid: int, what: str) -> bool:
    with contextlib.suppress(OSError):
        return what in Path(f"/proc/{pid}/maps").read_text()
    return False


# Its deaths, and its successors


def test_a_killed_admin_process_comes_back_and_no_worker_minds(make_site: MakeSite, tmp_path: Path) -> None:
    site, supervisor, admin = started(make_site)
    end = tmp_path / "end"
    job = site.queue.enqueue("work", {"until": str(end)})
    running = site.running_pid(job)
    wait_for(lambda: len(site.workers("work")) == 2, "both workers")
    workers = sorted(worker.pid for worker in site.workers("work"))
    kill(admin.pid)
    successor = admin_of(site, supervisor, other_than=admin.pid)
    assert successor.listen == admin.listen
    assert successor.get(PRIVATE) == 200
    assert sorted(worker.pid for worker in site.workers("work")) == workers
    end.touch()
    assert site.done(job).result == {"pid": running}
    assert site.told("admin_died", pid=admin.pid)
    assert not site.event("worker_died")
    site.verdict()


def test_connections_that_come_while_it_is_replaced_wait_and_are_served(make_site: MakeSite) -> None:
    site, _, admin = started(make_site)
    os.kill(admin.pid, signal.SIGSTOP)
    wait_for(lambda: psutil.Process(admin.pid).status() == psutil.STATUS_STOPPED, "it to stop")
    waiting = []
    for _ in range(20):
        connection = admin.connect()
        connection.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
        waiting.append(connection)
    kill(admin.pid)
    for connection in waiting:
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.close()
    assert site.told("admin_died", pid=admin.pid)


@pytest.mark.timeout(180)
def test_one_that_cannot_start_says_why_and_how_often_and_keeps_nobody_waiting(make_site: MakeSite) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = make_site(f'{WORK}[admin]\nlisten = "127.0.0.1:{port}"\n')
    broken = site.folder / "broken" / "uvicorn.py"
    broken.parent.mkdir()
    broken.write_text('raise ImportError("this is no server")\n')
    environment = os.environ | {"PYTHONPATH": str(broken.parent)}
    supervisor = site.start(program=(sys.executable, "-m", "supervisor"), env=environment)
    cause = "times in a row: ImportError: this is no server"

    def problem() -> str:
        return (site.supervisor_status(supervisor).get("admin") or {}).get("problem") or ""

    def refused() -> bool:
        with socket.socket() as visitor:
            return visitor.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED

    wait_for(lambda: problem() == f"it has died 3 {cause}", "its third death")
    wait_for(refused, "the address to be closed")
    wait_for(lambda: problem() == f"it has died 4 {cause}", "its fourth death")
    told = site.command("reload", "--wait").stderr
    assert re.search(
        rf"^warning: supervisor {supervisor.pid} has no admin process: it has died \d {cause}$", told, re.M
    )
    found = json.loads(site.command("doctor", "--json").stdout)["findings"]
    assert [one["about"] for one in found if "admin process" in one["fact"]] == ["supervisors"]
    assert not any(one["about"] == "admin" for one in found)
    broken.unlink()
    assert admin_of(site, supervisor).get(PRIVATE) == 200
    assert sum(event["event"] == "admin_listening" for event in site.events()) == 1


@pytest.mark.timeout(180)
def test_a_stuck_admin_process_is_killed_and_replaced_and_jobs_go_on(make_site: MakeSite) -> None:
    site, supervisor, admin = started(make_site)
    wait_for(lambda: len(site.workers("work")) == 2, "both workers")
    workers = sorted(worker.pid for worker in site.workers("work"))
    os.kill(admin.pid, signal.SIGSTOP)
    site.done(site.queue.enqueue("work"))
    wait_for(lambda: site.event("admin_stuck", pid=admin.pid), "its beat to be 15 s late", patience=60)
    assert admin_of(site, supervisor, other_than=admin.pid).get(PRIVATE) == 200
    assert sorted(worker.pid for worker in site.workers("work")) == workers
    site.verdict()


def test_signals_of_a_terminal_or_a_cgroup_do_not_end_it_before_the_supervisor_says_so(make_site: MakeSite) -> None:
    site, supervisor, admin = started(make_site)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(admin.pid, number)
    assert admin.get(PRIVATE) == 200
    assert admin_of(site, supervisor).pid == admin.pid
    assert not site.event("admin_died")
    watch = Stopwatch()
    with admin.connect() as half, admin.connect() as idle:
        half.sendall(b"GET /login HTTP/1.1\r\n")
        assert idle
        assert site.stop(supervisor) == 0
    assert watch.seconds() < 8
    assert site.survivors(supervisor) == []


def test_a_template_s_death_does_not_take_it_for_something_that_the_template_had_started(make_site: MakeSite) -> None:
    site, supervisor, admin = started(make_site)
    wait_for(lambda: len(site.workers("work")) == 2, "both workers")
    [template] = wait_for(lambda: site.supervisor_status(supervisor)["templates"], "its bulletin")
    kill(template)
    wait_for(lambda: site.event("template_died", pid=template), "its death to be noticed")
    site.done(site.queue.enqueue("work"))
    assert admin_of(site, supervisor).pid == admin.pid
    assert not site.event("admin_died")


# Where it listens


def test_an_address_in_use_holds_up_no_job_and_is_taken_when_it_is_free(make_site: MakeSite) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    site = make_site(f'{WORK}[admin]\nlisten = "127.0.0.1:{port}"\n')
    first = site.start()
    admin = admin_of(site, first)
    second = site.start()
    refused = wait_for(lambda: site.event("admin_unavailable"), "its complaint")
    assert refused["problem"] == f"127.0.0.1:{port}: Address already in use"
    news = wait_for(lambda: site.supervisor_status(second).get("admin"), "its bulletin")
    assert (news["pid"], news["problem"]) == (None, refused["problem"])
    shown = json.loads(site.command("status", "--json").stdout)
    assert [view["admin"]["problem"] for view in shown["supervisors"]] == [None, refused["problem"]]
    text = " ".join(site.command("status").stdout.split())
    assert f"its admin process is not available: {refused['problem']}" in text
    assert f"admin process at {admin.listen}, token in {site.database}-supervisor/admin-token" in text

    site.done(site.queue.enqueue("work"))
    assert site.stop(first) == 0
    assert admin_of(site, second).listen == admin.listen
    site.done(site.queue.enqueue("work"))
    site.verdict()


UNIX = f'{WORK}[admin]\nlisten = "unix:admin.sock"\n'


def test_a_unix_socket_needs_no_token_is_shared_with_the_group_and_goes_with_the_supervisor(
    make_site: MakeSite,
) -> None:
    site = make_site(UNIX)
    path = site.folder / "admin.sock"
    killed = site.start()
    admin_of(site, killed)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    kill(killed.pid)
    killed.wait()
    assert path.is_socket()  # left behind

    supervisor = site.start()
    admin = admin_of(site, supervisor)
    assert admin.listen == f"unix:{path}"
    assert curl("--unix-socket", str(path), "http://localhost/api/admin/pools") == "200"
    assert curl("--unix-socket", str(path), "http://evil.example/healthz") == "421"
    assert not Path(f"{site.database}-supervisor/admin-token").exists()
    assert site.stop(supervisor) == 0
    assert not path.exists()


@pytest.mark.parametrize("listens", [True, False])
def test_a_socket_that_somebody_listens_on_and_a_file_that_is_none_are_left_alone(
    make_site: MakeSite, listens: bool
) -> None:
    site = make_site(UNIX)
    path = site.folder / "admin.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        if listens:
            theirs.bind(str(path))
            theirs.listen()
        else:
            path.write_text("precious")
        supervisor = site.start()
        wait_for(lambda: site.event("admin_unavailable"), "its complaint")
        site.done(site.queue.enqueue("work"))
        assert site.stop(supervisor) == 0
        assert path.is_socket() if listens else path.read_text() == "precious"


def test_a_reload_takes_another_address_another_token_or_none_of_it_at_all(make_site: MakeSite) -> None:
    site, supervisor, admin = started(make_site)
    workers = Path(f"{site.database}-supervisor/admin-token")
    workers.write_text("another-token-of-good-length")
    site.configure(f'{WORK}[admin]\nlisten = "[::1]:0"\n')
    supervisor.send_signal(signal.SIGHUP)
    successor = admin_of(site, supervisor, other_than=admin.pid)
    assert successor.listen.startswith("http://[::1]:")
    assert successor.get(PRIVATE) == 200
    assert Admin(successor.pid, successor.listen, admin.token).get(PRIVATE) == 401
    with pytest.raises(ConnectionRefusedError):
        admin.get("/login")

    site.configure(WORK)
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: site.supervisor_status(supervisor)["admin"] is None, "it to be gone")
    wait_for(lambda: not psutil.pid_exists(successor.pid), "its end")
    with pytest.raises(ConnectionRefusedError):
        successor.get("/login")
    assert not site.event("admin_died")
    site.done(site.queue.enqueue("work"))
    site.verdict()


@pytest.mark.parametrize(
    ("config", "token", "kept"),
    [
        (WORK + ADMIN, "", True),
        (WORK + ADMIN, "another-token-of-good-length", False),
        (WORK + '[pools.more]\nhandler = "jobs:work"\n' + ADMIN, "", False),
        (WORK + ADMIN + 'hosts = ["jobs.example.org"]\n', "", False),
    ],
    ids=["nothing", "a token", "a pool", "a host"],
)
def test_a_reload_replaces_it_only_for_what_it_uses(make_site: MakeSite, config: str, token: str, kept: bool) -> None:
    site, supervisor, admin = started(make_site)
    if token:
        Path(f"{site.database}-supervisor/admin-token").write_text(token)
    site.configure(config)
    connection = http.client.HTTPConnection(*admin.address, timeout=20)
    connection.connect()
    site.command("reload", "--wait")
    if kept:
        connection.request("GET", PRIVATE, headers=admin.bearer)  # whoever is connected is served
        assert connection.getresponse().status == 200
        assert admin_of(site, supervisor).pid == admin.pid
    else:
        successor = admin_of(site, supervisor, other_than=admin.pid)
        assert successor.get(PRIVATE) == 200
        assert Admin(successor.pid, successor.listen, admin.token).get(PRIVATE) == (401 if token else 200)
    connection.close()
    assert not site.event("admin_died")


# Tokens


def test_a_token_is_made_once_and_for_its_owner_alone(make_site: MakeSite) -> None:
    site, supervisor, admin = started(make_site, config=f'{WORK}{ADMIN}read_token_file = "looking"\n')
    made = [Path(f"{site.database}-supervisor/admin-token"), site.folder / "looking"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o600, 0o600]
    before = [path.read_text() for path in made]
    assert len(set(before)) == 2
    assert all(len(token.strip()) >= 43 for token in before)
    assert Admin(admin.pid, admin.listen, before[1].strip()).get(PRIVATE) == 200
    assert site.stop(supervisor) == 0
    site.start()
    assert [path.read_text() for path in made] == before
    assert before[0].strip() not in site.log.read_text()
    assert before[1].strip() not in site.log.read_text()


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("a-token-of-good-length", 0o644, "is open to every user of this machine; chmod 600 it and use a new token"),
        *((content, 0o600, NO_TOKEN) for content in ("", " \n", "short", "two words of a token", "x" * 5000)),
    ],
)
def test_a_token_that_is_no_secret_is_refused(tmp_path: Path, content: str, mode: int, problem: str) -> None:
    config, path = tmp_path / "supervisor.toml", tmp_path / "token"
    config.write_text(f'{WORK}{ADMIN}token_file = "token"\n')
    path.write_text(content)
    path.chmod(mode)
    settings = load(config)
    with pytest.raises(ConfigError) as refused:
        granted(settings, tmp_path)
    assert refused.value.problems == [f"{config}: admin.token_file: {path} {problem}"]
    assert admin_files.token_problems(settings.admin, make=False) == {"token_file": f"{path} {problem}"}


def test_a_token_that_is_no_secret_or_cannot_be_made_is_refused_before_anything_starts(make_site: MakeSite) -> None:
    site = make_site(f'{WORK}{ADMIN}token_file = "token"\n')
    path = site.folder / "token"
    path.write_text("short")
    path.chmod(0o600)
    supervisor = site.start(wait=False)
    assert supervisor.wait(20) == 2
    told = [line for line in site.log.read_text().splitlines() if line.startswith("error: ")]
    assert told == [f"error: {site.config}: admin.token_file: {path} {NO_TOKEN}"]
    assert f"admin.token_file: {path} {NO_TOKEN}" in site.command("check", code=2).stderr
    assert not site.event("supervisor_started")
    assert list(Path(f"{site.database}-supervisor").glob("owner-*")) == []

    site.configure(f'{WORK}{ADMIN}token_file = "nowhere/token"\n')
    assert site.start(wait=False).wait(20) == 2
    assert f"admin.token_file: {site.folder}/nowhere/token: No such file or directory" in site.log.read_text()


def test_a_bad_token_at_a_reload_changes_nothing(make_site: MakeSite) -> None:
    site, supervisor, admin = started(make_site)
    Path(f"{site.database}-supervisor/admin-token").write_text("short")
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: site.event("reload_refused"), "the refusal")
    assert admin.get(PRIVATE) == 200
    kill(admin.pid)  # its successor cannot know whom to let in

    def problem() -> str | None:
        found: str | None = (site.supervisor_status(supervisor)["admin"] or {}).get("problem")
        return found

    assert wait_for(problem, "the problem to be shown").endswith(NO_TOKEN)
    site.done(site.queue.enqueue("work"))
    Path(f"{site.database}-supervisor/admin-token").write_text(admin.token)
    assert admin_of(site, supervisor, other_than=admin.pid).get(PRIVATE) == 200


# Slow clients


@pytest.mark.fault(77)
def test_five_hundred_slow_clients_hold_up_neither_answers_nor_jobs(make_site: MakeSite) -> None:
    site, supervisor, admin = started(make_site)
    with contextlib.ExitStack() as stack:
        for client in slow_clients(admin, 500):
            stack.enter_context(client)
        watch = Stopwatch()
        for _ in range(20):
            assert curl("--max-time", "15", f"{admin.listen}/healthz") == "200"
            assert curl("--max-time", "15", f"{admin.listen}/login") == "200"
            assert admin.get(PRIVATE, timeout=15) == 200
        jobs = [site.queue.enqueue("work") for _ in range(20)]
        for job in jobs:
            site.done(job)
        assert watch.seconds() < 60
        assert admin_of(site, supervisor).pid == admin.pid
        assert psutil.Process(admin.pid).memory_full_info().uss < USS_LIMIT
    site.verdict()


def slow_clients(admin: Admin, number: int) -> Iterator[socket.socket]:
    """By turns: half a head, half a body, many questions and no ear for the answers."""
    bearer = f"Host: localhost\r\nAuthorization: Bearer {admin.token}\r\n"
    half_body = (
        f"POST /api/admin/jobs HTTP/1.1\r\n{bearer}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
    )
    questions = f"GET /openapi.json HTTP/1.1\r\n{bearer}\r\n" * 200
    for text in [b"GET / HTTP/1.1\r\nHost: loc", half_body.encode(), questions.encode()] * (number // 3 + 1):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(admin.address)
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connection.sendall(text)
        yield connection


# What it costs

SERVED = ["/login", "/healthz", "/readyz", "/openapi.json", "/metrics", "/", "/jobs", "/failures", "/workers"]
SERVED += ["/schedules", "/nothing"]
SERVED += [f"/api/admin/{what}" for what in ("overview", "jobs", "stats", "pools", "workers", "schedules", "failures")]


def test_it_sleeps_while_nobody_asks_and_stays_small(make_site: MakeSite) -> None:
    _, _, admin = started(make_site)
    process = psutil.Process(admin.pid)
    kept = http.client.HTTPConnection(*admin.address, timeout=20)
    for path in SERVED:
        kept.request("GET", path, headers=admin.bearer)
        kept.getresponse().read()
    kept.close()
    assert process.memory_full_info().uss < USS_LIMIT
    # A window of time, since nothing is what there is to be seen; a server that ticks wakes up 50 times in it.
    before, cpu = process.num_ctx_switches().voluntary, sum(process.cpu_times()[:2])
    time.sleep(5)
    assert process.num_ctx_switches().voluntary - before <= 15
    assert sum(process.cpu_times()[:2]) - cpu <= 0.05
