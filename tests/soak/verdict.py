"""The oracle of a soak: the database against ledgers that the system never sees."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.site_under_test import Site

# Jobs that one fault may make run again: what a worker had run and not yet settled, in every worker.
REPEATS_A_FAULT = 6 * 64


@dataclass
class Ledger:
    """What handlers wrote outside the system: the tokens of each job's starts and ends."""

    starts: dict[int, list[int]] = field(default_factory=lambda: collections.defaultdict(list))
    ends: dict[int, list[int]] = field(default_factory=lambda: collections.defaultdict(list))

    @classmethod
    def read(cls, path: Path) -> Ledger:
        ledger = cls()
        for line in path.read_text().splitlines() if path.exists() else []:
            what, job, token = line.split()[:3]
            (ledger.starts if what == "start" else ledger.ends)[int(job)].append(int(token))
        return ledger

    @property
    def repeats(self) -> int:
        return sum(len(tokens) - 1 for tokens in self.starts.values())


def wrong(site: Site, acknowledged: Iterable[int], faults: int) -> list[str]:
    """Everything that must not be, in sentences; empty if nothing is."""
    ledger = Ledger.read(site.ledger)
    rows = site.rows("SELECT id, type, status, crashes, claim_token FROM jobs WHERE type <> 'never'")
    known = {row[0] for row in rows}
    found = []
    if lost := set(acknowledged) - known:
        found.append(f"{len(lost)} jobs vanished: {sorted(lost)[:10]}")
    if unexpected := set(ledger.starts) - known:
        found.append(f"{len(unexpected)} runs of jobs that do not exist: {sorted(unexpected)[:10]}")
    for job, kind, status, crashes, token in rows:
        if status not in ("done", "cancelled"):
            found.append(f"job {job} ({kind}) is {status}")
        if kind != "foreign":
            found += _wrong_with(job, status, crashes, token, ledger)
    if ledger.repeats > faults * REPEATS_A_FAULT:
        found.append(f"{ledger.repeats} repeats for {faults} faults")
    if [row[0] for row in site.rows("PRAGMA integrity_check")] != ["ok"]:
        found.append("the file is damaged")
    statuses = dict(collections.Counter(row[2] for row in rows))
    print(f"jobs {len(rows)} {statuses}, runs {sum(map(len, ledger.starts.values()))}, repeats {ledger.repeats}")
    return found


def _wrong_with(job: int, status: str, crashes: int, token: int, ledger: Ledger) -> list[str]:
    starts, ends = ledger.starts[job], ledger.ends[job]
    found = []
    if status == "done" and token not in ends:
        found.append(f"job {job} is done by claim {token}, but no run of that claim ended")
    if status == "done" and max(starts, default=0) > token:
        found.append(f"job {job} is done by claim {token}, and ran again as {max(starts)}")
    if len(set(starts)) != len(starts):
        found.append(f"job {job}: one claim was run twice: {starts}")
    if crashes > len(starts):
        found.append(f"job {job} was charged {crashes} crashes in {len(starts)} runs")
    return found
