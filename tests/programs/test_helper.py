"""job_handler.py, the Python side of a program: in every interpreter that is here, whatever it is sent."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.domain.job import Claim, Status
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.settlement import Settlement
from supervisor.worker.context import Board
from supervisor.worker.environment import HELPER, of_program
from supervisor.worker.executor import Executor
from supervisor.worker.loader import load
from tests.programs.conftest import MakePair
from tests.samples import sampled
from tests.stopwatch import Stopwatch

ROOT = Path(__file__).parents[2]
SOURCE = HELPER / "job_handler.py"
VERSIONS = ["3.8", "3.14", "3.9", "3.10", "3.11", "3.12", "3.13"]  # the oldest and the newest first


@cache
def interpreter(version: str) -> str | None:
    """An interpreter of that version which works: on PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]
    for path in filter(None, found):
        ran = subprocess.run(
            [path, "-c", "import sys; print(sys.version)"], capture_output=True, text=True, check=False
        )
        if ran.stdout.startswith(f"{version}."):
            return path
    return None


HANDLER = """
import sys
from job_handler import Fail, Retry, serve

class Handler:
    def setup(self, ctx):
        self.count = 0
        ctx.progress(0.5)  # of no job
        print("set up with", ctx.options, ctx.job_id)

    async def handle(self, payload, ctx):
        self.count += 1
        what = payload.get("do")
        if what == "tell":
            ctx.progress(0.25, "a quarter")
            ctx.log.bind(a=1).warning("working", b={1, 2}, c=float("nan"))
            ctx.extend("2m")
            ctx.enqueue("next", [1], priority=3, requires=("gpu",))
            return [ctx.job_id, ctx.type, ctx.attempt, ctx.token, ctx.cancelled, list(ctx.capabilities), self.count]
        if what == "retry": raise Retry("busy", after="30s")
        if what == "fail": raise Fail("never")
        if what == "raise": raise ValueError("half a pair: \\ud800")
        if what == "raise long": raise ValueError("x" * 5_000_000)
        if what == "exit": sys.exit(3)
        if what == "nan": return float("nan")
        if what == "long": return "x" * (1 << 20)
        if what == "deep": return eval("[" * 80 + "]" * 80)
        if what == "surrogate": return "\\ud800"
        if what == "stdin": return sys.stdin.read()

serve(Handler(), capabilities=["cpu", "gpu"])
"""

FAILURES = {
    "retry": ("retry", "busy"),
    "fail": ("permanent", "never"),
    "raise": ("exception", r"ValueError: half a pair: \ud800"),
    "raise long": ("exception", "ValueError: xxx"),
    "exit": ("exit", "the handler called sys.exit(3)"),
    "nan": ("result", "result: Out of range float values are not JSON compliant"),
    "long": ("result", "result: its line has 10486"),
    "deep": ("result", "supervisor.InvalidJob: result: it is nested deeper than 64 levels"),
    "surrogate": ("result", "supervisor.InvalidJob: result: it contains a lone surrogate"),
}


@pytest.mark.parametrize("version", sampled(VERSIONS, quick=2))
def test_a_handler_is_served_by_every_interpreter(version: str, pair: MakePair, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    (tmp_path / "program.py").write_text(HANDLER)
    made = pair(python, "program.py", keys='capabilities = ["gpu"]\noptions = { x = 1 }').set_up()

    told = made.run('{"do": "tell"}')
    assert (told.status, told.progress) == (Status.DONE, 1.0)
    assert json.loads(told.result or "") == [1, "tag", 1, 0, False, ["gpu"], 1]
    assert [(job.type, job.payload, job.priority, job.requires) for job in told.children] == [("next", "[1]", 3, "gpu")]
    assert made.board.extended_to is not None
    assert 100 < made.board.extended_to - time.monotonic() < 121
    for what, (kind, message) in FAILURES.items():
        failure = made.run(json.dumps({"do": what})).failure
        assert failure is not None
        assert failure.kind == kind
        assert failure.message.startswith(message)
        assert ("in handle" in (failure.traceback or "")) is (what in ("retry", "raise", "raise long", "exit"))
    assert made.run('{"do": "stdin"}').result == '""'  # the requests are not the handler's
    assert made.losses == []


def test_the_file_is_plain_enough_for_the_oldest_of_them() -> None:
    source = SOURCE.read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
    imported = {
        name.name.partition(".")[0] if isinstance(node, ast.Import) else (node.module or "").partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    assert imported <= {*sys.stdlib_module_names}


def test_a_copy_beside_the_program_does_as_well(pair: MakePair, tmp_path: Path) -> None:
    shutil.copy(SOURCE, tmp_path)
    (tmp_path / "program.py").write_text("from job_handler import serve\nserve(lambda payload, ctx: payload['x'])\n")
    made = pair(sys.executable, "-E", "program.py").set_up()  # -E: PYTHONPATH counts for nothing

    assert made.run('{"x": [1]}').result == "[1]"


def test_started_by_hand_it_says_how_it_is_to_be_started() -> None:
    ran = subprocess.run([sys.executable, SOURCE, "os:getpid"], capture_output=True, text=True, check=False, timeout=20)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("SUPERVISOR_REPLY_FD is not set: this program must be started by a pool")


# As in a worker


def in_process(handler: str, payload: str) -> Settlement:
    loaded = load(handler)
    executor = Executor(loaded, Board(), JobPolicy(), options={})
    try:
        return executor.run(Claim(1, 1, "tag", payload, 1, None, 0))
    finally:
        loaded.teardown(executor.context())


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("noop", "{}"),
        ("echo", '{"a": "é"}'),
        ("progress", '{"steps": 3, "seconds": 0}'),
        ("sleep", '{"seconds": 0}'),
        ("asleep", '{"seconds": 0}'),
        ("flaky", "{}"),
        ("broken", '{"reason": "why not"}'),
        ("fan_out", '{"items": [1, 2]}'),
        ("fan_out", '{"items": 3}'),
        ("recurring", '{"every": 0}'),
    ],
)
def test_a_handler_made_for_workers_does_the_same_in_a_program(pair: MakePair, name: str, payload: str) -> None:
    handler = f"handlers.examples:{name}"
    made = pair(sys.executable, "-m", "job_handler", handler, keys=f'env = {{ PYTHONPATH = "{ROOT}" }}').set_up()

    served, here = made.run(payload), in_process(handler, payload)

    def essence(settlement: Settlement) -> Any:
        failure = settlement.failure
        children = [(c.type, c.payload, c.unique_key, c.scheduled_at is None) for c in settlement.children]
        told = failure and (failure.kind, failure.message)
        return settlement.status, settlement.result, settlement.progress, settlement.delay, told, children

    assert essence(served) == essence(here)


