"""Middleware in real workers: when it is set up and torn down."""

from __future__ import annotations

import json
from collections.abc import Callable

from supervisor import Status
from tests.site_under_test import HANDLERS, Site, wait_for

MakeSite = Callable[..., Site]
WORKING = (
    HANDLERS
    + """
class Noting:
    def __init__(self):
        self.made_in = os.getpid()
    def note(self, what):
        with open("notes", "a") as file:
            file.write(f"{what} {os.getpid()} {self.made_in == os.getpid()}\\n")
    def setup(self, worker):
        self.note(f"setup {worker.pool} {worker.name}")
    def around_run(self, call, ctx):
        self.note(f"run {ctx.job_id}")
        return call()
    def teardown(self, worker):
        self.note("teardown")
"""
)


def pool(middleware: str, more: str = "") -> str:
    return f'[pools.noop]\nhandler = "jobs:noop"\nworkers = 1\nmiddleware = {middleware}\n{more}'


def test_a_middleware_is_made_and_set_up_in_each_worker_and_torn_down_at_its_end(make_site: MakeSite) -> None:
    site = make_site(pool('["jobs:Noting"]'), WORKING)
    process = site.start()
    job = site.done(site.queue.enqueue("noop")).id
    pid = site.workers("noop")[0].pid
    site.stop(process)

    assert (site.folder / "notes").read_text().splitlines() == [
        f"setup noop noop-1 {pid} True",
        f"run {job} {pid} True",
        f"teardown {pid} True",
    ]


def test_one_that_cannot_be_imported_is_told_by_check_and_by_the_pool(make_site: MakeSite) -> None:
    site = make_site(pool('["jobs:Noting", "nowhere:Thing"]', '[pools.other]\nhandler = "jobs:noop"\n'), WORKING)

    ended = site.command("check", code=2)
    assert "pools.noop.middleware[1]: nowhere:Thing: importing it failed: ModuleNotFoundError" in ended.stderr
    program = make_site('[pools.noop]\ncommand = ["cat"]\nmiddleware = ["nowhere:Thing"]\n', WORKING)
    assert "pools.noop.middleware[0]: nowhere:Thing" in program.command("check", code=2).stderr
    site.start()
    waiting, done = site.queue.enqueue("noop"), site.queue.enqueue("other")
    site.done(done)
    problem = "nowhere:Thing: importing it failed"
    wait_for(lambda: problem in json.dumps(json.loads(site.command("status", "--json", code=None).stdout)))
    assert site.job(waiting).status is Status.PENDING


TELLING = (
    WORKING
    + """
class Telling:
    def on_failure(self, job, error):
        from supervisor import Queue
        with Queue(os.environ["SUPERVISOR_DATABASE"]) as queue:
            row = queue.job(job.id)
        with open("told", "a") as file:
            file.write(f"{job.attempt} {job.final} {row.status} {row.last_error}\\n")

def failing(payload, ctx):
    raise ValueError("no")
"""
)


def test_a_failure_is_told_before_it_is_committed_and_again_after_a_death_in_between(make_site: MakeSite) -> None:
    config = '[pools.failing]\nhandler = "jobs:failing"\nworkers = 1\nretry = { max_attempts = 1 }\n'
    site = make_site(f'{config}middleware = ["jobs:Telling"]\n', TELLING)
    job = site.queue.enqueue("failing")
    site.start(env=site.failpoints("worker:settle.before=kill"))
    site.hit("worker:settle.before=kill")
    wait_for(lambda: site.job(job).status is Status.FAILED)

    assert (site.folder / "told").read_text().splitlines() == ["1 True running None"] * 2
    assert (site.job(job).attempts, site.job(job).last_error) == (1, "ValueError: no")
