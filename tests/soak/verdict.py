"""The oracle of a soak: what must hold for each job, wherever the faults fell."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from tests.ledger import Ledger, repeated
from tests.site_under_test import Site

# Jobs that one fault may make run again: what a worker had run and not yet settled, in every worker.
REPEATS_A_FAULT = 6 * 64
BAD = "bad"  # the type of the jobs that misbehave


def wrong(site: Site, acknowledged: Iterable[int], faults: int) -> list[str]:
    """Everything that must not be, in sentences; empty if nothing is."""
    ledger = Ledger(site.ledger, site.where)
    starts, ends, outcomes = ledger.tokens("start"), ledger.tokens("end"), ledger.outcomes()
    rows = site.rows("SELECT id, type, status, crashes, claim_token FROM jobs WHERE type <> 'never'")
    known = {row[0] for row in rows}
    found = [f"the file is damaged: {words}" for words in ledger.damage()]
    if lost := set(acknowledged) - known:
        found.append(f"{len(lost)} jobs vanished: {sorted(lost)[:10]}")
    if unexpected := set(starts) - known:
        found.append(f"{len(unexpected)} runs of jobs that do not exist: {sorted(unexpected)[:10]}")
    found += _wrong_with_bad([row for row in rows if row[1] == BAD], outcomes)
    innocent = [row for row in rows if row[1] != BAD]
    for job, kind, status, crashes, token in innocent:
        if status not in ("done", "cancelled"):
            found.append(f"job {job} ({kind}) is {status}")
        elif kind != "foreign" and outcomes[job] != 1:
            found.append(f"job {job} has {outcomes[job]} recorded outcomes")
        if kind != "foreign":
            found += _wrong_with(job, status, crashes, token, starts[job], ends[job])
    # Who reclaims the locks of workers that are stopped for longer cannot know what had ended: a whole hand is charged.
    expired = dict(site.rows("SELECT job_id, count(*) FROM job_errors WHERE kind = 'expired' GROUP BY job_id"))
    charged = sum(
        max(0, row[3] - len(set(starts[row[0]]) - set(ends[row[0]])) - expired.get(row[0], 0)) for row in innocent
    )
    # What had ended and was not committed may be charged once its worker has died so twice: by two faults, then.
    if charged > faults / 10:
        found.append(f"{charged} crashes were charged to runs that had ended")
    repeats = sum(len(tokens) - 1 for tokens in starts.values() if tokens)
    if repeats > faults * REPEATS_A_FAULT:
        found.append(f"{repeats} repeats for {faults} faults")
    statuses = dict(collections.Counter(row[2] for row in rows))
    print(f"jobs {len(rows)} {statuses}, runs {sum(map(len, starts.values()))}, repeats {repeats}")
    return found


def _wrong_with_bad(rows: list[tuple[Any, ...]], outcomes: Mapping[int, int]) -> list[str]:
    """They may end in any way, but each does, and once."""
    return [
        f"job {job} ({kind}) is {status} with {outcomes[job]} recorded outcomes"
        for job, kind, status, _, _ in rows
        if status in ("pending", "running") or outcomes[job] != 1
    ]


def _wrong_with(job: int, status: str, crashes: int, token: int, starts: list[int], ends: list[int]) -> list[str]:
    found = []
    if status == "done" and token not in ends:
        found.append(f"job {job} is done by claim {token}, but no run of that claim ended")
    if status == "done" and max(starts, default=0) > token:
        found.append(f"job {job} is done by claim {token}, and ran again as {max(starts)}")
    if repeated(starts):
        found.append(f"job {job}: one claim was run twice: {starts}")
    if crashes > len(starts):
        found.append(f"job {job} was charged {crashes} crashes in {len(starts)} runs")
    return found
