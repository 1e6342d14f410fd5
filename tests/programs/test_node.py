"""Programs in Node.js that run the jobs of a pool, with the package's `job-supervisor/handler`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.domain.job import Status
from tests.clients.node import EXAMPLE, PACKAGE, needs_node
from tests.programs.conftest import MakePair, Pair
from tests.stopwatch import Stopwatch

pytestmark = needs_node


def link_package(folder: Path) -> None:
    """The handler's part of the package needs no other."""
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "job-supervisor").symlink_to(PACKAGE)


def program(pair: MakePair, folder: Path, source: str, keys: str = "") -> Pair:
    """A pool's program that serves with this source."""
    if not (folder / "node_modules").exists():
        link_package(folder)
    (folder / "own.js").write_text(f'const {{ serve, Fail, Retry }} = require("job-supervisor/handler");\n{source}')
    return pair("node", "own.js", keys=keys)


def test_the_example_runs_as_its_configuration_shows(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "node", ignore=shutil.ignore_patterns("node_modules", "*.db*")))
    link_package(folder)
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


def test_the_example_reports_fails_sees_cancels_and_leaves(pair: MakePair, tmp_path: Path) -> None:
    link_package(tmp_path)
    shutil.copy(EXAMPLE / "slug.js", tmp_path)
    made = pair("node", "slug.js").set_up()
    done = made.run('{"text": "Ça va?"}')
    assert (done.status, done.progress) == (Status.DONE, 1.0)
    assert json.loads(done.result or "") == {"slug": "ca-va", "cancelled": False}
    bad = made.run("{}")
    assert (bad.status, bad.failure and bad.failure.message) == (Status.FAILED, "the payload has no text")
    made.board.cancelled = lambda job, token: True  # type: ignore[method-assign]
    assert json.loads(made.run('{"text": "x", "wait": 60000}').result or "")["cancelled"] is True
    watch = Stopwatch()
    made.tear_down()
    assert watch.seconds() < 4  # by itself, not by TERM
    assert made.losses == []


def test_every_end_of_a_handler_is_reported(pair: MakePair, tmp_path: Path) -> None:
    made = program(
        pair,
        tmp_path,
        """serve((payload, ctx) => {
          if (payload === "retry") throw new Retry("busy", { after: "30s" });
          if (payload === "soon") throw new Retry("busy", { after: 250 });
          if (payload === "never") throw new Retry("busy", { after: "later" });
          if (payload === "large") return "x".repeat(1 << 20);
          if (payload === "NaN") return { a: NaN };
          if (payload === "text") throw "a text";
          if (payload === "long") throw new RangeError("x".repeat(5e6));
          if (payload === "nothing") return;
          throw new TypeError(`no ${payload.a.b}`);
        });""",
    ).set_up()
    ends = {name: made.run(json.dumps(name)) for name in ("retry", "soon", "never", "large", "NaN", "text")}
    found = {name: (end.failure.kind, end.failure.message) for name, end in ends.items() if end.failure}
    assert found == {
        "retry": ("retry", "busy"),
        "soon": ("retry", "busy"),
        "never": ("exception", found["never"][1]),
        "large": ("result", "result: it has 1048578 bytes of JSON; the limit is 1048576 (1 MiB)"),
        "NaN": ("result", "result: it is not valid JSON: it contains NaN"),
        "text": ("exception", "a text"),
    }
    assert found["never"][1].startswith('InvalidJob: after: "later" is not a duration')
    assert (ends["retry"].delay, ends["soon"].delay) == (30, 0.25)
    assert made.run('"nothing"').status == Status.DONE
    long = made.run('"long"').failure
    assert long is not None
    assert long.message.startswith("RangeError: x")
    assert (long.traceback or "").startswith("RangeError: x")
    raised = made.run('{"a": null}').failure
    assert raised is not None
    assert raised.message.startswith("TypeError: Cannot read properties of null")
    assert "own.js:11" in (raised.traceback or "")
    assert made.losses == []


