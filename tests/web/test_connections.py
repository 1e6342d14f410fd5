"""How long a client may take: the server in this process, with limits of a fraction of a second."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from supervisor.admin import server
from supervisor.admin.server import Server
from supervisor.system.channel import Channel
from supervisor.system.slot import SLOT_BYTES, Slot
from tests.stopwatch import Stopwatch

LIMITS = {"head": 0.6, "body": 1.2, "unread": 1.8, "linger": 1.5}
PATIENCE = 5.0  # seconds that a loaded machine may take longer
LOOK = 0.05
FAREWELL = 4  # seconds
MEGABYTE = 1 << 20


@dataclass
class Served:
    address: tuple[str, int]
    ours: Channel
    slot: Slot
    thread: threading.Thread

    def connect(self) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(10)
        made.connect(self.address)
        return made


async def application(scope: Any, receive: Any, send: Any) -> None:
    """/large answers 16 MiB, /stream never ends, /slow takes longer than any limit, /busy holds up the whole server;
    others echo the body.
    """
    body = b""
    if scope["path"] in ("/early", "/stream"):
        pass
    else:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if scope["path"] == "/file":  # stored piece by piece, as `uploads.py` notes it
                scope["state"]["pieces"] = len(body)
            more = message["more_body"]
    if scope["path"] == "/busy":
        time.sleep(0.5)  # the whole server
    if scope["path"] == "/slow":
        await asyncio.sleep(2.5)
    if scope["path"] == "/large":
        body = b"x" * 16 * MEGABYTE
    headers = [] if scope["path"] == "/stream" else [(b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close")] if scope["path"] == "/early" else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
        with contextlib.suppress(TimeoutError):
            if (await asyncio.wait_for(receive(), 0.1))["type"] == "http.disconnect":
                return
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(server, "LIMITS", LIMITS)
    monkeypatch.setattr(server, "MOST", 20)
    monkeypatch.setattr(server, "LOOK", LOOK)
    monkeypatch.setattr(server, "BEAT", LOOK)
    monkeypatch.setattr(server, "FAREWELL", FAREWELL)
    ours, theirs = Channel.pair()
    slot = Slot(memoryview(mmap.mmap(-1, SLOT_BYTES)))
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        loop = asyncio.new_event_loop()
        serving = Server(application, listening, theirs, slot, leave=lambda seconds: None)
        loop.run_until_complete(serving.serve(sockets=[listening]))
        for left in list(serving.server_state.connections):  # a process of its own would just be gone
            left.transport.abort()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    yield Served(listening.getsockname()[:2], ours, slot, thread)
    ours.close()
    thread.join(10)
    assert not thread.is_alive()
    theirs.close()


def ended_after(client: socket.socket, began: float) -> float:
    """Seconds from `began` until the server has cut the connection, whatever it says before."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - began


