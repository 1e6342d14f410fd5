"""The command line of the benchmark on PostgreSQL, and the course of a run."""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import machine, processes
from bench.peers import install
from bench.postgres import measures, report
from bench.postgres.contestants import OURS, PEERS
from bench.record import Absence, Key, Record
from bench.trial import Trial
from tests.postgres_server import programs, server

RESULTS = Path(__file__).parents[1] / "results"
PARTIAL = Path(__file__).parents[1] / ".partial"
SETTINGS = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB", "max_wal_size": "2GB"}


def main() -> int:
    """Returns the exit code: 0, or 130 when interrupted (then nothing is written)."""
    options = _options()
    partial = options.quick or options.only or options.peers != "all"
    target = options.output or (PARTIAL if partial else RESULTS)
    if options.redraw:
        _write(target, Record.from_json((target / "postgres.json").read_text()))
        return 0
    processes.interrupt_on_stops()  # no orphans are swept up: the server is one
    folder = Path(tempfile.mkdtemp(prefix="supervisor-bench-"))
    try:
        _write(target, _run(options, folder))
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return 130
    finally:
        processes.ignore_stops()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run_postgres.py", description="Measures job-supervisor on PostgreSQL beside its peers, in one run."
    )
    parser.add_argument("--quick", action="store_true", help="one round with fewer jobs: a few minutes")
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=list(measures.MEASURES),
        help=f"one measurement (repeatable): {', '.join(measures.MEASURES)}",
    )
    parser.add_argument("--rounds", type=int, metavar="N", default=3, help="how often the contestants take turns")
    parser.add_argument("--peers", metavar="LIST", default="all", help=f"all, none, or some of {','.join(PEERS)}")
    parser.add_argument(
        "--held", type=float, metavar="SECONDS", default=60.0, help="how long a transaction is held open (default 60)"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="where the results go")
    parser.add_argument("--redraw", action="store_true", help="write the table and the picture of a run anew")
    options = parser.parse_args()
    chosen = [] if options.peers in ("all", "none") else options.peers.split(",")
    if unknown := set(chosen) - set(PEERS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    options.chosen = list(PEERS) if options.peers == "all" else chosen
    return options


def _run(options: argparse.Namespace, folder: Path) -> Record:
    record = Record()
    found = [OURS, *install.provided(PEERS, options.chosen, record)]
    versions = machine.versions(()) | {"PostgreSQL": _server_version()}
    for one in found:
        versions |= one.versions()
    rounds = 1 if options.quick else options.rounds
    held = min(options.held, 10.0) if options.quick else options.held
    record.about = {
        **machine.describe(folder),
        "rounds": rounds,
        "quick": options.quick,
        "held": held,
        "versions": versions,
    }
    began = time.monotonic()
    with server(SETTINGS) as running:
        course = measures.Course(running, folder, held, 0.25 if options.quick else 1.0)
        everything = measures.trials(course, found, options.only or ())
        for number in range(rounds):
            for figure, trial in everything if number % 2 == 0 else reversed(everything):
                _try(figure, trial, record)
    record.seconds["all"] = time.monotonic() - began
    return record


def _server_version() -> str:
    command = [str(programs() / "postgres"), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


def _try(figure: str, trial: Trial, record: Record) -> None:
    """One trial; what fails is named, and the others go on."""
    try:
        reading = trial.measure()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        print(f"  {trial.contestant}, {figure} {trial.case}: {why}", file=sys.stderr)
        record.miss(Absence(figure, trial.contestant, trial.case, why))
    else:
        for name, values in reading.items():
            record.add(Key(name, trial.contestant, trial.case), measures.UNITS[name], [float(v) for v in values])
        told = ", ".join(f"{name} {statistics.median(values):,.4g}" for name, values in reading.items())
        print(f"  {trial.contestant} {trial.case}: {told}", flush=True)


def _write(target: Path, record: Record) -> None:
    target.mkdir(parents=True, exist_ok=True)
    table = report.markdown(record)
    (target / "postgres.json").write_text(record.to_json())
    (target / "postgres.md").write_text(table)
    (target / "postgres.svg").write_text(report.picture(record))
    print(f"\n{table}\nwritten to {target}: postgres.json, postgres.md, postgres.svg")
