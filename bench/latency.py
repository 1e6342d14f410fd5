"""From the commit of a bare INSERT to the handler's first line, on an idle queue; then what idling costs.

    python bench/latency.py [--count 300] [--idle 60] [--synchronous NORMAL]

The rows are inserted by the sqlite3 shell and by a Node.js program (better-sqlite3, installed by npm into
a temporary folder), each a process of its own that knows nothing of us. Their clock is read right before
the INSERT is sent or run, so parsing and committing are part of the figure: it is an upper bound. For
Node.js the time after the commit is known, too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from common import installation, percentile, supervisor, until

from supervisor import Queue

POOL = '[pools.stamp]\nhandler = "jobs:stamp"\nworkers = 4\n'
PAUSE = 0.02  # seconds between two inserts: the workers are idle again by then

NODE = """
const Database = require('better-sqlite3');
const [file, count, pause, mode] = process.argv.slice(2);
const db = new Database(file, { timeout: 5000 });
db.pragma('synchronous = ' + mode);
const insert = db.prepare("INSERT INTO jobs(type, payload) VALUES ('stamp', '{}')");
const now = () => performance.timeOrigin + performance.now();
const out = [];
const step = (left) => {
  if (!left) { console.log(JSON.stringify(out)); return; }
  const before = now();
  const id = insert.run().lastInsertRowid;
  out.push([Number(id), before / 1000, now() / 1000]);
  setTimeout(() => step(left - 1), Number(pause) * 1000);
};
step(Number(count));
"""

Sample = tuple[int, float, float]  # job id, time before the INSERT, time after its commit was known


def from_shell(database: Path, count: int, mode: str) -> list[Sample]:
    """One long-lived sqlite3 shell that is fed a line at a time."""
    shell = subprocess.Popen(
        ["sqlite3", "-batch", str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f".timeout 5000\nPRAGMA synchronous = {mode};\n")
    samples = []
    for _ in range(count):
        time.sleep(PAUSE)
        before = time.time()
        shell.stdin.write("INSERT INTO jobs(type, payload) VALUES ('stamp', '{}'); SELECT last_insert_rowid();\n")
        shell.stdin.flush()
        job = int(shell.stdout.readline())
        samples.append((job, before, time.time()))
    shell.stdin.close()
    shell.wait()
    return samples


def from_node(database: Path, count: int, mode: str) -> list[Sample]:
    folder = Path(tempfile.mkdtemp(prefix="bench-node-"))
    try:
        subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "better-sqlite3"], cwd=folder, check=True
        )
        (folder / "insert.js").write_text(NODE)
        command = ["node", "insert.js", str(database), str(count), str(PAUSE), mode]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        return [(job, before, after) for job, before, after in json.loads(done.stdout)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(name: str, queue: Queue, samples: list[Sample]) -> None:
    until(lambda: all(queue.job(job).status.finished for job, _, _ in samples[-1:]))
    started = {job: queue.job(job).result for job, _, _ in samples}
    for words, index in (("from before the INSERT", 1), ("from after the commit", 2)):
        waits = [(started[sample[0]] - sample[index]) * 1000 for sample in samples]
        print(
            f"{name:14}{words:26}median {percentile(waits, 0.5):6.3f} ms   p99 {percentile(waits, 0.99):6.3f} ms   "
            f"max {max(waits):6.3f} ms   ({len(waits)} jobs)"
        )


def idle(pid: int, seconds: float) -> None:
    """CPU and memory of all processes while nothing happens."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    before = [nanoseconds(process.pid) for process in family]
    time.sleep(seconds)
    used = [(nanoseconds(process.pid) - start) / 1e9 for process, start in zip(family, before, strict=True)]
    print(f"\nidle for {seconds:g} s: {sum(used) / seconds * 100:.3f} % of one core, all {len(family)} processes")
    names = ["supervisor", "maintainer", "template"]
    for number, (process, cpu) in enumerate(zip(family, used, strict=True)):
        name = names[number] if number < len(names) else f"worker {number - 2}"
        memory = process.memory_full_info()
        print(
            f"  {name:12}{cpu / seconds * 100:7.3f} %   USS {memory.uss / 1e6:6.1f} MB   PSS {memory.pss / 1e6:6.1f} MB"
        )


def nanoseconds(pid: int) -> int:
    """CPU time of a process and its threads; exact, where clock ticks would be too coarse."""
    return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--synchronous", choices=["NORMAL", "FULL"], default="NORMAL")
    options = parser.parse_args()
    sources: dict[str, tuple[str, Callable[[Path, int, str], list[Sample]]]] = {
        "sqlite3 shell": ("sqlite3", from_shell),
        "Node.js": ("node", from_node),
    }
    with installation(POOL) as folder:
        queue = Queue(f"sqlite:///{folder}/app.db")
        queue.enqueue("stamp")
        with supervisor(folder) as process:
            until(lambda: queue.job(1).status.finished)
            for name, (program, source) in sources.items():
                if shutil.which(program) is None:
                    print(f"{name}: not measured, there is no {program} here")
                    continue
                report(name, queue, source(folder / "app.db", options.count, options.synchronous))
            idle(process.pid, options.idle)
        queue.close()


if __name__ == "__main__":
    main()