# Anything at all

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
JOBS = ANYTHING.map(lambda payload: {"type": "job", "payload": payload})
CANCELS = st.builds(
    lambda now, number: {"type": "cancel", "id": number, "now": now}, ANYTHING, st.integers(0, 5) | ANYTHING
)
OTHERS = st.dictionaries(st.sampled_from(["type", "id", "payload", "x"]), ANYTHING, max_size=4)
GARBAGE = st.sampled_from([b"garbage\n", b"[]\n", b"\xff\n", b"{\n", b"[" * 100_000 + b"\n", b'{"type":'])


def talk(folder: Path, lines: bytes) -> tuple[int, list[Any]]:
    """The exit code and the replies of a helper that is sent all this at once."""
    (folder / "mirror.py").write_text("def handle(payload, ctx):\n    return [payload]\n")
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-S", SOURCE, "mirror:handle"],
        env=of_program({"SUPERVISOR_REPLY_FD": ""}) | {"SUPERVISOR_REPLY_FD": str(writer)},
        cwd=folder,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(writer,),
    )
    os.close(writer)
    process.communicate(lines, timeout=20)
    with os.fdopen(reader, "rb") as replies:
        return process.returncode, [json.loads(line) for line in replies]


@settings(max_examples=25)
@given(requests=st.lists(JOBS | CANCELS | OTHERS, max_size=8), garbage=st.none() | GARBAGE)
def test_whatever_a_helper_is_sent_each_job_gets_one_last_word(
    tmp_path_factory: pytest.TempPathFactory, requests: list[dict[str, Any]], garbage: bytes | None
) -> None:
    jobs = [request for request in requests if request.get("type") == "job" and "payload" in request]
    for number, job in enumerate(jobs, 1):
        job["id"] = number
    hello = {"type": "hello", "protocol": 1}
    lines = b"".join(json.dumps(request).encode() + b"\n" for request in [hello, *requests])

    code, replies = talk(tmp_path_factory.getbasetemp(), lines + (b'{"type":"bye"}\n' if garbage is None else garbage))

    assert replies[0] == {"type": "hello", "protocol": 1}
    words = [(reply["id"], reply["type"], reply.get("value")) for reply in replies[1:]]
    assert [number for number, _, _ in words] == [*range(1, len(words) + 1)]
    for number, kind, value in words:
        assert kind == "error" or value == [jobs[number - 1]["payload"]]
    if garbage is None:
        assert (code, len(words)) == (0, len(jobs))
    else:
        assert code == 1  # no worker sends that: it leaves at once


def test_a_helper_whose_worker_is_gone_leaves_at_once(tmp_path: Path) -> None:
    watch = Stopwatch()
    code, replies = talk(tmp_path, b'{"type":"hello","protocol":1}\n')

    assert (code, len(replies)) == (1, 1)
    assert watch.seconds() < 10


def test_a_helper_that_meets_another_protocol_says_so(tmp_path: Path) -> None:
    assert talk(tmp_path, b'{"type":"hello","protocol":2}\n') == (1, [])
