"""Messages between the supervisor and its children."""

from __future__ import annotations

import os

from supervisor.system.channel import Channel


def test_messages_and_descriptors_arrive_in_order() -> None:
    ours, theirs = Channel.pair()
    reader, writer = os.pipe()
    ours.send({"n": 1})
    ours.send({"n": 2}, (writer,))
    (first, none), (second, [copy]) = theirs.receive()

    assert (first, none, second) == ({"n": 1}, [], {"n": 2})
    os.write(copy, b"x")
    assert os.read(reader, 1) == b"x"
    for descriptor in (reader, copy):  # the sent one is the channel's
        os.close(descriptor)
    ours.close()
    assert theirs.receive() == []
    assert theirs.closed
    theirs.close()


def test_what_the_other_end_said_before_it_died_is_heard() -> None:
    ours, theirs = Channel.pair()
    ours.send({"never": "read"})
    theirs.send({"last": "words"})
    theirs.close()
    ours.send({"too": "late"})  # and fails, which must not hide what was said

    assert [message for message, _ in ours.receive()] == [{"last": "words"}]
    assert ours.closed
    ours.close()
