"""The command line of the benchmark on PostgreSQL, and the course of a run."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from bench import command, machine
from bench.peers import install
from bench.postgres import measures, report
from bench.postgres.contestants import OURS, PEERS
from bench.record import Absence, Record
from bench.trial import Trial
from tests.postgres_server import programs, server

SETTINGS = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB", "max_wal_size": "2GB"}


def main() -> int:
    """Returns the exit code, see `carry_out`."""
    parser = command.parser(
        "run_postgres.py",
        "Measures job-supervisor on PostgreSQL beside its peers, in one run.",
        quick="one round with fewer jobs: a few minutes",
        names=measures.MEASURES,
        peers=PEERS,
    )
    parser.add_argument(
        "--held",
        type=float,
        metavar="SECONDS",
        default=60.0,
        help="how long the transaction of held and steady stays open (default 60; 1800 if you have the time)",
    )
    results = command.Report("postgres", "postgres", report.markdown, report.picture)
    return command.carry_out(command.parsed(parser, PEERS), results, _run, adopt_orphans=False)  # the server is one


def _run(options: argparse.Namespace, folder: Path) -> Record:
    record = Record()
    found = [OURS, *install.provided(PEERS, options.chosen, record)]
    versions = machine.versions(()) | {"PostgreSQL": _server_version()}
    for one in found:
        versions |= one.versions()
    held = min(options.held, 10.0) if options.quick else options.held
    record.about = {
        **machine.describe(folder),
        "rounds": options.rounds,
        "quick": options.quick,
        "held": held,
        "versions": versions,
    }
    began = time.monotonic()
    with server(SETTINGS) as running:
        course = measures.Course(running, folder, held, 0.25 if options.quick else 1.0)
        everything = measures.trials(course, found, options.only or ())
        for number in range(options.rounds):
            for figure, trial in everything if number % 2 == 0 else reversed(everything):
                _try(figure, trial, record)
    record.seconds["all"] = time.monotonic() - began
    return record


def _server_version() -> str:
    program = [str(programs() / "postgres"), "--version"]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()[-1]


def _try(figure: str, trial: Trial, record: Record) -> None:
    """One trial; what fails is named, and the others go on."""
    try:
        reading = trial.measure()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        print(f"  {trial.contestant}, {figure} {trial.case}: {why}", file=sys.stderr)
        record.miss(Absence(figure, trial.contestant, trial.case, why))
    else:
        record.keep(trial.contestant, trial.case, reading, measures.UNITS)
        print(f"  {trial.contestant} {trial.case}: {command.words_of(reading)}", flush=True)
