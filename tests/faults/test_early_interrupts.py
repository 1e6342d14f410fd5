"""The time limit strikes in the instant in which a run begins: it is the run's, and never the worker's end."""

from __future__ import annotations

import pytest

from tests.faults.lone_worker import LoneWorker
from tests.site_under_test import MakeSite, wait_for

HANDLERS = """
import signal, sys
from ledger import record
from supervisor.system import signals
from supervisor.system.slot import Cancel

class Work:
    def setup(self, ctx):
        sys.settrace(self.trace)

    def trace(self, frame, event, argument):
        return self.strike if frame.f_code.co_qualname == "CurrentRun._begin" else None

    def strike(self, frame, event, argument):
        if event == "return" and frame.f_locals["claim"].type == "hit":
            slot, claim = frame.f_locals["self"]._parts.slot, frame.f_locals["claim"]
            slot.requests.cancel(claim.job_id, claim.token, Cancel.TIMEOUT)
            signal.raise_signal(signals.INTERRUPT)
        return self.strike

    def after_interrupt(self, ctx):
        pass  # nothing goes on

    def handle(self, payload, ctx):
        record("start", ctx)
        record("end", ctx)

    def handle_batch(self, payloads, ctx):
        return [self.handle(payload, job) for payload, job in zip(payloads, ctx.jobs)]
"""
POOL = '[pools.work]\nhandler = "jobs:Work"\ntypes = ["hit", "work"]\nworkers = 1\nretry = { max_attempts = 1 }\n'


@pytest.mark.fault(14)
def test_a_time_limit_in_the_instant_in_which_a_run_begins_is_that_runs(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    worker = LoneWorker(site)
    hit, behind = site.queue.enqueue("hit"), site.queue.enqueue("work")
    site.done(behind)
    failed = wait_for(lambda: site.job(hit).last_error, "the time limit to be recorded")
    assert "over its time limit" in failed
    assert worker.drain()[0] == 0
