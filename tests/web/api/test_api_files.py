"""A request whose body is a file: the job has its path, and a refused request leaves nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from supervisor.admin import uploads
from supervisor.admin.access import AccessMiddleware
from supervisor.admin.keys import Keys
from supervisor.admin.uploads import GRACE
from supervisor.client.asynchronous import InTask
from supervisor.domain.errors import StoreError
from supervisor.system.spool import Label, Spooled
from tests.web.api.conftest import KEEP_DONE, LARGEST_FILE, LARGEST_SPOOL, Site, checked
from tests.web.application import http_scope

CAT = b"\xff\xd8 a cat" * 1000
MiB = 1 << 20


def sent(site: Site, body: Any = CAT, path: str = "/run/nsfw", key: str = "", **params: Any) -> httpx.Response:
    headers = {"Content-Type": "image/jpeg; name=cat"} | ({"Idempotency-Key": key} if key else {})
    return site.client.ask("POST", path, params={"wait": 0} | params, headers=headers, content=body)


def payloads(site: Site) -> list[dict[str, Any]]:
    return [json.loads(row[0]) for row in site.rows("SELECT payload FROM jobs ORDER BY id")]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def names(spool: Path) -> list[str]:
    return sorted(one.name for one in spool.iterdir()) if spool.exists() else []


def test_the_job_has_the_path_of_a_private_file_and_its_media_type(site: Site, spool: Path) -> None:
    assert checked(sent(site), 202) == {"id": 1, "status": "pending"}

    (payload,) = payloads(site)
    path = Path(payload["path"])
    assert payload == {"path": str(path), "media_type": "image/jpeg"}
    assert path.read_bytes() == CAT
    assert path.name.endswith(hashlib.sha256(CAT).hexdigest())
    assert [stat.S_IMODE(one.stat().st_mode) for one in (spool, path)] == [0o700, 0o600]
    token = path.name[:32]
    assert names(spool) == [path.name, f"{token}.label"]
    ((type_, key),) = site.rows("SELECT type, unique_key FROM jobs")
    assert json.loads((spool / f"{token}.label").read_bytes()) == {
        "database": site.engine.url,
        "type": "nsfw",
        "unique_key": key.decode(),
    }
    assert type_ == b"nsfw"


def test_further_fields_of_the_payload_come_with_the_address(site: Site) -> None:
    sent(site, fields='{"name": "cat", "sizes": [1]}', priority=7)

    (payload,) = payloads(site)
    assert {"name": "cat", "sizes": [1]}.items() <= payload.items()
    assert site.rows("SELECT priority FROM jobs") == [(7,)]


@pytest.mark.parametrize("fields", ["[]", "{", '{"path": "/etc/passwd"}'])
def test_fields_that_do_not_fit_are_refused_before_the_file_is_read(site: Site, spool: Path, fields: str) -> None:
    def body() -> Iterator[bytes]:
        raise AssertionError("it is read")
        yield b""

    assert checked(sent(site, _later(body()), fields=fields), 422)["field"] == "fields"
    with_json = site.client.ask("POST", "/run/nsfw", params={"fields": "{}"}, json={"a": 1})
    assert checked(with_json, 422)["field"] == "fields"
    assert names(spool) == []


async def _later(parts: Iterator[bytes]) -> Any:
    for part in parts:
        yield part


@pytest.mark.parametrize("parts", [[b""], [bytes([number]) * 700_000 for number in range(4)]], ids=["empty", "large"])
def test_files_that_come_in_pieces_are_whole(site: Site, parts: list[bytes]) -> None:
    sent(site, _later(iter(parts)))
    assert Path(payloads(site)[0]["path"]).read_bytes() == b"".join(parts)


@pytest.mark.parametrize("declared", [True, False])
def test_a_file_that_is_too_large_is_refused_and_nothing_is_left(site: Site, spool: Path, declared: bool) -> None:
    body = b"x" * (LARGEST_FILE + 1)
    problem = checked(sent(site, body if declared else _later(iter([body[:MiB], body[MiB:]]))), 413)

    assert problem["error"] == f"the body is too large; the limit is {LARGEST_FILE} bytes, max_file in [spool]"
    assert (names(spool), payloads(site)) == ([], [])


def test_a_folder_that_is_replaced_while_the_file_arrives_is_told(site: Site, spool: Path) -> None:
    def body() -> Iterator[bytes]:
        yield CAT * 200  # more than a piece: the file has begun
        spool.rename(spool.with_name("old"))
        spool.mkdir(mode=0o700)
        yield CAT

    problem = checked(sent(site, _later(body())), 503)
    assert problem["error"] == "the spool cannot be used: No such file or directory"
    assert (names(spool), payloads(site)) == ([], [])


@pytest.mark.parametrize("declared", [True, False])
def test_a_full_spool_is_told_and_has_room_again_when_files_have_gone(site: Site, spool: Path, declared: bool) -> None:
    body = b"x" * (LARGEST_SPOOL // 2 + 1)
    sent(site, body)
    before = names(spool)
    problem = checked(sent(site, body if declared else _later(iter([body]))), 507)

    assert problem["error"].startswith("the spool is full: ")
    assert names(spool) == before
    assert len(payloads(site)) == 1

    assert site.state.uploads is not None
    site.state.uploads.spool.remove(Spooled(before[0][:32], before[0]))
    assert checked(sent(site, body), 202) == {"id": 2, "status": "pending"}


def test_the_same_file_with_a_key_is_answered_with_the_same_job_and_another_is_refused(site: Site, spool: Path) -> None:
    assert checked(sent(site, key="k"), 202) == {"id": 1, "status": "pending"}
    before = names(spool)
    assert checked(sent(site, key="k"), 202) == {"id": 1, "status": "pending"}
    problem = checked(sent(site, b"a dog", key="k"), 422)
    assert problem["error"] == "idempotency_key: job 1 has it, with another payload"
    json_body = site.client.ask("POST", "/run/nsfw", json={}, headers={"Idempotency-Key": "k"})
    assert checked(json_body, 422)["field"] == "idempotency_key"
    assert names(spool) == before


def test_a_full_queue_keeps_no_file(site: Site, spool: Path) -> None:
    for _ in range(2):
        assert sent(site, path="/run/few").status_code == 202
    before = names(spool)
    checked(sent(site, path="/run/few"), 429)

    assert names(spool) == before


def test_an_uncertain_insert_keeps_the_file(site: Site, spool: Path) -> None:
    """The job may be there."""
    site.path.write_bytes(b"no database" * 1000)
    checked(sent(site), 503)

    assert len(names(spool)) == 2


def behind_the_guard(site: Site, method: str, kind: str, body: bytes = CAT) -> httpx.Response:
    guarded = AccessMiddleware(site.client.app, Keys(None, None, "session"), site.state.settings)
    headers = {"Content-Type": kind, "X-Requested-With": "supervisor"}

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://localhost") as client:
            return await client.request(method, "/run/nsfw", content=body, headers=headers)

    return site.client.run(ask())


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"])
def test_what_a_form_can_send_is_no_file(site: Site, spool: Path, kind: str) -> None:
    problem = checked(behind_the_guard(site, "POST", kind), 415)

    assert problem["error"] == "the body must be JSON, or for POST /run a file"
    assert names(spool) == []


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_another_method_is_refused(site: Site, method: str) -> None:
    answer = behind_the_guard(site, method, "application/json", b"{}")

    assert f"{method} is not allowed" in answer.json()["error"]
    assert answer.status_code == 405


def test_without_a_folder_files_are_refused(make_site: Callable[..., Site]) -> None:
    site = make_site()
    object.__setattr__(site.state, "uploads", None)
    problem = checked(sent(site), 415)

    assert "[spool]" in problem["hint"]


def test_a_folder_that_others_may_use_and_a_link_in_its_place_are_refused(
    site: Site, spool: Path, tmp_path: Path
) -> None:
    spool.mkdir()
    spool.chmod(0o755)
    assert f"{spool}: other users may use it; chmod 700 {spool}" in checked(sent(site), 503)["error"]
    assert names(spool) == []
    spool.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    spool.symlink_to(tmp_path / "elsewhere")
    assert f"{spool}: it is not a folder" in checked(sent(site), 503)["error"]


def test_a_client_that_goes_away_leaves_nothing(site: Site, spool: Path) -> None:
    seen: list[list[str]] = []

    async def ask() -> None:
        parts = [CAT * 200, b"more"]  # the first is more than a piece

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": True}
            seen.append(names(spool))
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        scope = http_scope("/run/nsfw", {"content-type": "image/jpeg", "host": "localhost"}, method="POST")
        await asyncio.wait_for(site.client.app(scope, receive, send), 20)  # type: ignore[arg-type]

    site.client.run(ask())
    assert [name[32:] for name in seen[0]] == [".part"]
    assert (names(spool), payloads(site)) == ([], [])


def age(spool: Path, seconds: float = GRACE + 1) -> None:
    for file in spool.iterdir() if spool.exists() else ():
        os.utime(file, times=(time.time() - seconds,) * 2)


class TestSweep:
    @pytest.fixture
    def look(self, site: Site, spool: Path) -> Callable[..., None]:
        """Looks at the files, after they have lain there for that many seconds."""
        kept = site.state.uploads
        assert kept is not None

        def look(old: float = GRACE + 1) -> None:
            age(spool, old)
            site.client.run(kept.sweep())

        return look

    def end(self, site: Site, job: int, status: str, ago: float = 0.0) -> None:
        site.rows("UPDATE jobs SET status = 'running' WHERE id = ?", job)
        site.rows("UPDATE jobs SET status = ? WHERE id = ?", status, job)
        site.rows("UPDATE jobs SET completed_at = ? WHERE id = ?", time.time() - ago, job)

    @pytest.mark.parametrize("status", ["pending", "failed", "cancelled", "quarantined", "done"])
    def test_a_file_stays_while_its_job_may_need_it(
        self, site: Site, spool: Path, look: Callable[..., None], status: str
    ) -> None:
        sent(site)
        sent(site, key="k")
        for job in (1, 2) if status != "pending" else ():
            self.end(site, job, status, 1e6 if status != "done" else KEEP_DONE / 2)
        look()
        assert len(names(spool)) == 4

    def test_it_goes_some_time_after_success(self, site: Site, spool: Path, look: Callable[..., None]) -> None:
        sent(site)
        self.end(site, 1, "done", KEEP_DONE + 1)
        look()
        assert names(spool) == []

    def test_it_goes_with_its_job_whoever_deletes_it(self, site: Site, spool: Path, look: Callable[..., None]) -> None:
        sent(site)
        sent(site, key="k")
        site.rows("DELETE FROM jobs WHERE id = 1")
        self.end(site, 2, "failed")
        look()
        assert len(names(spool)) == 2
        site.delete("/api/admin/jobs/2")
        look()
        assert names(spool) == []

    def test_what_was_just_written_stays_because_its_job_may_be_on_its_way(
        self, site: Site, spool: Path, look: Callable[..., None]
    ) -> None:
        sent(site)
        site.rows("DELETE FROM jobs")
        look(GRACE - 10)
        assert len(names(spool)) == 2

    def test_half_a_file_goes_when_it_is_old(self, site: Site, spool: Path, look: Callable[..., None]) -> None:
        assert site.state.uploads is not None
        upload = site.state.uploads.spool.begin(None)
        upload.write(CAT)
        look(GRACE - 10)
        assert names(spool) == [f"{upload.token}.part"]
        look()
        assert names(spool) == []
        upload.discard()

    def test_a_file_whose_job_is_being_inserted_stays_however_old_it_seems(
        self, site: Site, spool: Path, look: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The machine was asleep."""
        insert = InTask.insert

        async def late(*arguments: Any, **options: Any) -> Any:
            await asyncio.to_thread(age, spool)
            assert site.state.uploads is not None
            await site.state.uploads.sweep()
            return await insert(*arguments, **options)

        monkeypatch.setattr(InTask, "insert", late)
        sent(site)
        assert len(names(spool)) == 2
        site.rows("DELETE FROM jobs")
        look()
        assert names(spool) == []

    def test_a_label_alone_and_a_body_alone_go(self, site: Site, spool: Path, look: Callable[..., None]) -> None:
        """A power failure may undo one of two removals."""
        for _ in range(2):
            sent(site)
        site.rows("DELETE FROM jobs")
        first, _, _, last = names(spool)
        (spool / first).unlink()
        (spool / last).unlink()
        look()
        assert names(spool) == []

    def test_files_of_another_database_and_other_names_are_left_alone(
        self, site: Site, spool: Path, look: Callable[..., None]
    ) -> None:
        sent(site)
        site.rows("DELETE FROM jobs")
        label = next(spool.glob("*.label"))
        label.write_text(json.dumps(Label("sqlite:////other.db", "nsfw", "run:k")._asdict()))
        (spool / "notes.txt").write_text("keep")
        (spool / ("e" * 32 + ".part")).mkdir()
        look()
        assert len(names(spool)) == 4

    def test_without_files_nothing_is_queried(self, site: Site, look: Callable[..., None]) -> None:
        site.path.rename(site.path.with_name("elsewhere.db"))
        look()

    def test_no_file_goes_while_the_database_cannot_be_asked(
        self, site: Site, spool: Path, look: Callable[..., None]
    ) -> None:
        sent(site)
        site.path.rename(site.path.with_name("elsewhere.db"))
        with pytest.raises(StoreError):
            look()
        assert len(names(spool)) == 2

    def test_many_files_are_compared_a_part_at_a_time(
        self, site: Site, spool: Path, look: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(uploads, "_MOST", 2)
        monkeypatch.setattr(uploads, "_REST", 0.01)
        for _ in range(5):
            sent(site)
        site.rows("DELETE FROM jobs WHERE id <> 5")
        look()
        assert len(names(spool)) == 2
