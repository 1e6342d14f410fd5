"""The channel: what is sent arrives whole, and what cannot be sent or read costs itself alone."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from supervisor.system import channel
from supervisor.system.channel import Channel, Message


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = Channel.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are numbers here, no paths


def pumped(ours: Channel, theirs: Channel, count: int) -> list[Message]:
    """What arrives when both sides do their part in turns, as two loops would."""
    found: list[Message] = []
    for _ in range(10_000):
        ours.flush()
        found += [message for message, _ in theirs.receive()]
        if len(found) >= count:
            break
    return found


@pytest.mark.fault(63)
@pytest.mark.parametrize("size", [140_000, 200_000, 1 << 20, 10 << 20])
def test_a_message_of_any_size_arrives_whole_and_in_order(ends: tuple[Channel, Channel], size: int) -> None:
    ours, theirs = ends
    messages = [{"n": 0}, {"n": 1, "text": "x" * size}, {"n": 2}]
    for message in messages:
        ours.send(message)
    assert pumped(ours, theirs, 3) == messages
    assert not ours.closed
    assert not theirs.closed


@pytest.mark.parametrize("size", [1, 300_000])
def test_descriptors_come_with_their_message_also_in_many_pieces(ends: tuple[Channel, Channel], size: int) -> None:
    ours, theirs = ends
    reader, writer = os.pipe()
    ours.send({"n": 1})
    ours.send({"text": "x" * size}, (writer,))  # the channel's from now on
    received = []
    while len(received) < 2:
        ours.flush()
        received += theirs.receive()
    (_, none), (message, [copy]) = received
    assert (none, len(message["text"])) == ([], size)
    os.write(copy, b"y")
    assert os.read(reader, 1) == b"y"
    for descriptor in (reader, copy):
        os.close(descriptor)


def test_what_the_other_end_said_before_it_died_is_heard_and_then_its_end(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    ours.send({"never": "read"})
    theirs.send({"last": "words"})
    theirs.close()
    ours.send({"too": "late"})  # and fails, which must not hide what was said

    assert ours.hear() == [{"last": "words"}]
    assert ours.closed


def test_a_socket_that_takes_only_little_is_given_little(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    ours._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    message = {"text": "x" * 200_000}
    ours.send(message)
    assert pumped(ours, theirs, 1) == [message]


def test_a_message_beyond_all_bounds_is_refused_and_the_others_arrive(
    ends: tuple[Channel, Channel], capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = ends
    reader, writer = os.pipe()
    ours.send({"n": 1})
    ours.send({"text": "x" * (channel.LARGEST + 1)}, (writer,))
    ours.send({"n": 2})
    assert pumped(ours, theirs, 2) == [{"n": 1}, {"n": 2}]
    assert os.read(reader, 1) == b""  # its descriptor has been closed
    os.close(reader)
    assert "message_too_large" in "".join(capsys.readouterr())


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EPERM, errno.EMSGSIZE])
def test_an_error_in_the_middle_of_a_message_costs_that_message_only(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    ours, theirs = ends
    refuse_pieces(ours, monkeypatch, code, lambda data: b"poison" in data)
    ours.send({"n": 1})
    ours.send({"text": "x" * 100_000 + "poison" + "x" * 100_000})
    ours.send({"n": 2})
    assert pumped(ours, theirs, 2) == [{"n": 1}, {"n": 2}]
    assert not ours.closed


@pytest.mark.parametrize("code", [errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM])
def test_what_the_kernel_has_no_room_for_is_sent_later(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    ours, theirs = ends
    refusals = iter([True] * 3)
    refuse_pieces(ours, monkeypatch, code, lambda data: next(refusals, False))
    ours.send({"n": 1})
    ours.send({"n": 2})
    assert pumped(ours, theirs, 2) == [{"n": 1}, {"n": 2}]


def refuse_pieces(end: Channel, monkeypatch: pytest.MonkeyPatch, code: int, refused: Callable[[bytes], bool]) -> None:
    """Have the kernel refuse some datagrams of an end, as it does with little memory or small buffers."""

    class Refusing:
        def __init__(self, real: socket.socket) -> None:
            self._real = real

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

        def send(self, data: bytes) -> int:
            if refused(data):
                raise OSError(code, os.strerror(code))
            return self._real.send(data)

    monkeypatch.setattr(end, "_socket", Refusing(end._socket))


def test_an_end_whose_reader_is_gone_keeps_nothing_and_no_descriptors(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    before = open_descriptors()
    pipes = [os.pipe() for _ in range(20)]
    for _, writer in pipes:
        ours.send({"text": "x" * 100_000}, (writer,))
    theirs.close()
    ours.flush()
    ours.send({"too": "late"})
    assert ours._waiting == 0
    ours.close()
    pipes.append(os.pipe())
    ours.send({"n": 1}, pipes[-1][1:])  # nor one that is closed
    for reader, _ in pipes:
        assert os.read(reader, 1) == b""
        os.close(reader)
    assert open_descriptors() <= before


def test_an_end_that_nobody_reads_is_given_up_before_it_takes_all_memory(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ends
    monkeypatch.setattr(channel, "MOST_WAITING", 2 << 20)
    sent = 0
    while not ours.closed:
        ours.send({"n": sent, "text": "x" * 100_000})
        sent += 1
        assert sent < 100
    assert ours._waiting == 0
    numbers = [message["n"] for message in pumped(ours, theirs, sent)]
    assert numbers == list(range(len(numbers)))  # what had gone over, in order
    assert theirs.closed  # and so the other end knows


GARBAGE = {
    "no mark": b"{}",
    "no JSON": b"\3{",
    "no UTF-8": b"\3\xff\xfe",
    "no object": b"\3[1]",
    "deeper than a stack": b"\3" + b'{"a":' * 10_000,
    "a middle without a beginning": b"\0xxx",
    "a beginning without an end": b'\1{"a":',
    "longer than a datagram of ours": b"\3" + json.dumps({"x": "y" * 80_000}).encode(),
}


@pytest.mark.fault(63)
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_channel_costs_itself_and_its_descriptors_are_closed(
    ends: tuple[Channel, Channel], garbage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = ends
    ours.send({"n": 1})
    before = open_descriptors()
    socket.send_fds(ours._socket, [garbage], [0, 1])
    ours.send({"n": 2})
    assert [message for message, _ in theirs.receive()] == [{"n": 1}, {"n": 2}]
    assert open_descriptors() == before
    if garbage[0] != 0:
        assert "message_garbled" in "".join(capsys.readouterr())


@pytest.mark.fault(63)
def test_a_message_that_never_ends_is_dropped_and_the_next_one_is_read(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ends
    monkeypatch.setattr(channel, "LARGEST", 100_000)
    for number in range(4):
        ours._socket.send((b"\1" if number == 0 else b"\0") + b"x" * 50_000)
        assert theirs.receive() == []
    ours.send({"n": 1})
    assert theirs.hear() == [{"n": 1}]


def test_whoever_floods_the_channel_does_not_keep_its_reader(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            try:
                ours._socket.send(b'\3{"n":1}')
            except BlockingIOError:
                continue

    flooder = threading.Thread(target=flood)
    flooder.start()
    try:
        for _ in range(20):
            assert len(theirs.receive()) <= 1024
    finally:
        over.set()
        flooder.join()
