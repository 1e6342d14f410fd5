"""deploy/: what the samples say is what their programs accept, as far as those programs are here."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import re
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.config import settings
from supervisor.domain.text import seconds
from tests.docs.markdown import ROOT
from tests.docs.test_snippets import environment, free_port
from tests.docs.test_unit_file import UNIT, needs_systemd_analyze
from tests.site_under_test import Site, wait_for

DEPLOY = ROOT / "deploy"
INSTALL = DEPLOY / "install.sh"
GPU = DEPLOY / "systemd" / "gpu.conf"
WORK = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'
SCRIPTS = [INSTALL, ROOT / "tests" / "deploy" / "bare_machine.sh"]


def ran(*command: str | Path, code: int = 0, **options: object) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload]
    assert ended.returncode == code, ended
    return str(ended.stdout + ended.stderr)


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"there is no {program} here")


# The script


@needs("shellcheck")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_may_be_run_and_shellcheck_finds_nothing_in_them(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert ran("shellcheck", script) == ""


def test_install_explains_itself_and_refuses_what_it_does_not_know() -> None:
    usage = ran("sh", INSTALL, "--help")
    taken = set(
        re.findall(r"--[a-z-]+", INSTALL.read_text().partition("while [ $# -gt 0 ]")[2].partition("esac\ndone")[0])
    )
    assert {option for option in taken if option in usage} >= {
        "--source",
        "--extras",
        "--folder",
        "--user",
        "--rollback",
    }
    for wrong in (["--sorce", "x"], ["--folder"], ["x"]):
        assert "usage:" in ran("sh", INSTALL, *wrong, code=2)
    for folder in ("relative", "/home/app", "/srv/a b", "/srv/$(id)"):
        assert ran("sh", INSTALL, "--folder", folder, code=1).startswith("error: ")
    assert ran("sh", INSTALL, "--user", "root", code=1).startswith("error: ")


# systemd


@needs_systemd_analyze
def test_systemd_accepts_the_drop_in_for_gpus(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/srv/app/venv/bin/supervisor", shutil.which("true") or "/bin/true"))
    before = ran("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=15", unit)
    folder = tmp_path / f"{UNIT.name}.d"
    folder.mkdir()
    shutil.copy(GPU, folder)
    assert "job-supervisor" not in ran("systemd-analyze", "verify", unit)
    after = ran("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=17", unit)
    assert after != before  # it has been read


# Containers


def test_the_container_file_copies_what_is_there_and_gives_up_root() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    for source in (name for names in copied for name in names):
        assert (ROOT / source).exists(), source
    assert re.search(r"^USER 10001:10001$", text, re.M)
    assert json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.M)[1]) == ["supervisor"]  # type: ignore[index]
    assert json.loads(re.search(r"^CMD (.*)$", text, re.M)[1]) == ["run"]  # type: ignore[index]


def test_the_compose_file_keeps_its_container_small() -> None:
    yaml = pytest.importorskip("yaml")
    [service] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    assert service["read_only"] is True
    assert service["user"] == "10001:10001"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    grace = settings.POOL["shutdown_grace"].default
    assert seconds(service["stop_grace_period"]) >= grace + 10
    assert any(volume.endswith("data:/srv/app/data") for volume in service["volumes"])  # the folder, not the file


def test_the_health_check_of_containers_tells_whether_a_supervisor_lives(make_site: Callable[..., Site]) -> None:
    yaml = pytest.importorskip("yaml")
    [service] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    kind, check = service["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    written = json.loads(re.search(r"^    CMD (.*)$", (DEPLOY / "Containerfile").read_text(), re.M)[1])  # type: ignore[index]
    assert written == ["sh", "-c", check]
    site = make_site(WORK)
    where = {"cwd": site.folder, "env": environment()}
    ran("sh", "-c", check, code=1, **where)
    process = site.start()
    ran("sh", "-c", check, **where)
    site.stop(process)
    ran("sh", "-c", check, code=1, **where)


# Reverse proxies

NAME, PASSWORD = "jobs.example.org", "correct horse"
SLOW = 3.0  # seconds; in the samples, 60 s become one


class Upstream(http.server.BaseHTTPRequestHandler):
    """Stands for the admin process: tells what reached it, and streams events until it is let go."""

    protocol_version = "HTTP/1.1"
    go_on = threading.Event()

    def do_GET(self) -> None:
        if self.path.startswith("/run/"):
            time.sleep(SLOW)
        if self.path.endswith("/events"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"event: overview\ndata: {}\n\n")
            self.wfile.flush()
            if self.path.startswith("/jobs/"):
                time.sleep(SLOW)
                self.wfile.write(b"event: end\ndata: {}\n\n")
            else:
                self.go_on.wait(30)
            self.close_connection = True
            return
        body = json.dumps({name.lower(): value for name, value in self.headers.items()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None: ...


class UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Of a proxy that breaks a request off."""

    def get_request(self) -> tuple[socket.socket, str]:
        connection, _ = super().get_request()
        return connection, "local:0"


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "admin.sock"
    Upstream.go_on.clear()
    with UnixServer(str(path), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield path
        Upstream.go_on.set()
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def running(command: list[str | Path], port: int, folder: Path) -> Iterator[None]:
    """A proxy that answers on the port."""

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
        return False

    surroundings = os.environ | {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=surroundings, cwd=folder)
        try:
            wait_for(answers, "a proxy")
            yield
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:  # Caddy waits for streams, as long as they like
                process.kill()
                process.wait(20)


def nginx(folder: Path, upstream: Path, patience: str = "60s") -> tuple[list[str | Path], int, bool]:
    """The sample with other ports, files and certificate, checked by `nginx -t`."""
    key, certificate, passwords = folder / "key.pem", folder / "cert.pem", folder / "passwords"
    ran("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
        "-subj", f"/CN={NAME}", "-keyout", key, "-out", certificate)  # fmt: skip
    hashed = ran("openssl", "passwd", "-6", PASSWORD).strip()
    passwords.write_text(f"operator:{hashed}\n")
    port, plain = free_port(), free_port()
    text = (DEPLOY / "nginx" / "job-supervisor.conf").read_text()
    changes = [
        ("listen [::]:80;\n", "\n"),
        ("listen [::]:443 ssl http2;\n", "\n"),
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;"),
        ("/run/job-supervisor/admin.sock", str(upstream)),
        (f"/etc/letsencrypt/live/{NAME}/fullchain.pem", str(certificate)),
        (f"/etc/letsencrypt/live/{NAME}/privkey.pem", str(key)),
        ("/etc/nginx/job-supervisor.htpasswd;", f"{passwords};"),
        ("proxy_read_timeout 60s;", f"proxy_read_timeout {patience};"),
    ]
    for ours, theirs in changes:
        assert ours in text, ours
        text = text.replace(ours, theirs)
    (folder / "site.conf").write_text(text)
    (folder / "nginx.conf").write_text(
        ("user root;\n" if os.geteuid() == 0 else "") + "daemon off; pid nginx.pid; error_log stderr;\nevents {}\n"
        f"http {{ access_log off; include {folder}/site.conf;\n"
        + "".join(
            f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        + "}\n"
    )
    command: list[str | Path] = ["nginx", "-p", folder, "-e", "stderr", "-c", folder / "nginx.conf"]
    assert "test is successful" in ran(*command, "-t")
    return command, port, True


def caddy(folder: Path, upstream: Path, patience: str = "60s") -> tuple[list[str | Path], int, bool]:
    """The sample with another port, without TLS, and a password."""
    hashed = ran("caddy", "hash-password", "--plaintext", PASSWORD).strip().splitlines()[-1]
    port = free_port()
    text = (DEPLOY / "caddy" / "Caddyfile").read_text()
    for ours, theirs in [
        (f"\n{NAME} {{", f"\n{{\n\tadmin off\n\tauto_https off\n}}\nhttp://{NAME}:{port} {{\n\tbind 127.0.0.1"),
        ("CHANGE-ME-caddy-hash-password", hashed), ("unix//run/job-supervisor/admin.sock", f"unix/{upstream}"),
        ("response_header_timeout 60s", f"response_header_timeout {patience}"),
    ]:  # fmt: skip
        assert ours in text, ours
        text = text.replace(ours, theirs)
    (folder / "Caddyfile").write_text(text)
    command: list[str | Path] = ["caddy", "run", "--adapter", "caddyfile", "--config", folder / "Caddyfile"]
    ran("caddy", "validate", *command[2:])
    return command, port, False


RIGHT = {"Authorization": "Basic " + b64encode(f"operator:{PASSWORD}".encode()).decode()}


@contextlib.contextmanager
def asking(port: int, tls: bool) -> Iterator[Callable[..., http.client.HTTPResponse]]:
    """Ask the proxy under the sample's name; every connection is closed in the end."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host = NAME if tls else f"{NAME}:{port}"

    def ask(
        path: str, headers: dict[str, str] | None = None, body: bytes | None = None, method: str = ""
    ) -> http.client.HTTPResponse:
        connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
            if tls
            else http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        )
        opened.callback(connection.close)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who is refused may be cut off
            how = method or ("GET" if body is None else "POST")
            connection.request(how, path, body, {"Host": host, **(headers or {})})
        return connection.getresponse()

    with contextlib.ExitStack() as opened:
        yield ask


PROXIES = [pytest.param(nginx, marks=needs("nginx")), pytest.param(caddy, marks=[needs("caddy"), pytest.mark.long])]


Proxy = Callable[..., tuple[list[str | Path], int, bool]]


@pytest.mark.parametrize("proxy", PROXIES)
def test_a_proxy_by_the_sample_asks_for_a_password_and_passes_on_what_is_needed(
    proxy: Proxy, upstream: Path, tmp_path: Path
) -> None:
    command, port, tls = proxy(tmp_path, upstream, "1s")

    with running(command, port, tmp_path), asking(port, tls) as ask:
        assert ask("/").status == 401
        assert ask("/", {"Authorization": "Basic b3BlcmF0b3I6d3Jvbmc="}).status == 401

        answer = ask("/jobs?status=failed", RIGHT)
        assert answer.status == 200
        reached = json.loads(answer.read())
        assert reached["host"].partition(":")[0] == NAME
        assert "authorization" not in reached
        assert reached["x-forwarded-for"] == "127.0.0.1"
        assert reached["x-forwarded-proto"] == ("https" if tls else "http")

        picture = RIGHT | {"Content-Type": "image/jpeg"}
        for path, size, status in (
            ("/api/admin/jobs", 1000, 200),
            ("/api/admin/jobs", 3 << 20, 413),
            ("/run/shop%2Fnsfw?wait=300", 3 << 20, 200),  # which is waited for
            ("/run/nsfw", 65 << 20, 413),
        ):
            assert ask(path, picture, b"x" * size).status == status, path
        assert b"event: end\n" in ask("/jobs/7/events", RIGHT).read()

        events = ask("/api/admin/events", RIGHT)
        assert events.readline() == b"event: overview\n"  # while the stream goes on
        assert not Upstream.go_on.is_set()
        Upstream.go_on.set()
        events.read()


@pytest.mark.parametrize("proxy", PROXIES)
def test_the_dashboard_works_behind_a_proxy_by_the_sample(
    proxy: Proxy, make_site: Callable[..., Site], tmp_path: Path
) -> None:
    pytest.importorskip("uvicorn")
    site = make_site(f'{WORK}[admin]\nlisten = "unix:admin.sock"\nhosts = ["{NAME}"]\n')
    site.start()
    path = site.folder / "admin.sock"
    wait_for(path.exists, "the socket")
    command, port, tls = proxy(tmp_path, path)

    with running(command, port, tmp_path), asking(port, tls) as ask:
        page = ask("/", RIGHT)
        assert (page.status, b"work" in page.read()) == (200, True)
        ours = RIGHT | {"Content-Type": "application/json", "X-Requested-With": "supervisor"}
        changed = ask("/api/admin/types/work", ours, b'{"paused": true}', method="PUT")
        assert changed.status == 200, changed.read()
        assert site.rows("SELECT name FROM job_controls WHERE kind = 'paused'") == [("work",)]
        events = ask("/api/admin/events", RIGHT)
        assert b"overview" in events.readline() + events.readline()
        other = RIGHT | {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert ask("/api/admin/types/work", other, b"{}", method="PUT").status == 403


@needs("caddy")
def test_the_sample_for_caddy_lets_nobody_in_as_it_is() -> None:
    refused = ran("caddy", "validate", "--adapter", "caddyfile", "--config", DEPLOY / "caddy" / "Caddyfile", code=1)
    assert "CHANGE-ME" in refused or "base64" in refused or "hash" in refused


# Logs


@needs("logrotate")
def test_logrotate_accepts_the_sample(tmp_path: Path) -> None:
    sample = tmp_path / "sample"
    text = (DEPLOY / "logrotate" / "job-supervisor").read_text()
    sample.write_text(text.replace("/var/log/job-supervisor", str(tmp_path)))
    sample.chmod(0o644)
    log = tmp_path / "run.log"
    log.write_text("a line\n" * 100)
    ran("logrotate", "--force", "--state", tmp_path / "state", sample)
    assert (log.read_text(), (tmp_path / "run.log.1").read_text()) == ("", "a line\n" * 100)
