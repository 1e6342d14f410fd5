"""The command line of the benchmarks, and the course of a run."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from bench import command, machine, processes, report
from bench.drawing import overview
from bench.measurements import MEASUREMENTS
from bench.peers import PEERS, install
from bench.record import Absence, Record
from bench.trial import Measurement, Session, Trial


def main() -> int:
    """Returns the exit code, see `carry_out`."""
    parser = command.parser(
        "run.py",
        "Measures job-supervisor beside its peers, in one run.",
        quick="fewer rounds, jobs and cases: a few minutes instead of twenty",
        names=MEASUREMENTS,
        peers=PEERS,
    )
    command.add_scratch(parser)
    results = command.Report("results", "overview", report.markdown, overview.draw)
    return command.carry_out(command.parsed(parser, PEERS), results, _run)


def _run(options: argparse.Namespace, folder: Path) -> Record:
    record = Record()
    peers = tuple(install.provided(PEERS, options.chosen, record))
    session = Session(peers, folder, options.quick)
    here = machine.describe(folder)
    if here["file system"] in ("tmpfs", "ramfs"):
        print("the databases are in memory, where syncing costs nothing: give a folder on a disk with --scratch")
    record.about = {
        **here,
        "rounds": options.rounds,
        "quick": options.quick,
        "versions": machine.versions(peers),
    }
    for name in options.only or MEASUREMENTS:
        began = time.monotonic()
        print(f"{name}: {MEASUREMENTS[name].TITLE}", flush=True)
        _measure(MEASUREMENTS[name], session, options.rounds, record)
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
        record.keep(trial.contestant, trial.case, reading, measurement.UNITS)
    finally:
        processes.sweep()
