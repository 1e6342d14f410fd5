"""The command line of the benchmark beside model servers, and the course of a run."""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import machine, processes
from bench.peers import install
from bench.record import Absence, Key, Record
from bench.serving import measures, report
from bench.serving.contestants import OURS, PEERS, TITLES
from bench.serving.measures import Course, Take, Turn
from bench.trial import Reading

RESULTS = Path(__file__).parents[1] / "results"
PARTIAL = Path(__file__).parents[1] / ".partial"


def main() -> int:
    """Returns the exit code: 0; 130 when interrupted, or 1 without the model (then nothing is written)."""
    options = _options()
    partial = options.quick or options.only or options.peers != "all"
    target = options.output or (PARTIAL if partial else RESULTS)
    if options.redraw:
        _write(target, Record.from_json((target / "models.json").read_text()))
        return 0
    processes.adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.scratch))  # short: Ray puts sockets below it
    try:
        _write(target, _run(options, folder))
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return 130
    except processes.ProgramFailed as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        processes.ignore_stops()
        processes.sweep()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run_models.py", description="Serves a model with job-supervisor and with its peers, in one run."
    )
    parser.add_argument("--quick", action="store_true", help="one round with fewer pictures: a few minutes")
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=list(measures.MEASURES),
        help=f"one measurement (repeatable): {', '.join(measures.MEASURES)}",
    )
    parser.add_argument("--rounds", type=int, metavar="N", default=3, help="how often the contestants take turns")
    parser.add_argument("--peers", metavar="LIST", default="all", help=f"all, none, or some of {','.join(PEERS)}")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where the results go")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the databases are made")
    parser.add_argument("--redraw", action="store_true", help="write the table and the picture of a run anew")
    options = parser.parse_args()
    chosen = [] if options.peers in ("all", "none") else options.peers.split(",")
    if unknown := set(chosen) - set(PEERS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    options.chosen = list(PEERS) if options.peers == "all" else chosen
    return options


def _run(options: argparse.Namespace, folder: Path) -> Record:
    record = Record()
    found = [*OURS.values(), *install.provided(PEERS, options.chosen, record)]
    versions = machine.versions(())
    for one in found:
        versions |= one.versions()
        if install.REDIS in one.needs:
            versions["Redis"] = install.redis_version()
    rounds = 1 if options.quick else options.rounds
    course = Course(folder, options.quick)
    record.about = {
        **machine.describe(folder),
        "rounds": rounds,
        "quick": options.quick,
        "half load": round(course.half, 1),
        "versions": versions,
    }
    began = time.monotonic()
    everything = measures.visits(course, found, Take(options.only or (), lambda figure, values: None))
    for number in range(rounds):
        for turn in everything if number % 2 == 0 else reversed(everything):
            _visit(turn, options.only or (), record)
    record.seconds["all"] = time.monotonic() - began
    return record


def _visit(turn: Turn, only: Sequence[str], record: Record) -> None:
    """One contestant in one case; what fails is named, and the others go on."""

    def note(figure: str, values: Callable[[], Reading]) -> None:
        try:
            reading = values()
        except Exception as error:
            _miss(turn, figure, error, record)
        else:
            _keep(turn, reading, record)

    try:
        turn.visit(Take(only, note))
    except Exception as error:
        _miss(turn, turn.first, error, record)
    finally:
        processes.sweep()


def _miss(turn: Turn, figure: str, error: Exception, record: Record) -> None:
    why = str(error) if isinstance(error, processes.ProgramFailed) else f"{type(error).__name__}: {error}"
    print(f"  {TITLES[turn.contestant]}, {figure}, {turn.case}: {why}", file=sys.stderr, flush=True)
    record.miss(Absence(figure, turn.contestant, turn.case, why))


def _keep(turn: Turn, reading: Reading, record: Record) -> None:
    for name, values in reading.items():
        record.add(Key(name, turn.contestant, turn.case), measures.UNITS[name], [float(value) for value in values])
    told = ", ".join(f"{name} {statistics.median(values):,.4g}" for name, values in reading.items())
    print(f"  {TITLES[turn.contestant]}, {turn.case}: {told}", flush=True)


def _write(target: Path, record: Record) -> None:
    target.mkdir(parents=True, exist_ok=True)
    table = report.markdown(record)
    (target / "models.json").write_text(record.to_json())
    (target / "models.md").write_text(table)
    (target / "models.svg").write_text(report.picture(record))
    print(f"\n{table}\nwritten to {target}: models.json, models.md, models.svg")
