"""What a stranger writes into a payload costs that job alone: no header, file or host beyond what it may name."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handlers import connections, download, mail
from handlers.options import PictureOptions
from supervisor import Fail, Retry
from tests.stopwatch import Stopwatch

OPTIONS: dict[str, Any] = {"host": "127.0.0.1", "port": 9, "sender": "app@example.org"}


def context(**more: Any) -> Any:
    return SimpleNamespace(options=OPTIONS | more, job_id=1)


# Mail


@pytest.mark.fault(78)
@pytest.mark.parametrize(
    "text",
    [
        "=?utf-8?q?Hello=0ABcc=3A_victim=40example=2Eorg?=",
        "=?utf-8?b?SGVsbG8NCkJjYzogdmljdGltQGV4YW1wbGUub3JnDQoNCmJvZHk=?=",
        "=?utf-8?q?=0D=0A=0D=0Aa_body?=",
        "=?utf-8?q?=3D=3Futf-8=3Fq=3F=3D0ABcc=3A_x=3F=3D?=",
        "=?x-unknown?q?=0ABcc?=",
        "=?utf-8?q?=E2=80=A8Bcc?=",
        "plain\nBcc: victim@example.org",
        "a \x00 b",
        "a \x1b[2J b",
    ],
)
def test_no_subject_brings_a_header_or_a_body_of_its_own(text: str) -> None:
    with pytest.raises(Fail, match="line break or another control character"):
        mail.send({"to": "a@example.org", "subject": text, "text": "x"}, context())


@pytest.mark.fault(78)
@pytest.mark.parametrize("address", ["=?utf-8?q?a=0ABcc=3A?=@example.org", "a\x00b@example.org", "=?utf-8?b?DQo=?=@x"])
def test_no_address_brings_a_header_of_its_own(address: str) -> None:
    with pytest.raises(Fail):
        mail.send({"to": address, "subject": "x", "text": "x"}, context())


def test_what_is_no_more_than_encoded_stays_a_subject() -> None:
    made = mail._message(
        {"to": "a@example.org", "subject": "=?utf-8?q?Gr=C3=BC=C3=9Fe?= an alle", "text": "x"},
        context(),
        mail.read(mail.MailOptions, OPTIONS),
    )
    assert made["Subject"] == "Grüße an alle"


@pytest.mark.fault(78)
def test_a_mail_has_no_more_recipients_than_the_pool_allows() -> None:
    many = [f"a{number}@example.org" for number in range(51)]
    with pytest.raises(Fail, match="51 recipients, but max_recipients allows only 50"):
        mail.send({"to": many, "subject": "x", "text": "x"}, context())
    with pytest.raises(Retry):  # nobody listens there
        mail.send({"to": many, "subject": "x", "text": "x"}, context(max_recipients=51))


@pytest.mark.fault(78)
def test_a_password_is_not_sent_in_the_clear_unless_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "secret")
    login = {"username": "app", "password_env": "MAIL_PASSWORD"}
    payload = {"to": "a@example.org", "subject": "x", "text": "x"}
    with pytest.raises(Fail, match="not encrypted"):
        mail.send(payload, context(**login))
    with pytest.raises(Retry):
        mail.send(payload, context(**login, allow_plain_login=True))


# Pictures


@pytest.mark.fault(78)
def test_a_file_of_kilobytes_never_asks_for_a_gigabyte(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    program = """
import resource, struct, sys, zlib
from handlers.options import PictureOptions
from handlers.picture import decode
from supervisor import Fail
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
def png(side, colour, bytes_of_pixel):
    deflate, row = zlib.compressobj(9), bytes(1 + side * bytes_of_pixel)
    data = b"".join(deflate.compress(row) for _ in range(side)) + deflate.flush()
    head = struct.pack(">IIBBBBB", side, side, 8, colour, 0, 0, 0)
    return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
most = PictureOptions().max_pixels
try:
    decode(png(8900, 0, 1), most)
except Fail as error:
    print(error)
