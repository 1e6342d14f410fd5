"""A database on a network file system, where SQLite's locks and shared memory fail sooner or later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.network_disk import network_disk
from tests.faults.surroundings import command
from tests.site_under_test import Site, site

POOL = """
[pools.work]
handler = "jobs:work"
workers = 2
"""


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Site]:
    """An installation on a file system that the kernel calls fuse.sshfs."""
    with network_disk(tmp_path / "far") as folder, site(folder, POOL) as made:
        yield made


@pytest.mark.fault(35)
def test_a_network_file_system_under_the_database_is_refused(far: Site) -> None:
    job = far.queue.enqueue("work")
    said = command(far, "run", "--burst", code=3)
    assert said.count("\n") == 1
    assert "is on fuse.sshfs, a network file system" in said
    assert "--allow-network-file-system" in said
    assert far.job(job).attempts == 0
    assert not list(far.folder.rglob("owner-*"))


@pytest.mark.fault(35)
def test_a_network_file_system_can_be_insisted_on(far: Site) -> None:
    far.queue.enqueue_many("work", [{}] * 20)
    said = command(far, "run", "--burst", "--allow-network-file-system")
    assert "network_file_system" in said
    far.verdict()
