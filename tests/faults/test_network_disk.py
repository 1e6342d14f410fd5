"""A database on a network file system, where SQLite's locks and shared memory fail sooner or later."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.site_under_test import MakeSite, Site

# tests/cli/test_care.py shows how the kind is found in what the kernel says.
FAR = """
import sys
from supervisor.ops.doctor import machine
machine.kind_of = lambda folder, mounts: "fuse.sshfs"
from supervisor.cli import main
sys.exit(main())
"""


def run(site: Site, *more: str) -> tuple[int, str]:
    """The exit code of a burst on such a disk, and all that it says."""
    words = [sys.executable, "-c", FAR, "run", "--burst", "-c", str(site.config), *more]
    ended = subprocess.run(words, cwd=site.folder, capture_output=True, text=True, check=False, timeout=60)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.sqlite
@pytest.mark.fault(35)
def test_a_network_file_system_under_the_database_is_refused_unless_it_is_insisted_on(make_site: MakeSite) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\n')
    jobs = site.queue.enqueue_many("work", [{}] * 20)
    code, said = run(site)
    assert (code, said.count("\n")) == (3, 1)
    assert "is on fuse.sshfs, a network file system" in said
    assert "--allow-network-file-system" in said
    assert {site.job(job).attempts for job in jobs} == {0}
    assert not list(site.folder.rglob("owner-*"))
    code, said = run(site, "--allow-network-file-system")
    assert (code, "network_file_system" in said) == (0, True)
    site.verdict()