def answer(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return client.recv(65536)


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    "said",
    [
        b"no request\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused(served: Served, said: bytes) -> None:
    with served.connect() as client:
        head, _, body = answer(client, said).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert body
        assert client.recv(1) == b""


@pytest.mark.fault(77)
@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_end_is_not_waited_for(served: Served, said: bytes) -> None:
    began = time.monotonic()
    with served.connect() as client:
        client.sendall(said)
        assert LIMITS["head"] < ended_after(client, began) < LIMITS["head"] + PATIENCE


def test_a_second_head_is_waited_for_as_long_as_a_first(served: Served) -> None:
    with served.connect() as client:
        assert answer(client, GET).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        client.sendall(b"GET / HT")
        assert LIMITS["head"] < ended_after(client, began) < LIMITS["head"] + PATIENCE


def test_a_head_that_comes_letter_by_letter_is_not_waited_for_either(served: Served) -> None:
    cut = False
    with served.connect() as client:
        began = time.monotonic()
        while not cut and time.monotonic() - began < LIMITS["head"] + PATIENCE:
            try:
                client.sendall(b"x")
            except OSError:
                cut = True
            time.sleep(0.02)  # a letter now and then is what it is about
    assert cut


def test_a_client_that_asks_again_and_again_is_never_cut_off(served: Served) -> None:
    with served.connect() as client:
        began = time.monotonic()
        while time.monotonic() - began < LIMITS["unread"] + 0.5:
            assert answer(client, GET).startswith(b"HTTP/1.1 200")
            time.sleep(0.002)  # or it takes the CPU from the tests beside it


def test_a_body_that_does_not_end_is_not_waited_for(served: Served) -> None:
    began = time.monotonic()
    with served.connect() as client:
        client.sendall(POST % (b"", 10) + b"half")
        assert LIMITS["body"] < ended_after(client, began) < LIMITS["body"] + PATIENCE


def test_a_file_that_advances_may_take_its_time(served: Served) -> None:
    parts = 4
    began = time.monotonic()
    with served.connect() as client:
        client.sendall(POST % (b"file", parts))
        for _ in range(parts):
            time.sleep(LIMITS["body"] / 2)  # a client that is slow on purpose
            client.sendall(b"x")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert time.monotonic() - began > LIMITS["body"]


def test_an_answer_that_nobody_reads_is_not_kept(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        deadline = time.monotonic() + 10
        while not reset(client):
            assert time.monotonic() < deadline
            time.sleep(0.002)


def reset(client: socket.socket) -> bool:
    """Whether the server has given the connection up; nothing is read of what it has said."""
    return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def test_an_answer_that_takes_long_to_make_is_waited_for(served: Served) -> None:
    with served.connect() as client:
        assert answer(client, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_a_stream_that_is_read_goes_on(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        began = time.monotonic()
        while time.monotonic() - began < LIMITS["unread"] + 1:
            assert client.recv(65536)


def test_somebody_who_is_still_sending_hears_why_that_is_in_vain(served: Served) -> None:
    with served.connect() as client:
        client.sendall(POST % (b"early", 100 * MEGABYTE))
        for _ in range(40):
            client.sendall(b" " * 65536)
            time.sleep(0.002)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        assert ended_after(client, time.monotonic()) < LIMITS["linger"] + PATIENCE


@pytest.mark.fault(77)
def test_more_connections_than_there_is_room_for_are_told_to_come_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "head", 30.0)
    with ExitStack() as stack:
        clients = [stack.enter_context(served.connect()) for _ in range(20)]
        for client in clients:
            assert answer(client, GET).startswith(b"HTTP/1.1 200")
        with served.connect() as one_more:
            told = one_more.recv(65536)
            assert told.startswith(b"HTTP/1.1 503")
            assert told.endswith(b'\r\n\r\n{"error": "too many connections"}')
            length = int(told.split(b"content-length: ")[1].split(b"\r\n")[0])
            assert length == len(told.partition(b"\r\n\r\n")[2])
        clients.pop().close()
        clients.pop().close()

        def room() -> bool:
            with served.connect() as next_one:
                return answer(next_one, GET).startswith(b"HTTP/1.1 200")

        deadline = time.monotonic() + 5
        while not room():
            assert time.monotonic() < deadline


@pytest.mark.parametrize("told", ["leave", "closed"])
def test_it_ends_at_once_when_the_supervisor_says_so_or_is_gone(served: Served, told: str) -> None:
    with served.connect() as idle, served.connect() as half, served.connect() as stream:
        answer(idle, GET)
        half.sendall(b"GET / HT")
        assert answer(stream, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        began = time.monotonic()
        if told == "leave":
            served.ours.send({"leave": 0.0})
        else:
            served.ours.close()
        served.thread.join(10)
        assert time.monotonic() - began < FAREWELL - 1
        assert ended_after(idle, began) < FAREWELL


def test_at_the_end_what_was_sent_before_is_answered(served: Served) -> None:
    with served.connect() as busy, served.connect() as known:
        assert answer(known, GET)
        busy.sendall(b"GET /busy HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.2)  # meanwhile nothing is read
        with served.connect() as new:
            known.sendall(GET)
            new.sendall(GET)
            served.ours.send({"leave": 0.0})
            for client in (busy, known, new):
                assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
            began = time.monotonic()
            assert max(ended_after(client, began) for client in (busy, known, new)) < FAREWELL


def test_at_the_end_a_new_connection_has_a_moment_for_its_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LAST", FAREWELL - 2)
    with served.connect() as known, served.connect() as new:
        assert answer(known, GET)
        served.ours.send({"leave": 0.0})
        began = time.monotonic()
        for client in (new, known):
            assert answer(client, GET).startswith(b"HTTP/1.1 200 ")
        assert max(ended_after(client, began) for client in (new, known)) < FAREWELL


def test_it_waits_for_nobody_who_does_not_listen_longer_than_a_moment(served: Served) -> None:
    with served.connect() as unread:
        unread.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert unread.recv(100)
        watch = Stopwatch()
        served.ours.send({"leave": 0.0})
        served.thread.join(20)
        assert watch.seconds() < FAREWELL + 3


def test_its_beat_goes_on_while_it_serves_and_stops_while_it_hangs(served: Served) -> None:
    assert ("ready" in message for message, _ in served.ours.receive())
    before = served.slot.read().beat
    with served.connect() as client:
        answer(client, GET)
        deadline = time.monotonic() + 5
        while served.slot.read().beat == before:
            assert time.monotonic() < deadline
