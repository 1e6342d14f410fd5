"""The command line of the benchmarks, and the course of a run."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench import machine, processes, report
from bench.drawing import overview
from bench.measurements import MEASUREMENTS
from bench.peers import PEERS, install
from bench.record import Absence, Key, Record
from bench.trial import Measurement, Session, Trial

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PARTIAL = HERE / ".partial"
ROUNDS = 3


def main() -> int:
    """Returns the exit code: 0, or 130 when interrupted (then nothing is written)."""
    options = _options()
    target = options.output or (RESULTS if _is_whole(options) else PARTIAL)
    if options.redraw:
        _write(target, Record.from_json((target / "results.json").read_text()))
        return 0
    processes.adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="supervisor-bench-", dir=options.scratch))
    try:
        record = _run(options, folder)
        _write(target, record)
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return 130
    finally:
        processes.ignore_stops()
        processes.sweep()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description="Measures job-supervisor beside its peers, in one run."
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, jobs and cases: a few minutes instead of twenty"
    )
    parser.add_argument(
        "--only", metavar="NAME", action="append", help=f"one measurement (repeatable): {', '.join(MEASUREMENTS)}"
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"how often the contestants take turns (default {ROUNDS}, quick 1)"
    )
    parser.add_argument("--peers", metavar="LIST", default="all", help=f"all, none, or some of {','.join(PEERS)}")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where the results go (default bench/results; of a partial run bench/.partial)",
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="where the databases are made: a folder on a real disk (default: the system's temporary one)",
    )
    parser.add_argument(
        "--redraw", action="store_true", help="write table and picture anew from the results that are there"
    )
    options = parser.parse_args()
    unknown = set(options.only or ()) - set(MEASUREMENTS) | set(_named(options.peers)) - set(PEERS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds: at least 1")
    return options


def _named(peers: str) -> list[str]:
    if peers == "all":
        return list(PEERS)
    return [] if peers == "none" else peers.split(",")


def _is_whole(options: argparse.Namespace) -> bool:
    return not (options.quick or options.only) and options.peers == "all"


def _run(options: argparse.Namespace, folder: Path) -> Record:
    record = Record()
    peers = tuple(install.provided(PEERS, _named(options.peers), record))
    session = Session(peers, folder, options.quick)
    rounds = options.rounds or session.pick(ROUNDS, 1)
    here = machine.describe(folder)
    if here["file system"] in ("tmpfs", "ramfs"):
        print("the databases are in memory, where syncing costs nothing: give a folder on a disk with --scratch")
    record.about = {
        **here,
        "rounds": rounds,
        "quick": options.quick,
        "versions": machine.versions(peers),
    }
    for name in options.only or MEASUREMENTS:
        began = time.monotonic()
        print(f"{name}: {MEASUREMENTS[name].TITLE}", flush=True)
        _measure(MEASUREMENTS[name], session, rounds, record)
        record.seconds[name] = time.monotonic() - began
    return record


def _measure(measurement: Measurement, session: Session, rounds: int, record: Record) -> None:
    """The trials take turns, because machines drift; every other round goes backwards, because they also warm up."""
    with session.scratch() as folder:
        trials = measurement.trials(dataclasses.replace(session, folder=folder))
        least, most = measurement.ROUNDS
        for number in range(min(max(rounds, least), most)):
            for trial in trials if number % 2 == 0 else reversed(trials):
                _try(trial, measurement, record)


def _try(trial: Trial, measurement: Measurement, record: Record) -> None:
    """One trial; what fails is named, and the others go on."""
    try:
        reading = trial.measure()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        print(f"  {trial.contestant}, {trial.case}: {why}", file=sys.stderr)
        figure = next(iter(measurement.UNITS))
        record.miss(Absence(figure, trial.contestant, trial.case, why))
    else:
        for figure, values in reading.items():
            key = Key(figure, trial.contestant, trial.case)
            record.add(key, measurement.UNITS[figure], [float(value) for value in values])
    finally:
        processes.sweep()


def _write(target: Path, record: Record) -> None:
    target.mkdir(parents=True, exist_ok=True)
    table = report.markdown(record)
    (target / "results.json").write_text(record.to_json())
    (target / "results.md").write_text(table)
    (target / "overview.svg").write_text(overview.draw(record))
    print(f"\n{table}\nwritten to {target}: results.json, results.md, overview.svg")
