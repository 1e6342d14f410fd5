"""The bridge between a worker and a real program: nothing hangs, and every job has exactly one outcome."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.domain.job import Status
from supervisor.domain.settlement import Settlement
from supervisor.system import kernel, signals
from supervisor.worker import environment, subprocess_handler
from supervisor.worker.context import JobInterrupted
from supervisor.worker.handler import HandlerError
from supervisor.worker.protocol import Conversation, Message, Violation
from tests.programs.conftest import MakePair, Pair
from tests.site_under_test import alive, wait_for
from tests.stopwatch import Stopwatch
from tests.unit.test_protocol import CHATTER, JOB

HELLO = """printf '{"type":"hello","protocol":1}\\n' >&3; read hello; """
DONE = """printf '{"type":"result","id":1,"value":"well"}\\n' >&3; """
BYE = "read bye; exit 0"


def said(settlement: Settlement) -> str:
    assert settlement.failure is not None
    return settlement.failure.message


# What it finds


LOOK = """
import json, os, signal, sys
def say(**message): os.write(int(os.environ["SUPERVISOR_REPLY_FD"]), json.dumps(message).encode() + b"\\n")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
fds = [int(fd) for fd in os.listdir("/proc/self/fd")]
seen = dict(env=dict(os.environ), argv=sys.argv, cwd=os.getcwd(), session=os.getsid(0) == os.getpid(),
    fds=[fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")], blocked=status["SigBlk"].strip(),
    ignored=[n for n in (13, 15, 2, 10, 12) if int(status["SigIgn"], 16) >> (n - 1) & 1])
say(type="hello", protocol=1)
seen["hello"] = json.loads(sys.stdin.readline())
job = json.loads(sys.stdin.readline())
say(type="result", id=job["id"], value={**seen, "job": job})
sys.stdin.readline()
"""


def test_a_program_finds_little_around_it_and_nothing_of_ours(
    pair: MakePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the supervisor's")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    (tmp_path / "look.py").write_text(LOOK)
    made = pair(
        sys.executable,
        "-S",
        "look.py",
        "a b",
        "$HOME; rm",
        keys='env = { OWN = "1", OMP_NUM_THREADS = "2", PYTHONPATH = "lib" }\n'
        'capabilities = ["cpu"]\noptions = { x = [1], day = 2020-01-01 }',
    ).set_up()

    result = made.run('{"path": "é.jpg"}').result
    assert result is not None
    found = json.loads(result)

    assert found["env"] == {
        **{name: os.environ[name] for name in environment.INHERITED if name in os.environ},
        **environment.SINGLE_THREADED,
        "MKL_NUM_THREADS": "3",
        "OMP_NUM_THREADS": "2",
        "OWN": "1",
        "PYTHONPATH": f"lib:{environment.HELPER}",
        "SUPERVISOR_REPLY_FD": "3",
        **({"LC_CTYPE": "C.UTF-8"} if "LC_CTYPE" in found["env"] else {}),  # Python's own, in a C locale
    }
    assert found["argv"] == ["look.py", "a b", "$HOME; rm"]  # no shell has seen it
    assert found["cwd"] == str(tmp_path)
    assert (found["fds"], found["session"]) == ([0, 1, 2, 3], True)
    assert (int(found["blocked"], 16), found["ignored"]) == (0, [13])  # 13 by Python itself
    assert found["hello"] == {
        "type": "hello",
        "protocol": 1,
        "pool": "tag",
        "capabilities": ["cpu"],
        "options": {"x": [1], "day": "2020-01-01"},
        "device": None,
    }
    assert found["job"]["payload"] == {"path": "é.jpg"}
    assert "token" not in found["job"]


def test_a_folder_for_foreign_interpreters_holds_the_helper_alone() -> None:
    assert [path.name for path in environment.HELPER.iterdir() if path.name != "__pycache__"] == ["job_handler.py"]


# Its beginning


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["sh", "-c", "echo no model >&2; exit 4"], "it ended with exit code 4 before its hello: no model"),
        (["sh", "-c", "kill -SEGV $$"], "it was killed by SIGSEGV before its hello"),
        (["sh", "-c", "exec 3>&-; sleep 60"], "it closed its replies or its requests, and continued to run"),
        (["sh", "-c", "sleep 60"], "it has not said hello within startup_timeout, 300ms"),
        (["./no-interpreter"], "no-interpreter: No such file or directory"),
        (["./no-format"], "no-format: Exec format error"),
        (["./nothing"], "it cannot be started: there is no program"),
    ],
)
def test_a_program_that_does_not_come_up_says_why(
    pair: MakePair, tmp_path: Path, command: list[str], problem: str
) -> None:
    for name, text in {"no-interpreter": "#!/nowhere/python\n", "no-format": "hello\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only counted

    with pytest.raises(HandlerError) as caught:
        pair(*command, keys='startup_timeout = "300ms"' if "300ms" in problem else "").set_up()

    assert problem in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# Its jobs


def test_neither_side_waits_for_the_other_however_much_they_say(pair: MakePair) -> None:
    talks = f"""
    {HELLO}
    line='{{"type":"log","text":"'$(printf '%0900d' 0)'"}}'
    i=0; while [ $i -lt 3000 ]; do echo "$line" >&3; echo "$line"; echo "$line" >&2; i=$((i+1)); done
    read job; echo "${{#job}}" >&2
    {DONE}{BYE}
    """
    made = pair("sh", "-c", talks).set_up()
    time.sleep(0.2)  # let it fill its pipes: it does not read before it has said all

    settlement = made.run(json.dumps("x" * 1_000_000))

    assert (settlement.status, settlement.result) == (Status.DONE, '"well"')


def test_a_program_that_ends_while_others_hold_its_pipes_open_is_seen_to_have_ended(pair: MakePair) -> None:
    made = pair("sh", "-c", f"{HELLO} sleep 60 & read job; exit 7").set_up()

    settlement = made.run()

    assert settlement.failure is not None
    assert (settlement.crashes, settlement.failure.exit_code) == (1, 7)
    assert said(settlement) == made.losses[0] == "the program ended with exit code 7 while it was running the job"


def test_a_last_word_before_the_end_counts(pair: MakePair) -> None:
    made = pair("sh", "-c", f"{HELLO} read job; {DONE} exit 0").set_up()

    assert made.run().status is Status.DONE
    assert made.run().status is Status.PENDING  # released: the program had ended
    assert made.losses == ["between jobs the program ended with exit code 0"]
    assert made.leaves


def test_what_a_program_logs_between_jobs_is_no_job_s(
    pair: MakePair, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = """printf '{"type":"log","text":"LINE"}\\n' >&3; """
    first, between, second = (log.replace("LINE", line) for line in ("first", "between", "second"))
    program = (
        f"{HELLO} read job; {first}{DONE}{between} echo > ready; read job; {second}{DONE.replace(':1,', ':2,')}{BYE}"
    )
    made = pair("sh", "-c", program).set_up()

    assert made.run().status is Status.DONE
    wait_for((tmp_path / "ready").exists, "it to have logged")
    assert made.run().status is Status.DONE

    said = {
        line: text
        for text in capfd.readouterr().out.splitlines()
        for line in ("first", "between", "second")
        if line in text
    }
    assert ["job=" in said[line] for line in ("first", "between", "second")] == [True, False, True]


def test_what_a_program_prints_is_its_job_s_up_to_its_last_word(pair: MakePair, tmp_path: Path) -> None:
    program = (
        f"{HELLO} echo before; touch begun; read job; echo first >&2; {DONE} while [ ! -e go ]; do sleep 0.01; done; "
        f"echo between; touch ready; read job; echo second; {DONE.replace(':1,', ':2,')} {BYE}"
    )
    made = pair("sh", "-c", program).set_up()
    wait_for((tmp_path / "begun").exists, "it to have printed")
    logs = []
    for file in ("go", ""):
        usage = made.run().usage
        logs.append(usage and usage.log)
        if file:
            (tmp_path / file).touch()
            wait_for((tmp_path / "ready").exists, "it to have printed")

    assert logs == ["first\n", "second\n"]


def test_a_job_that_the_program_never_took_is_charged_nothing(pair: MakePair) -> None:
    made = pair("sh", "-c", f"{HELLO} sleep 0.3; exit 4").set_up()

    settlement = made.run()

    assert (settlement.status, settlement.attempts, settlement.crashes) == (Status.PENDING, -1, 0)
    assert made.losses == ["between jobs the program ended with exit code 4"]


def test_the_end_of_an_idle_program_is_noticed_at_once(pair: MakePair) -> None:
    made = pair("sh", "-c", f"{HELLO} exit 4").set_up()

    wait_for(lambda: made.leaves, "the bridge to ask for its worker's leave", patience=5)
    made.tear_down()
    assert made.losses == ["between jobs the program ended with exit code 4"]


def test_children_are_enqueued_with_the_result_or_the_job_fails(pair: MakePair) -> None:
    child = '{"type":"result","id":ID,"enqueue":[{"type":"TYPE","payload":[1],"priority":3}]}\\n'
    first, second = (child.replace("ID", n).replace("TYPE", t) for n, t in (("1", "next"), ("2", "Next!")))
    made = pair("sh", "-c", f"{HELLO} read job; printf '{first}' >&3; read job; printf '{second}' >&3; {BYE}").set_up()

    good, bad = made.run(), made.run()

    assert [(job.type, job.payload, job.priority) for job in good.children] == [("next", "[1]", 3)]
    assert bad.children == ()
    assert said(bad).startswith("a job that it enqueued was rejected: type: 'Next!' is not a valid type")


def test_a_payload_that_no_program_could_read_fails_for_good(pair: MakePair) -> None:
    made = pair("sh", "-c", f"{HELLO} read job; {DONE}{BYE}").set_up()

    assert made.run('{"x": NaN}').status is Status.FAILED
    assert made.run().status is Status.DONE


# Its end


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A context in which the job at hand is interrupted a while from now, as a worker's signal does."""
    monkeypatch.setattr(subprocess_handler, "LET_GO", 0.2)
    monkeypatch.setattr(subprocess_handler, "TERM_GRACE", 0.2)
    monkeypatch.setattr(subprocess_handler, "BYE_GRACE", 0.3)
    armed = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise JobInterrupted

    @contextlib.contextmanager
    def arm(seconds: float) -> Iterator[None]:
        nonlocal armed
        armed = True
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signals.INTERRUPT))
        timer.start()
        yield
        armed = False
        timer.cancel()
        timer.join()

    before = signal.signal(signals.INTERRUPT, interrupt)
    yield arm
    signal.signal(signals.INTERRUPT, before)


