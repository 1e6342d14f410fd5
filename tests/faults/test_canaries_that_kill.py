"""Code that kills its own template while it is tried is not accepted."""

from __future__ import annotations

import pytest

from tests.site_under_test import MakeSite

JOBS = """
import os

BALLAST = BYTES and bytearray(os.urandom(1 << 20)) * BYTES  # in the template, which takes longer to end

class Model:
    def setup(self, ctx):
        if WHERE == "setup":
            os.kill(os.getppid(), 9)

    def handle(self, payload, ctx):
        if WHERE == "canary" and not ctx.job_id:
            os.kill(os.getppid(), 9)
        return {"version": VERSION}

WHERE, VERSION = "", 1
"""
POOL = '[pools.model]\nhandler = "jobs:Model"\nworkers = 1\ncanary = { payload = {} }\n'


@pytest.mark.fault(98)
@pytest.mark.parametrize("where", ["canary", "setup"])
def test_code_that_kills_its_template_while_it_is_tried_is_not_accepted(make_site: MakeSite, where: str) -> None:
    site = make_site(POOL, JOBS.replace("BYTES", "0"))
    site.start()
    assert site.done(site.queue.enqueue("model", {})).result == {"version": 1}
    code = JOBS.replace("BYTES", "300").replace('WHERE, VERSION = "", 1', f'WHERE, VERSION = "{where}", 22')
    (site.folder / "jobs.py").write_text(code)
    told = site.command("reload", "--wait", "--timeout", "20s", code=None)
    assert told.returncode == 1, told.stdout
    assert "failed its" in told.stderr
    assert site.done(site.queue.enqueue("model", {})).result == {"version": 1}
