"""Whose jobs may be taken: judged with real processes that live, die and are somewhere else."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.store.base import Engine, GoneView, SupervisorRecord
from tests.store.kit import NOW, Desk, python, supervisor_record, until

# Holds the ownership of the supervisor named in its second argument until it is told to go.
OWNER = """
import sys
from supervisor.engine import open_engine

lock = open_engine(sys.argv[1]).ownership.claim(sys.argv[2])
print(lock.path, flush=True)
while (line := sys.stdin.readline()) == "keep\\n":
    print(lock.keep(), flush=True)
if line == "release\\n":
    lock.release()
    print("released", flush=True)
    sys.stdin.readline()
"""


class Owner:
    def __init__(self, engine: Engine) -> None:
        self.process = subprocess.Popen(
            python("-c", OWNER, engine.url, "s1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.path = self.process.stdout.readline().strip()
        self.record = supervisor_record("s1", engine, self.path, pid=self.process.pid, host=socket.gethostname())

    def tell(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def owner(desk: Desk) -> Iterator[Owner]:
    owner = Owner(desk.engine)
    yield owner
    owner.end()


def judged(desk: Desk, record: SupervisorRecord) -> bool | None:
    verdict = desk.maintenance.registry.owner_lives(record)
    assert desk.operations.registry.owner_lives(record) is verdict
    return verdict


def test_a_stopped_owner_lives(desk: Desk, owner: Owner) -> None:
    owner.process.send_signal(signal.SIGSTOP)
    try:
        assert judged(desk, owner.record) is True
    finally:
        owner.process.send_signal(signal.SIGCONT)


def test_a_killed_owner_is_dead_at_once(desk: Desk, owner: Owner) -> None:
    owner.process.kill()
    owner.process.wait()

    until(lambda: judged(desk, owner.record) is False, 2.0)


def test_an_owner_that_has_let_go_is_dead(desk: Desk, owner: Owner) -> None:
    assert owner.tell("release") == "released"

    assert judged(desk, owner.record) is False


def test_an_owner_whose_file_and_process_are_gone_is_dead(desk: Desk, engine: Engine) -> None:
    record = supervisor_record("s9", engine, str(engine.database.folder / "owner-s9.lock"), host=socket.gethostname())

    assert judged(desk, record) is False


@pytest.mark.parametrize("what", ["its file", "the folder"])
def test_an_owner_whose_file_somebody_deletes_lives_for_as_long_as_its_process(
    desk: Desk, owner: Owner, engine: Engine, what: str
) -> None:
    record = supervisor_record(
        "s1", engine, owner.path, pid=owner.process.pid, host=socket.gethostname(), started_at=time.time()
    )
    Path(owner.path).unlink()
    if what == "the folder":
        shutil.rmtree(engine.database.folder)
    assert judged(desk, record) is True
    owner.end()
    assert judged(desk, record) is False


def test_a_younger_process_with_the_number_of_an_owner_is_not_it(desk: Desk, owner: Owner, engine: Engine) -> None:
    hour = 3600.0
    record = supervisor_record(
        "s1", engine, owner.path, pid=owner.process.pid, host=socket.gethostname(), started_at=time.time() - hour
    )
    Path(owner.path).unlink()
    assert judged(desk, record) is False


def test_an_owner_of_another_container_whose_file_is_gone_is_not_judged_dead(desk: Desk, engine: Engine) -> None:
    record = supervisor_record("s9", engine, str(engine.database.folder / "owner-s9.lock"), host="another")
    assert judged(desk, record) is (True if engine.ownership.lease_time else None)  # a lease has not ended


def test_an_owner_makes_its_file_again_when_somebody_has_deleted_it(desk: Desk, owner: Owner) -> None:
    for _ in range(2):
        shutil.rmtree(desk.engine.database.folder)
        assert owner.tell("keep") == "True"
        assert judged(desk, owner.record) is True
        assert owner.tell("keep") == "False"
    Path(owner.path).unlink()
    Path(owner.path).touch()  # somebody else's of its name
    assert owner.tell("keep") == "True"
    assert judged(desk, owner.record) is True
    owner.end()
    assert judged(desk, owner.record) is False


def test_an_owner_of_another_boot_of_this_machine_is_dead(desk: Desk, owner: Owner, engine: Engine) -> None:
    if not engine.ownership.machine_id:
        pytest.skip("this machine has no id")
    record = supervisor_record("s1", engine, owner.path, boot_id="another")
    desk.maintenance.registry.register(record)

    # With leases machines may be clones of each other: only the lease tells.
    assert judged(desk, record) is (engine.ownership.lease_time > 0)


def test_an_owner_on_another_machine_is_judged_by_its_lock_or_lease(desk: Desk, owner: Owner, engine: Engine) -> None:
    record = supervisor_record("s1", engine, owner.path, machine_id="another", boot_id="another")
    desk.maintenance.registry.register(record)

    assert judged(desk, record) is True


def test_forgetting_a_dead_supervisor_leaves_nothing_of_it(desk: Desk, owner: Owner) -> None:
    desk.maintenance.registry.register(owner.record)
    owner.end()

    desk.maintenance.registry.forget("s1", NOW)

    assert desk.maintenance.registry.supervisors() == []
    assert judged(desk, owner.record) is False
    assert not list(desk.engine.database.folder.glob("owner-*"))


def test_a_host_is_remembered_for_a_day_after_its_last_supervisor(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, peer, day = desk.maintenance.registry, desk.engine.maintenance(), 86400.0
    registry.register(supervisor_record("s1", desk.engine, "/nowhere", host="alpha", pid=11))
    registry.forget("s1", NOW)
    assert registry.gone(NOW + 1) == [GoneView("alpha", 11, NOW, stopped=True)]
    assert registry.gone(NOW + day + 1) == []

    record = supervisor_record("s2", desk.engine, "/nowhere", host="alpha", pid=12)
    registry.register(record)
    assert registry.gone(NOW) == []
    monkeypatch.setattr("supervisor.store.ownership.Ownership.lives", lambda self, owner: False)
    peer.registry.declare_dead(record)
    peer.registry.forget("s2", NOW)
    assert registry.gone(NOW) == [GoneView("alpha", 12, NOW, stopped=False)]
    peer.close()

    registry.register(supervisor_record("s3", desk.engine, "/nowhere", host="beta"))
    registry.forget("s3", NOW + day + 1)
    assert [one.host for one in registry.gone(NOW)] == ["beta"]  # the old row has been deleted
