"""What the command lines of the benchmarks share: their options, where results go, and how a run ends."""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench import processes
from bench.record import Record
from bench.trial import Reading

ROUNDS = 3
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Report:
    """The files of a run: `name`.json with its record, `name`.md and `picture`.svg."""

    name: str
    picture: str
    markdown: Callable[[Record], str]
    draw: Callable[[Record], str]

    def read(self, folder: Path) -> Record:
        return Record.from_json((folder / f"{self.name}.json").read_text())

    def write(self, folder: Path, record: Record) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        table = self.markdown(record)
        names = [f"{self.name}.json", f"{self.name}.md", f"{self.picture}.svg"]
        for name, text in zip(names, (record.to_json(), table, self.draw(record)), strict=True):
            (folder / name).write_text(text)
        print(f"\n{table}\nwritten to {folder}: {', '.join(names)}")


def parser(
    program: str, description: str, *, quick: str, names: Iterable[str], peers: Iterable[str]
) -> argparse.ArgumentParser:
    """With the options of every benchmark. `quick` says what a quick run is."""
    made = argparse.ArgumentParser(prog=f"bench/{program}", description=description)
    made.add_argument("--quick", action="store_true", help=quick)
    names = list(names)
    listed = ", ".join(names)
    made.add_argument(
        "--only", metavar="NAME", action="append", choices=names, help=f"one measurement (repeatable): {listed}"
    )
    made.add_argument(
        "--rounds", type=int, metavar="N", help=f"how often the contestants take turns (default {ROUNDS}, quick 1)"
    )
    made.add_argument("--peers", metavar="LIST", default="all", help=f"all, none, or some of {','.join(peers)}")
    where = "where the results go (default bench/results; of a partial run bench/.partial)"
    made.add_argument("--output", type=Path, metavar="DIR", help=where)
    made.add_argument(
        "--redraw", action="store_true", help="write table and picture anew from the results that are there"
    )
    made.set_defaults(scratch=None)
    return made


def add_scratch(parser: argparse.ArgumentParser) -> None:
    where = "where the databases are made: a folder on a real disk (default: the system's temporary one)"
    parser.add_argument("--scratch", type=Path, metavar="DIR", help=where)


def parsed(parser: argparse.ArgumentParser, peers: Iterable[str]) -> argparse.Namespace:
    """The options, with `chosen` peers, and with the rounds and the folder of the results decided."""
    options = parser.parse_args()
    everybody = list(peers)
    chosen = [] if options.peers in ("all", "none") else options.peers.split(",")
    if unknown := set(chosen) - set(everybody):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds: at least 1")
    whole = options.peers == "all" and not (options.quick or options.only)
    options.chosen = everybody if options.peers == "all" else chosen
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    options.output = options.output or _HERE / ("results" if whole else ".partial")
    return options


def carry_out(
    options: argparse.Namespace,
    report: Report,
    run: Callable[[argparse.Namespace, Path], Record],
    *,
    adopt_orphans: bool = True,
) -> int:
    """Run the benchmark and write its results, or only write them again. Returns the exit code: 0; 130 when
    interrupted, or 1 without what every contestant needs (then nothing is written).

    `run` gets an empty folder. `adopt_orphans`: end what contestants have left running.
    """
    if options.redraw:
        report.write(options.output, report.read(options.output))
        return 0
    if adopt_orphans:
        processes.adopt_orphans()
    else:
        processes.interrupt_on_stops()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.scratch))  # short: for sockets below it
    try:
        report.write(options.output, run(options, folder))
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return 130
    except processes.ProgramFailed as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        processes.ignore_stops()
        if adopt_orphans:
            processes.sweep()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def words_of(reading: Reading) -> str:
    """The medians, for a line while the benchmark runs."""
    return ", ".join(f"{name} {statistics.median(values):,.4g}" for name, values in reading.items())