print(decode(png(7000, 4, 2), most).size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    refused, size, megabytes = ran.stdout.splitlines()
    assert refused.startswith("too large: 8900 × 8900")
    assert size == "(7000, 7000)"
    assert int(megabytes) < 640


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "pictures"
    inside.mkdir()
    (inside / "cat.jpg").write_bytes(b"cat")
    (inside / "there.jpg").symlink_to(inside / "cat.jpg")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (tmp_path / "pictures-of-others").mkdir()
    (tmp_path / "pictures-of-others" / "a.jpg").write_bytes(b"secret")
    (inside / "out.jpg").symlink_to(tmp_path / "secret.jpg")
    (inside / "up").symlink_to(tmp_path)
    return inside


@pytest.mark.fault(78)
def test_a_path_stays_in_the_pools_folder_wherever_links_lead(folder: Path) -> None:
    from handlers import files, picture

    for path in ("cat.jpg", "./cat.jpg", str(folder / "cat.jpg"), "there.jpg"):
        assert files.read(files.inside(path, str(folder)), 100) == b"cat"
    outside = (
        "../secret.jpg",
        "out.jpg",
        "up/secret.jpg",
        "/etc/passwd",
        "",
        ".",
        "../pictures-of-others/a.jpg",
        "a\0b",
    )
    for path in outside:
        with pytest.raises(Fail):
            picture.load({"path": path}, PictureOptions(root=str(folder)))


# Downloads


class Host:
    """A server that counts who connects, and answers what it is told."""

    def __init__(self, address: str, answer: bytes = b"", *, pause: float = 0.0) -> None:
        self.connections = 0
        self._answer, self._pause = answer, pause
        self._listening = socket.create_server((address, 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                made, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with made:
                try:
                    made.recv(65536)
                    for byte in self._answer if self._pause else ():
                        made.sendall(bytes([byte]))
                        time.sleep(self._pause)
                    made.sendall(b"" if self._pause else self._answer)
                except OSError:
                    continue

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def private() -> Iterator[Host]:
    host = Host("127.0.0.2", b"HTTP/1.0 200 OK\r\n\r\nsecret")
    yield host
    host.close()


PUBLIC_ONLY = PictureOptions(allow_urls=True, url_timeout=5)


@pytest.mark.fault(78)
@pytest.mark.parametrize("name", ["127.0.0.2", "[::ffff:127.0.0.2]", "2130706434", "0x7f.0.0.2", "127.2"])
def test_not_even_a_connection_is_made_to_a_private_address(private: Host, name: str) -> None:
    with pytest.raises((Fail, Retry)):
        download.fetch(f"http://{name}:{private.port}/x", PUBLIC_ONLY)
    assert private.connections == 0


def names(monkeypatch: pytest.MonkeyPatch, **known: list[str]) -> None:
    """What the resolver says; 127.0.0.1 counts as public."""

    def look_up(host: str, port: int, **more: Any) -> list[Any]:
        addresses = known.get(host.partition(".")[0], [host])
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(connections, "_is_public", lambda address: address == "127.0.0.1")


@pytest.mark.fault(78)
def test_a_redirect_is_judged_like_the_first_address(private: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, public=["127.0.0.1"], hidden=["127.0.0.2"])
    location = f"http://hidden.example:{private.port}/".encode()
    first = Host("127.0.0.1", b"HTTP/1.0 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(Fail, match=r"hidden\.example is not a public address"):
        download.fetch(f"http://public.example:{first.port}/", PUBLIC_ONLY)
    assert (first.connections, private.connections) == (1, 0)
    first.close()


@pytest.mark.fault(78)
def test_a_name_with_one_private_address_is_refused_whole(private: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, mixed=["127.0.0.1", "127.0.0.2"])
    with pytest.raises(Fail, match=r"mixed\.example is not a public address"):
        download.fetch(f"http://mixed.example:{private.port}/", PUBLIC_ONLY)
    assert private.connections == 0


@pytest.mark.fault(78)
def test_a_head_that_comes_byte_by_byte_ends_at_the_deadline() -> None:
    slow = Host("127.0.0.1", b"HTTP/1.0 200 OK\r\nX-Long: " + b"x" * 500, pause=0.05)
    watch = Stopwatch()
    with pytest.raises(Retry):
        download.fetch(f"http://127.0.0.1:{slow.port}/", PictureOptions(allow_private_hosts=True, url_timeout=0.5))
    assert watch.seconds() < 5
    slow.close()


@pytest.mark.fault(78)
def test_a_look_up_that_hangs_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: leave.wait(30) and [])
    watch = Stopwatch()
    with pytest.raises(Retry, match="not resolved in time"):
        download.fetch("http://slow.example/", PictureOptions(url_timeout=0.3))
    leave.set()
    assert watch.seconds() < 5


def test_a_download_leaves_no_descriptor_and_no_thread(private: Host) -> None:
    trusting = PictureOptions(allow_private_hosts=True, url_timeout=5)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        assert download.fetch(f"http://127.0.0.2:{private.port}/", trusting) == b"secret"
    deadline = time.monotonic() + 5
    while len(list(Path("/proc/self/fd").iterdir())) > before or any("_Timer" in t.name for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
