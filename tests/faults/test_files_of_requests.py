"""Files that are sent to `POST /run`, when processes die, the disk is full, or the job is deleted meanwhile."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.engine import open_engine
from supervisor.system.spool import Label, Spool, SpoolFull
from tests.faults.surroundings import fill, small_disk
from tests.site_under_test import HANDLERS, MakeSite, Site, kill, wait_for
from tests.web.client import ADMIN, Admin, admin_of

MIB = 1 << 20
POOL = '[pools.read]\nhandler = "jobs:read"\nworkers = 1\n'
READ = f'''{HANDLERS}
def read(payload, ctx):
    """Opens the file, and reads it when payload["until"] is there."""
    record("start", ctx)
    with open(payload["path"], "rb") as file:
        while "until" in payload and not os.path.exists(payload["until"]):
            time.sleep(0.005)
        found = file.read()
    record("end", ctx)
    return {{"bytes": len(found), "media_type": payload["media_type"]}}
'''


@pytest.fixture
def served(make_site: MakeSite) -> Site:
    return make_site(POOL + ADMIN, READ)


def spool_of(site: Site) -> Path:
    return open_engine(site.url).database.folder / "spool"


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir()) if folder.exists() else []


def send(admin: Admin, body: bytes, path: str = "/run/read") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*admin.address, timeout=30)
    connection.request("POST", path, body, admin.bearer | {"Content-Type": "image/jpeg"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def begin(admin: Admin, declared: int, body: bytes) -> socket.socket:
    """The beginning of an upload."""
    made = admin.connect()
    head = f"POST /run/read HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {admin.token}\r\n"
    made.sendall(f"{head}Content-Type: image/jpeg\r\nContent-Length: {declared}\r\n\r\n".encode() + body)
    return made


@pytest.mark.sqlite
def test_a_file_is_handled_and_the_process_that_takes_it_in_does_not_grow_with_it(served: Site) -> None:
    supervisor = served.start()
    admin = admin_of(served, supervisor)
    small = send(admin, b"warm")[1]
    before = peak(admin.pid)
    large = send(admin, bytes(48 * MIB))[1]
    assert [one["result"]["bytes"] for one in (small, large)] == [4, 48 * MIB]
    assert small["result"]["media_type"] == "image/jpeg"
    assert peak(admin.pid) - before < 24 * MIB
    served.verdict(others=[small["id"], large["id"]])


def peak(pid: int) -> int:
    """The largest resident memory so far, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.sqlite
def test_what_is_too_large_is_refused_before_it_is_sent_and_the_connection_closed(served: Site) -> None:
    admin = admin_of(served, served.start())
    with begin(admin, 65 * MIB, b"x" * 1000) as made:
        found = b""
        while part := made.recv(1 << 16):
            found += part
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in found.lower()
    assert names(spool_of(served)) == []


@pytest.mark.sqlite
@pytest.mark.fault(107)
@pytest.mark.parametrize("whom", ["admin", "supervisor"])
def test_an_upload_that_a_killed_service_cuts_off_leaves_no_job_and_is_removed_later(served: Site, whom: str) -> None:
    supervisor = served.start()
    admin = admin_of(served, supervisor)
    folder = spool_of(served)
    with begin(admin, 20 * MIB, b"x" * 3 * MIB):
        wait_for(lambda: [name for name in names(folder) if name.endswith(".part")], "the beginning of the file")
        kill(admin.pid if whom == "admin" else supervisor.pid)
        wait_for(lambda: not alive(admin.pid), "the admin process to end")
    if whom == "supervisor":
        supervisor.wait()
        wait_for(lambda: not served.survivors(supervisor), "every process to end")
    left = names(folder)
    assert [name[32:] for name in left] == [".part"]
    long_ago = time.time() - 3600
    os.utime(folder / left[0], (long_ago, long_ago))
    if whom == "supervisor":
        supervisor = served.start()
    admin = admin_of(served, supervisor, other_than=admin.pid)
    wait_for(lambda: not names(folder), "the half file to be removed")
    assert served.rows("SELECT count(*) FROM jobs WHERE type = 'read'") == [(0,)]
    status, found = send(admin, b"x" * MIB)
    assert (status, found["result"]["bytes"]) == (200, MIB)
    served.verdict(others=[found["id"]])


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.sqlite
@pytest.mark.fault(107)
@pytest.mark.parametrize("place", ["before", "committed"])
def test_a_service_killed_at_the_insert_leaves_a_whole_file_and_a_job_or_none(served: Site, place: str) -> None:
    point = f"admin:insert_job.{place}=kill"
    supervisor = served.start(env=served.failpoints(point))
    admin = admin_of(served, supervisor)
    with begin(admin, MIB, b"x" * MIB):
        assert served.hit(point) == admin.pid
    body, label = names(spool_of(served))
    assert (spool_of(served) / body).stat().st_size == MIB
    assert label.endswith(".label")
    jobs = [job for (job,) in served.rows("SELECT id FROM jobs WHERE type = 'read'")]
    assert len(jobs) == (place == "committed")
    assert [served.done(job).result["bytes"] for job in jobs] == [MIB] * len(jobs)
    served.verdict(others=jobs)


@pytest.mark.sqlite
@pytest.mark.fault(109)
def test_a_handler_reads_to_the_end_although_its_job_and_the_file_are_deleted(served: Site, tmp_path: Path) -> None:
    supervisor = served.start()
    admin = admin_of(served, supervisor)
    until = tmp_path / "go"
    status, found = send(admin, b"x" * MIB, f"/run/read?wait=0&fields=%7B%22until%22%3A%22{until}%22%7D")
    assert status == 202
    job = found["id"]
    worker = served.running_pid(job)
    wait_for(lambda: opened(worker, spool_of(served)), "the handler to open its file")
    served.rows("DELETE FROM jobs WHERE id = ?", job)
    for name in names(spool_of(served)):
        os.utime(spool_of(served) / name, (1.0, 1.0))
    kill(admin.pid)  # the next one looks at once
    wait_for(lambda: not names(spool_of(served)), "the file to be removed")
    until.touch()
    wait_for(lambda: served.runs("end", job), "the handler to return")
    assert alive(worker)


def opened(pid: int, folder: Path) -> bool:
    return any(
        str(one.readlink()).startswith(str(folder)) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()
    )


@pytest.mark.fault(108)
def test_a_body_or_a_label_for_which_the_disk_has_no_room_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        spool = Spool(disk / "spool", 64 * MIB, 64 * MIB)
        with pytest.raises(SpoolFull, match="the disk of the spool has no room"):
            spool.begin(None).write(bytes(8 * MIB))
        assert names(disk / "spool") == []

        upload = spool.begin(None)
        upload.write(b"whole")
        whole = upload.finish(Label("", "", ""))
        assert whole.read_bytes() == b"whole"
        before = names(disk / "spool")

        upload = spool.begin(None)
        upload.write(b"x")
        filler = fill(disk)
        with pytest.raises(SpoolFull):
            upload.finish(Label("", "", ""))
        assert names(disk / "spool") == before
        filler.unlink()
