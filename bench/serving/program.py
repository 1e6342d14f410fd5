"""The command line of the benchmark beside model servers, and the course of a run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import command, machine, processes
from bench.peers import install
from bench.record import Absence, Record
from bench.serving import measures, report
from bench.serving.contestants import OURS, PEERS, TITLES
from bench.serving.measures import Course, Take, Turn
from bench.trial import Reading


def main() -> int:
    """Returns the exit code, see `carry_out`."""
    parser = command.parser(
        "run_models.py",
        "Serves a model with job-supervisor and with its peers, in one run.",
        quick="one round with fewer pictures: a few minutes",
        names=measures.MEASURES,
        peers=PEERS,
    )
    command.add_scratch(parser)
    results = command.Report("models", "models", report.markdown, report.picture)
    return command.carry_out(command.parsed(parser, PEERS), results, _run)


def _run(options: argparse.Namespace, folder: Path) -> Record:
    record = Record()
    found = [*OURS.values(), *install.provided(PEERS, options.chosen, record)]
    versions = machine.versions(())
    for one in found:
        versions |= one.versions()
        if install.REDIS in one.needs:
            versions["Redis"] = install.redis_version()
    course = Course(folder, options.quick)
    record.about = {
        **machine.describe(folder),
        "rounds": options.rounds,
        "quick": options.quick,
        "half load": round(course.half, 1),
        "versions": versions,
    }
    began = time.monotonic()
    everything = measures.visits(course, found, Take(options.only or (), lambda figure, values: None))
    for number in range(options.rounds):
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
    record.keep(turn.contestant, turn.case, reading, measures.UNITS)
    print(f"  {TITLES[turn.contestant]}, {turn.case}: {command.words_of(reading)}", flush=True)
