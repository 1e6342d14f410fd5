"""What a value of SUPERVISOR_FAILPOINTS means, and that a mistake in it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.system import failpoints
from supervisor.system.channel import Channel
from supervisor.system.failpoints import parse
from tests.armed import armed

MISTAKES = ["set_up", "=kill", "boss:x=kill", "x=explode", "x=kill@0", "x=fail:", "x=fail:busy*0", "x=fail:busy@2%0.5"]


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is not a fail-point"):
        parse(text)


def reached(place: str, times: int) -> list[bool]:
    """At which of so many times of passing it fails."""
    failed = []
    for _ in range(times):
        try:
            failpoints.reach(place)
        except OSError:
            failed.append(True)
        else:
            failed.append(False)
    return failed


@pytest.mark.parametrize(
    ("when", "failed"), [("", "x---"), ("@3", "--x-"), ("*2", "xx--"), ("@2*2", "-xx-"), ("%1", "xxxx")]
)
def test_a_place_fails_at_its_times_of_passing(when: str, failed: str) -> None:
    with armed(f"set_up=fail:EAGAIN{when}"):
        assert reached("set_up", 4) == [sign == "x" for sign in failed]


def test_what_fails_by_chance_fails_about_that_often_and_the_same_way_for_a_seed() -> None:
    seen = []
    for seed in (1, 1, 2):
        with armed(f"set_up=fail:EIO%0.25;seed={seed}"):
            seen.append(reached("set_up", 2000))
    assert seen[0] == seen[1] != seen[2]
    assert 400 < sum(seen[0]) < 600


def test_of_several_processes_one_alone_goes_through_a_point_with_once(tmp_path: Path) -> None:
    with armed(f"set_up=fail:EIO*2;once={tmp_path}"):
        assert reached("set_up", 3) == [True, True, False]
        failpoints.become("program")  # as another process would: its passing is counted from the beginning
        assert reached("set_up", 3) == [False, False, False]


def test_a_pattern_stands_for_many_places_and_meets_only_those_that_can_fail_so() -> None:
    with armed("*=fail:busy*9;fork_*=fail:EAGAIN*9"):
        assert reached("set_up", 1) == [False]
        assert reached("fork_worker.before", 1) == [True]
        with pytest.raises(ZeroDivisionError):
            failpoints.reach("settle_done", {"busy": ZeroDivisionError()}.get)


def test_a_message_is_a_place_before_it_is_sent_and_when_it_has_arrived() -> None:
    ours, theirs = Channel.pair()
    with armed("channel.send.ack=fail:EAGAIN@2;channel.receive.ack=fail:EINTR"):
        for number in (1, 2):
            ours.send({"ack": number, "jobs": 0})
        assert theirs.receive() == []
        assert theirs.receive() == [({"ack": 1, "jobs": 0}, [])]
        ours.flush()
        assert theirs.receive() == [({"ack": 2, "jobs": 0}, [])]
    ours.close()
    theirs.close()