FLOOD = '{"type":"progress","id":1,"fraction":0}'
LETS_GO = 'read cancel; case $cancel in *true*) printf \'{"type":"error","id":1}\\n\' >&3;; esac; '


@pytest.mark.parametrize(
    ("program", "kept", "traceback"),
    [
        (f"read job; {LETS_GO}{BYE}", True, None),
        ("read job; sleep 60", False, "the program did not stop the job, and was killed by SIGTERM"),
        ("trap '' TERM; read job; while :; do sleep 60; done", False, "and was killed by SIGKILL"),
        ("trap 'exit 5' TERM; read job; while :; do read x; done", False, "and ended with exit code 5"),
        ("read job; read cancel; exit 6", False, "and ended with exit code 6"),
        ("read job; read cancel; echo garbage >&3; sleep 60", False, "and was killed by SIGTERM"),
        ("trap '' TERM; sleep 60", False, "and was killed by SIGKILL"),
        (f"read job; exec yes '{FLOOD}' >&3", False, "and was killed by SIGTERM"),
    ],
)
def test_an_interrupted_program_lets_go_or_is_ended(
    pair: MakePair, interrupting: Any, program: str, kept: bool, traceback: str | None
) -> None:
    made = pair("sh", "-c", HELLO + program).set_up()

    with interrupting(0.1):
        settlement = made.run()

    assert settlement.failure is not None
    assert (settlement.failure.kind, settlement.crashes) == ("timeout", 0)
    assert (settlement.failure.traceback or "").endswith(traceback or "")
    assert made.losses == []
    assert bool(made.leaves) is not kept


