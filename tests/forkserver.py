"""The program for tests, forked from a process that has imported it already.

To import it takes ten times as long as a supervisor takes for all the rest of its start, and the tests start a
thousand of them, and hundreds of other commands. What differs from a start by the command line: the process's own
words in `ps`. Tests that need a process of their own making (limits, another C library, other variables of Python's)
get one, see `can_fork`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "TEST_SUPERVISOR"
"""The environment variable that everything carries that descends from one supervisor."""

PACKAGE = Path(__file__).parent.parent / "supervisor"
_ROOM = 400  # bytes of a mark
_LARGEST = 1 << 20  # bytes of a request
_AT_START = ("LD_", "PYTHON", "COVERAGE", "MALLOC", "GLIBC")  # variables that count when a program is started


def can_fork(env: Mapping[str, str], options: Mapping[str, Any]) -> bool:
    """Whether a process with this environment may be forked from one that was started with ours."""
    traced = any(name.startswith("COVERAGE") for name in env)
    count = {name for name in {*env, *os.environ} if name.startswith(_AT_START)}
    same = all(env.get(name) == os.environ.get(name) for name in count)
    return same and not traced and not options and _namespaces() == _AT_HOME


def _namespaces() -> set[str]:
    """Where this process lives: a test may have put itself into a place of its own."""
    return {str(link.readlink()) for link in Path("/proc/self/ns").iterdir()}


_AT_HOME = _namespaces()


class Forked:
    """A process of ours, with what tests use of subprocess.Popen."""

    def __init__(self, server: _Client, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._pidfd = os.pidfd_open(pid)  # the server reaps it for us alone, so it still is there

    def poll(self) -> int | None:
        if self.returncode is None and self._has_ended(0):
            status = self._server.ask(("poll", self.pid))
            if status is not None:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not self._has_ended(timeout):
            raise subprocess.TimeoutExpired("supervisor", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def _has_ended(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Client:
    """`web`: what it forks has imported an admin process's libraries, too, and so does not load them again."""

    def __init__(self, *, web: bool) -> None:
        self.owner = os.getpid()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                # The last word makes room for the titles that processes give themselves.
                [sys.executable, "-m", "tests.forkserver", str(theirs.fileno()), str(int(web)), "x" * _ROOM],
                env=os.environ | {MARK: "x" * _ROOM},
                cwd=Path(__file__).parent.parent,
                pass_fds=(theirs.fileno(),),
            )

        atexit.register(self._close)

    def _close(self) -> None:
        if self.owner == os.getpid():
            self._socket.close()
            self._process.wait()

    def ask(self, request: tuple[Any, ...], descriptors: Sequence[int] = ()) -> Any:
        socket.send_fds(self._socket, [pickle.dumps(request)], descriptors)
        answer = self._socket.recv(_LARGEST)
        assert answer, "the server of forks has ended"
        return pickle.loads(answer)


_clients: dict[bool, _Client] = {}


def start(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, out: int, err: int, web: bool = False
) -> Forked:
    """Start the command line with these arguments; its streams go to the descriptors `out` and `err`."""
    client = _clients.get(web)
    if client is None or client.owner != os.getpid():
        client = _clients[web] = _Client(web=web)
    return Forked(client, client.ask(("run", list(arguments), dict(env), str(cwd)), (out, err)))


def run(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, at most a minute, with other `options` of subprocess.run in a new process."""
    environment = os.environ if env is None else env
    if not can_fork(environment, options):
        return subprocess.run(
            [sys.executable, "-m", "supervisor", *arguments],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            **options,
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = start(arguments, env={**environment, MARK: ""}, cwd=cwd, out=out.fileno(), err=err.fileno())
        code = started.wait(60)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, out.read().decode(), err.read().decode())


# In the server


def serve(descriptor: int, *, web: bool) -> None:
    """Fork on request until nobody is there to ask. Returns in a child, too, which has its arguments in sys.argv."""
    _import_all()
    if web:
        import supervisor.admin.app  # noqa: F401
    with socket.socket(fileno=descriptor) as asking:
        while True:
            request, descriptors, _, _ = socket.recv_fds(asking, _LARGEST, 2)
            if not request:
                sys.exit()
            kind, *details = pickle.loads(request)
            if kind == "poll":
                answer = _status(details[0])
            else:
                answer = os.fork()
                if not answer:
                    break
                for end in descriptors:
                    os.close(end)
            asking.send(pickle.dumps(answer))
    _become(*details, *descriptors)


def _import_all() -> None:
    """All that a supervisor imports without an admin process, handlers and what tests alone use."""
    import setproctitle  # noqa: F401

    from supervisor.cli import main

    for folder in (PACKAGE, *sorted(PACKAGE.iterdir())):
        if folder.name not in ("admin", "helper") and (folder / "__init__.py").exists():
            package = ".".join(folder.relative_to(PACKAGE.parent).parts)
            for module in sorted(folder.glob("[!_]*.py")):
                if module.name != "testing.py":
                    __import__(f"{package}.{module.stem}")
    from supervisor.ops.doctor.machine import names
    from supervisor.store.migrate import shipped

    with contextlib.redirect_stdout(io.StringIO()):
        main(["--version"])  # what the parser imports when it is first used
    names()  # the list of all installed packages, which the library keeps
    shipped("supervisor.store.sqlite")  # the same for the schema
    gc.collect()
    gc.freeze()  # what is shared stays shared


def _status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return status if ended else None


def _become(arguments: list[str], env: dict[str, str], folder: str, out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.chdir(folder)
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    # What is the same stays where it lies: setproctitle finds its room by that.
    os.environ.update({name: value for name, value in env.items() if os.environ.get(name) != value})
    time.tzset()
    _show(env[MARK])
    sys.argv[1:] = arguments
    sys.path[0] = folder


def _show(mark: str) -> None:
    """Put the mark where /proc/PID/environ shows it, as if we had been started with it."""
    start, end = (int(word) for word in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    before = b"%b=%b" % (MARK.encode(), b"x" * _ROOM)
    place = ctypes.string_at(start, end - start).index(before)
    ctypes.memmove(start + place, f"{MARK}={mark}".encode().ljust(len(before), b"\0"), len(before))


def _end(code: int) -> None:
    """End at once. To take down what was imported before the fork would touch, and so copy, all of its memory: that
    takes longer than many commands. Returns where the usual end would wait for a thread, or report lost output.
    """
    if threading.active_count() > 1:
        return
    with contextlib.suppress(OSError, ValueError):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(int(sys.argv[1]), web=bool(int(sys.argv[2])))
    from supervisor.cli import main

    code = main()
    _end(code)
    sys.exit(code)
