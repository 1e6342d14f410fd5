"""The pictures' jobs on two hosts with one PostgreSQL server, and one host is killed on the way.

    python examples/pictures/several_hosts.py [--images DIR] [--rounds N]

Starts a server of its own in a temporary folder, enqueues a `tag`, a `caption` and an `nsfw` job for every picture, N
times, and starts a supervisor for each host. When a third of the jobs is done, all processes of the second host are
killed at once. The first one takes over its jobs when its lease has ended, after 15 to 20 seconds. Both hosts are this
machine, but each has folders and a boot of its own, so it knows of the other only what the server says. Exit codes: 0
all done, 1 a job is not, 2 there is nothing to work on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

import demo  # noqa: E402

from supervisor import Queue, Status  # noqa: E402
from tests import another_host  # noqa: E402
from tests.postgres_server import NoServerError, server  # noqa: E402

PATIENCE = 180.0  # seconds for all of it

Process = subprocess.Popen[bytes]


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--images", metavar="DIR", help="a directory with your own pictures")
    arguments.add_argument("--rounds", metavar="N", type=int, default=30, help="how often each picture is worked on")
    given = arguments.parse_args()
    try:
        demo.check_libraries(HERE / "supervisor.toml")
        with tempfile.TemporaryDirectory(prefix="supervisor-demo-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            pictures = demo.own_pictures(given.images) if given.images else demo.sample_pictures(folder / "pictures")
            with server() as one:
                return demonstrate(pictures, max(1, given.rounds), one.fresh_database(), folder)
    except (demo.NothingToDo, NoServerError) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 2


def demonstrate(pictures: list[Path], rounds: int, url: str, folder: Path) -> int:
    """Enqueue, run on two hosts, kill one, show. Returns the exit code."""
    from rich.console import Console

    with Queue(url) as queue:
        hosts = {name: start(name, url, folder) for name in ("one", "two")}
        try:
            wait_for_workers(hosts, url)
            ids = demo.enqueue(queue, pictures)
            for _ in range(rounds - 1):
                demo.enqueue(queue, pictures)
            total = queue.count()
            say(f"{total} jobs for {len(pictures)} {demo.plural(len(pictures), 'picture')}, {rounds} times each")
            say("two hosts work on them")
            wait_for(queue, hosts, total // 3)
            kill(hosts["two"])
            killed = time.monotonic()
            held = [job.id for job in queue.jobs(status="running", limit=1000)]  # by either host
            say(f"host two is killed, with all its processes, after {queue.count(status='done')} jobs")
            wait_for(queue, {"one": hosts["one"]}, total)
            say(f"all have ended, {time.monotonic() - killed:.0f} s after that")
        finally:
            stop(hosts)
        rows = [demo.Row(picture, tuple(queue.job(job) for job in jobs)) for picture, jobs in ids.items()]
        done, repeated = queue.count(status="done"), sum(queue.job(job).crashes > 0 for job in held)
    console = Console()
    console.print(demo.table(rows))
    console.print(f"{done} of {total} jobs done; {repeated} that host two had begun were run again by host one")
    return 0 if done == total else 1


def start(name: str, url: str, folder: Path) -> Process:
    own = folder / name
    own.mkdir()
    command = [sys.executable, "-P", another_host.__file__, f"boot-of-{name}", "run"]
    places = {"STATE_DIRECTORY": str(own), "RUNTIME_DIRECTORY": str(own), "SUPERVISOR_HOST": name}
    environment = {**os.environ, **places, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([*command, "-c", str(HERE / "supervisor.toml"), "--database", url], env=environment)


def wait_for_workers(hosts: dict[str, Process], url: str) -> None:
    """Until each host has a worker for each type, or the first would do all jobs while the other loads its models."""
    command = [sys.executable, "-m", "supervisor", "status", "--json", "--database", url]
    until = time.monotonic() + PATIENCE
    while True:
        told = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        workers = json.loads(told.stdout)["workers"] if told.returncode == 0 else []
        idle = {(worker["host"], worker["pool"]) for worker in workers if worker["state"] == "idle"}
        if len(idle) == len(hosts) * len(demo.TYPES):
            return
        check(hosts, until, "the workers are not ready")
        time.sleep(0.2)


def wait_for(queue: Queue, hosts: dict[str, Process], count: int) -> None:
    """Until so many jobs have ended. Raises NothingToDo if a host ends by itself, or if it takes too long."""
    until = time.monotonic() + PATIENCE
    while sum(queue.count(status=status) for status in Status if status.finished) < count:
        check(hosts, until, "the jobs have not ended")
        time.sleep(0.05)


def check(hosts: dict[str, Process], until: float, lacking: str) -> None:
    """Raises NothingToDo if a host has ended by itself, or if it takes too long."""
    for name, host in hosts.items():
        if host.poll() is not None:
            raise demo.NothingToDo(f"host {name} has ended with exit code {host.returncode}")
    if time.monotonic() > until:
        raise demo.NothingToDo(f"{lacking} within {PATIENCE:.0f} s")


def kill(host: Process) -> None:
    """All its processes at once, as if the machine had lost its power."""
    everything = [psutil.Process(host.pid), *psutil.Process(host.pid).children(recursive=True)]
    for process in everything:
        process.suspend()  # so that none of them sees another one die
    for process in everything:
        process.kill()
    host.wait()


def stop(hosts: dict[str, Process]) -> None:
    for host in hosts.values():
        if host.poll() is None:
            host.send_signal(signal.SIGTERM)
    for host in hosts.values():
        host.wait(60)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