def children() -> set[psutil.Process]:
    """Of this process, which may have some that are not the test's."""
    return set(psutil.Process().children(recursive=True))


def test_a_program_that_does_not_leave_is_ended_with_all_that_it_started(pair: MakePair, interrupting: Any) -> None:
    before = children()
    made = pair("sh", "-c", f"{HELLO} trap '' TERM; sleep 60 & echo $! >&2; wait; sleep 60").set_up()
    family = children() - before

    assert 0.4 < made.tear_down() < 5
    wait_for(lambda: not any(alive(process) for process in family), "its family gone", patience=2)
    assert made.losses == []


def test_what_a_program_started_elsewhere_ends_before_its_worker_goes_on(
    pair: MakePair, interrupting: Any, request: pytest.FixtureRequest
) -> None:
    kernel.become_subreaper()  # as a worker is
    request.addfinalizer(lambda: kernel._prctl(kernel._PR_SET_CHILD_SUBREAPER, 0))
    before = children()
    made = pair("sh", "-c", f"{HELLO} setsid sh -c 'sleep 60 & sleep 60' & read job; sleep 60").set_up()
    family = wait_for(lambda: len(found := children() - before) == 4 and found, "the sleeps to begin")

    with interrupting(0.1):
        made.run()

    assert not [process for process in family if process.is_running()]