def test_a_class_sees_what_a_worker_sees_and_enqueues(pair: MakePair, tmp_path: Path) -> None:
    made = program(
        pair,
        tmp_path,
        """class Tagger {
          setup(ctx) { this.quality = ctx.options.quality; this.seen = [ctx.capabilities, ctx.device, ctx.jobId]; }
          async handle(payload, ctx) {
            ctx.extend("5m");
            ctx.progress(2, "all");
            ctx.emit({ piece: 1 });
            try { ctx.emit("x".repeat(20000)); return "was not refused"; } catch {}
            ctx.log("half way", { quality: this.quality, big: 1n });
            ctx.log.warning("careful", null);
            const options = { priority: 5, uniqueKey: "cat", requires: ["gpu"], maxAttempts: 2 };
            ctx.enqueue("size", { path: payload.path }, options);
            ctx.enqueue("later", [1], { at: new Date(5000), meta: { a: 1 } });
            for (const wrong of [["no type!"], ["mail", NaN], ["mail", {}, { meta: [] }]]) {
              try { ctx.enqueue(...wrong); return "was not refused"; } catch {}
            }
            const { jobId, type, attempt, timeout, idempotencyKey } = ctx;
            return { jobId, type, attempt, timeout, idempotencyKey, quality: this.quality, seen: this.seen };
          }
          teardown() { require("node:fs").writeFileSync("left", ""); }
        }
        serve(Tagger, { capabilities: ["gpu", "tag@2"] });""",
        'capabilities = ["gpu"]\noptions = { quality = 3 }\ntimeout = "7s"',
    ).set_up()
    emitted: list[bytes] = []
    made.board.emit = lambda run, data: emitted.append(data)  # type: ignore[method-assign]
    done = made.run('{"path": "cat.jpg"}')
    assert emitted == [b'{"piece":1}']
    assert done.failure is None, done.failure
    result = json.loads(done.result or "")
    assert isinstance(result.pop("idempotencyKey"), str)
    assert result == {
        "jobId": 1, "type": "tag", "attempt": 1, "timeout": 7000, "quality": 3, "seen": [["gpu"], None, 0],
    }  # fmt: skip
    size, later = done.children
    assert (size.type, size.payload, size.priority, size.requires) == ("size", '{"path":"cat.jpg"}', 5, "gpu")
    assert (size.unique_key, size.max_attempts, size.scheduled_at) == ("cat", 2, None)
    assert (later.type, later.payload, later.scheduled_at) == ("later", "[1]", 5.0)
    assert (size.extra, later.extra) == ({}, {"meta": '{"a":1}'})
    assert done.progress == 1
    made.tear_down()
    assert (tmp_path / "left").exists()
    assert made.losses == []


def test_what_a_job_leaves_behind_says_nothing_in_the_name_of_the_next(pair: MakePair, tmp_path: Path) -> None:
    made = program(
        pair,
        tmp_path,
        """let before;
        serve((payload, ctx) => {
          if (!before) { before = ctx; return "first"; }
          before.progress(0.9);
          before.extend("1h");
          let refused = false;
          try { before.enqueue("tag"); } catch { refused = true; }
          return refused;
        });""",
    ).set_up()
    made.run()
    second = made.run()
    assert (second.result, second.progress, second.children) == ("true", None, ())
    assert made.losses == []


def test_a_program_without_a_capability_of_its_pool_is_refused(pair: MakePair, tmp_path: Path) -> None:
    made = program(pair, tmp_path, 'serve(() => 1, { capabilities: ["cpu"] });', 'capabilities = ["gpu"]')
    with pytest.raises(Exception, match="gpu"):
        made.set_up()


def test_a_program_that_was_started_by_hand_says_how_it_is_meant(tmp_path: Path) -> None:
    link_package(tmp_path)
    shutil.copy(EXAMPLE / "slug.js", tmp_path)
    without = {name: value for name, value in os.environ.items() if name != "SUPERVISOR_REPLY_FD"}
    ran = subprocess.run(
        ["node", "slug.js"], cwd=tmp_path, env=without, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1
    assert "must be started by a pool" in ran.stderr
