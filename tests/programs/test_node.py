"""The example in Node.js does what its files say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.domain.job import Status
from tests.programs.conftest import MakePair

EXAMPLE = Path(__file__).parents[2] / "examples" / "node"

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")


@needs_node
def test_the_example_runs_as_its_configuration_shows(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "node"))
    enqueue, *rest = [
        line.removeprefix("#").strip().removeprefix("supervisor ")
        for line in (folder / "supervisor.toml").read_text().splitlines()
        if line.startswith("#     supervisor ")
    ]
    assert rest == ["run --burst", "jobs show 1"]
    for command in (f"{enqueue} --json", *rest[:1], "jobs show 1 --json"):
        ran = subprocess.run(
            ["sh", "-c", f'exec "$0" -m supervisor {command}', sys.executable],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name != "SUPERVISOR_CONFIG"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, (command, ran.stderr)
    shown = json.loads(ran.stdout)
    assert (shown.get("job", shown))["result"] == {"slug": "hello-world", "cancelled": False}


@needs_node
def test_a_handler_in_node_reports_fails_sees_cancels_and_leaves(pair: MakePair, tmp_path: Path) -> None:
    for path in EXAMPLE.glob("*.js"):
        shutil.copy(path, tmp_path)
    (tmp_path / "own.js").write_text(
        'const { serve, Retry } = require("./job-handler.js");\n'
        "serve((payload, job) => {\n"
        '  if (payload === "retry") throw new Retry("busy", "30s");\n'
        '  if (payload === "large") return "x".repeat(1 << 20);\n'
        "  throw new TypeError(`no ${payload.a.b}`);\n"
        "});\n"
    )
    made = pair("node", "slug.js").set_up()
    done = made.run('{"text": "Ça va?"}')
    assert (done.status, done.progress) == (Status.DONE, 1.0)
    assert json.loads(done.result or "") == {"slug": "ca-va", "cancelled": False}
    bad = made.run("{}")
    assert (bad.status, bad.failure and bad.failure.message) == (Status.FAILED, "the payload has no text")
    made.board.cancelled = lambda job, token: True  # type: ignore[method-assign]
    assert json.loads(made.run('{"text": "x", "wait": 60000}').result or "")["cancelled"] is True
    began = time.monotonic()
    made.tear_down()
    assert time.monotonic() - began < 4  # by itself, not by TERM

    other = pair("node", "own.js").set_up()
    retried, large, raised = (other.run(json.dumps(payload)).failure for payload in ("retry", "large", {"a": None}))
    assert retried is not None
    assert large is not None
    assert raised is not None
    assert (retried.kind, retried.message) == ("retry", "busy")
    assert (large.kind, large.message) == ("result", "the result is too large")
    assert raised.message.startswith("TypeError: Cannot read properties of null")
    assert "own.js:5" in (raised.traceback or "")
    assert (made.losses, other.losses) == ([], [])