def test_a_program_that_leaves_when_told_is_not_waited_for(pair: MakePair) -> None:
    made = pair("sh", "-c", HELLO + BYE).set_up()

    assert made.tear_down() < 2
    assert made.losses == []


# Anything at all

ENDINGS = ["exit 0", "exit 3", "kill -9 $$", "exec 3>&-; sleep 60", "read x; read y", "exec 0<&-; sleep 60"]


def expected(data: bytes) -> Message | Violation | None:
    """What the job ends with, by the pure rules alone."""
    talk = Conversation()
    talk.hear(b'{"type":"hello","protocol":1}\n')
    talk.next()
    talk.hand_over([JOB], 1.0)
    talk.hear(data)
    try:
        while (word := talk.next()) is not None and word["type"] not in ("result", "error"):
            continue
    except Violation as violation:
        return violation
    return word


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=CHATTER, ending=st.sampled_from(ENDINGS))
def test_whatever_a_program_sends_and_however_it_ends_its_job_has_one_outcome(
    interrupting: Any, data: bytes, ending: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").write_bytes(data)
        made = Pair(Path(folder), ["sh", "-c", f"{HELLO} read job; cat data >&3; {ending}"]).set_up()
        watch = Stopwatch()
        with interrupting(1.0):
            settlement, word = made.run(), expected(data)
        if isinstance(word, Violation):
            assert said(settlement) == f"the program {word}; it was killed"
        elif word is not None and word["type"] == "result":
            assert settlement.status is Status.DONE or (settlement.failure and settlement.failure.kind == "result")
        elif word is not None:
            assert said(settlement) == word["message"]
        else:
            assert settlement.failure is not None
            assert settlement.failure.kind in ("crash", "protocol", "timeout")
        with interrupting(0.3):
            assert made.run().status is Status.PENDING  # released, a crash of its own, or interrupted
        made.tear_down()
        assert watch.seconds() < 10
        assert made.bridge._program.wait(0)
