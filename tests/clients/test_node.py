"""The package for Node.js: its own tests, what it packs, and its jobs under a real supervisor."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import InvalidJob, Queue, Status
from supervisor.domain.enqueueing import new_job
from tests.clients.node import (
    EXAMPLE,
    INSTALLED,
    PACKAGE,
    PATIENCE,
    link_packages,
    needs_node,
    needs_packages,
    run,
    start,
)
from tests.docs.markdown import ROOT
from tests.site_under_test import Site, wait_for

POOLS = '[pools.noop]\nhandler = "jobs:noop"\nworkers = 1\n[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'


@needs_packages
def test_the_tests_of_the_package_pass() -> None:
    ran = subprocess.run(["npm", "test"], cwd=PACKAGE, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert re.search(r"^# pass [1-9]", ran.stdout, re.M), ran.stdout[-2000:]


@needs_packages
@pytest.mark.long
def test_what_is_packed_is_complete_and_works_beside_the_applications_better_sqlite3(tmp_path: Path) -> None:
    command = ["npm", "pack", "--json", "--pack-destination", str(tmp_path)]
    ran = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, timeout=PATIENCE, check=True)
    [packed] = json.loads(ran.stdout)
    expected = {path.name for end in ("*.js", "*.d.ts", "*.json", "README.md", "LICENSE") for path in PACKAGE.glob(end)}
    assert {file["path"] for file in packed["files"]} == expected - {"package-lock.json"}
    modules = tmp_path / "node_modules"
    modules.mkdir()
    (modules / "better-sqlite3").symlink_to(INSTALLED / "better-sqlite3")
    with tarfile.open(tmp_path / packed["filename"]) as archive:
        archive.extractall(modules, filter="data")
    (modules / "package").rename(modules / "job-supervisor")
    (tmp_path / "app.mjs").write_text(
        'import { Queue } from "job-supervisor";\n'
        'console.log(new Queue("app.db").enqueue("tag", { path: "cat.jpg" }));\n'
    )
    ran = subprocess.run(
        ["node", "app.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert Queue(f"sqlite:///{tmp_path}/app.db").job(int(ran.stdout)).payload == {"path": "cat.jpg"}


def test_the_package_has_the_version_and_the_licence_of_the_program() -> None:
    package = json.loads((PACKAGE / "package.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (package["version"], package["license"]) == (project["version"], project["license"])
    assert package.get("dependencies", {}) == {}


@needs_packages
def test_node_makes_the_tables_that_python_makes(tmp_path: Path) -> None:
    run('new Queue(words[0]).createTables(); console.log("null")', tmp_path / "node.db")
    Queue(f"sqlite:///{tmp_path}/python.db").create_tables()
    of_node, of_python = (everything(tmp_path / name) for name in ("node.db", "python.db"))
    assert of_node == of_python
    Queue(f"sqlite:///{tmp_path}/node.db").enqueue("tag")  # and Python has nothing to change there


def everything(path: Path) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        schema = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
        values = db.execute("SELECT key, value FROM job_meta WHERE key <> 'epoch' ORDER BY key").fetchall()
        epoch = db.execute("SELECT length(value) FROM job_meta WHERE key = 'epoch'").fetchall()
        return [schema, values, epoch, *db.execute("PRAGMA journal_mode"), *db.execute("PRAGMA integrity_check")]


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


CASES: list[tuple[Any, Any, dict[str, Any]]] = [
    *((type_, {}, {}) for type_ in ("tag", "a.b/C:d-e_9", "", "x" * 100, "x" * 101, "a b", "tag\n", "täg", None, 5)),
    *(("tag", payload, {}) for payload in (None, 0, "", [], {"a": ["é", "\u2028", "😀"]}, nested(64), nested(65))),
    *(("tag", payload, {}) for payload in ("x" * ((1 << 20) - 2), "x" * ((1 << 20) - 1), "ä" * (1 << 19))),
    *(("tag", {}, {"priority": value}) for value in (-100, 100, -101, 101, 0.5, "5", True, None)),
    *(("tag", {}, {"max_attempts": value}) for value in (1, 0, -1, 1_000_000, 1_000_001, "3", True, None)),
    *(("tag", {}, {"unique_key": value}) for value in ("a", "", "ä" * 1000, "😀" * 1000, "a" * 1001, "a\0b", 5, None)),
    *(("tag", {}, {"requires": value}) for value in ([], ["b", "a", "b"], "b, a  c", "", ["a b"], ["ä"], 5, [5], [""])),
    *(("tag", {}, {"requires": value}) for value in (["x" * 100], ["x" * 101], [f"{n:0100}" for n in range(10)])),
    *(
        ("tag", {}, {"meta": value})
        for value in ({}, {"a": 1}, [], "a", 5, None, {"a": "x" * 16384}, {"a": nested(64)})
    ),
    *(
        ("tag", {}, {"delay": value})
        for value in ("7d", "250ms", " 2h ", "10", "", "-1s", "1e3s", -1, True, "1s 2s", 1e300)
    ),
]


@needs_node
def test_node_accepts_what_python_accepts_and_refuses_the_same_arguments() -> None:
    camel = {"max_attempts": "maxAttempts", "unique_key": "uniqueKey"}
    asked = [[type_, payload, {camel.get(k, k): v for k, v in options.items()}] for type_, payload, options in CASES]
    code = """
        const { newJob } = require("./intake.js");
        const asked = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
        const said = asked.map(([type, payload, options]) => {
          try {
            const { now, scheduled_at, ...row } = newJob(type, payload, options);
            return { ...row, later: "delay" in options ? Math.round((scheduled_at - now) * 1000) : null };
          } catch (error) {
            return { refused: error.field };
          }
        });
        console.log(JSON.stringify(said));"""
    command = ["node", "-e", code]
    ran = subprocess.run(
        command, cwd=PACKAGE, input=json.dumps(asked), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    for case, of_node in zip(CASES, json.loads(ran.stdout), strict=True):
        assert of_node == of_python(camel, *case), repr(case)[:200]


def of_python(camel: dict[str, str], type_: Any, payload: Any, options: dict[str, Any]) -> dict[str, Any]:
    try:
        job = new_job(type_, payload, **options)
    except InvalidJob as error:
        return {"refused": camel.get(error.field, error.field)}
    # Which the package does not make.
    of_requests = ("max_waiting", "once", "durable", "awaited", "after", "on_failed", "on_duplicate")
    row = {name: value for name, value in job._asdict().items() if name not in ("scheduled_at", *of_requests)}
    later = {"7d": 604_800_000, "250ms": 250, " 2h ": 7_200_000}
    return {**row, "later": later[options["delay"]] if "delay" in options else None}


@needs_packages
def test_jobs_from_node_run_and_those_of_a_rolled_back_transaction_do_not(make_site: Callable[..., Site]) -> None:
    site = make_site(POOLS)
    site.start()
    said = run(
        """
        const db = new Database(words[0]);
        db.exec("CREATE TABLE pictures (path TEXT)");
        const queue = new Queue(db);
        const upload = db.transaction((path, fails) => {
          db.prepare("INSERT INTO pictures VALUES (?)").run(path);
          const ids = [queue.enqueue("work", { path }), ...queue.enqueueMany("noop", [1, 2, 3])];
          if (fails) throw new Error("rolled back");
          return ids;
        });
        try { upload("lost.jpg", true); } catch (error) { if (error.message !== "rolled back") throw error; }
        const ids = [...upload("cat.jpg", false), queue.enqueue("noop", {}, { priority: 5, meta: { a: 1 } })];
        (async () => {
          const jobs = await Promise.all(ids.map((id) => queue.wait(id, { timeout: "50s" })));
          console.log(JSON.stringify(jobs));
        })();""",
        site.database,
    )
    assert [job["status"] for job in said] == ["done"] * 5
    assert said[0]["payload"] == {"path": "cat.jpg"}
    assert set(said[0]["result"]) == {"pid"}
    assert [(job["id"],) for job in said] == site.rows("SELECT id FROM jobs WHERE type <> 'never' ORDER BY id")
    assert site.rows("SELECT path FROM pictures") == [("cat.jpg",)]


@needs_packages
def test_two_node_processes_with_the_same_keys_make_each_job_once(make_site: Callable[..., Site]) -> None:
    site = make_site(POOLS)
    site.start()
    code = """
        const queue = new Queue(words[0]);
        const put = [];
        for (let n = 0; n < 50; n++) put.push(queue.put("waits", {}, { uniqueKey: `key ${n}` }));
        console.log(JSON.stringify(put));"""
    pair = [start(code, site.database) for _ in range(2)]
    one, two = (json.loads(program.communicate(timeout=PATIENCE)[0]) for program in pair)
    assert [job["id"] for job in one] == [job["id"] for job in two]
    assert all(mine["isNew"] is not theirs["isNew"] for mine, theirs in zip(one, two, strict=True))
    assert site.rows("SELECT count(*) FROM jobs WHERE type = 'waits'") == [(50,)]


@needs_packages
@pytest.mark.parametrize("committed", [False, True])
def test_killed_in_a_transaction_node_leaves_all_of_it_or_nothing(
    make_site: Callable[..., Site], committed: bool
) -> None:
    site = make_site(POOLS)
    site.start()
    program = start(
        """
        const db = new Database(words[0]);
        const queue = new Queue(db);
        db.exec("BEGIN");
        const ids = [queue.enqueue("work", {}, { uniqueKey: "mine" }), ...queue.enqueueMany("work", [{}, {}])];
        if (words[1]) db.exec("COMMIT");
        console.log(JSON.stringify(ids));
        setInterval(() => {}, 1000);""",
        site.database,
        committed,
    )
    assert program.stdout is not None
    ids = json.loads(program.stdout.readline())
    program.send_signal(signal.SIGKILL)
    program.communicate()
    after = site.queue.enqueue("work", {}, unique_key="other")
    site.done(after)
    if committed:
        assert [site.done(job).status for job in ids] == [Status.DONE] * 3
    assert site.rows("SELECT count(*) FROM jobs WHERE type = 'work'") == [(4 if committed else 1,)]


@needs_packages
def test_broken_json_of_a_plain_insert_fails_as_documented(make_site: Callable[..., Site]) -> None:
    site = make_site(POOLS)
    site.start()
    said = run(
        """
        const db = new Database(words[0], { timeout: 5000 });
        const insert = (value) => db.prepare(`INSERT INTO jobs(type, payload) VALUES ('noop', ${value})`);
        let refused;
        try { insert("json(?)").run('{"path":'); } catch (error) { refused = error.message; }
        const id = insert("?").run('{"path":').lastInsertRowid;
        new Queue(db).wait(id, { timeout: "50s" }).then((job) => console.log(JSON.stringify({ ...job, refused })));""",
        site.database,
    )
    assert said["refused"] == "malformed JSON"
    assert (said["status"], said["attempts"], said["payload"]) == ("failed", 1, '{"path":')
    assert site.rows("SELECT kind FROM job_errors WHERE job_id = ?", said["id"]) == [("payload",)]


@contextlib.contextmanager
def running(folder: Path, *command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    with (folder / "log").open("ab") as log:
        inherited = {name: value for name, value in os.environ.items() if name != "SUPERVISOR_CONFIG"}
        process = subprocess.Popen(
            command, cwd=folder, env=inherited | environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


@needs_packages
def test_the_example_takes_an_upload_and_gives_its_result(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "node", ignore=shutil.ignore_patterns("node_modules", "*.db*")))
    link_packages(folder)
    with running(folder, "node", "app.js", PORT="0") as app:
        assert app.stdout is not None
        port = int(app.stdout.readline().rpartition(":")[2])

        def ask(method: str, path: str, body: str = "") -> tuple[int, Any]:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
                connection.request(method, path, body.encode())
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())

        code, made = ask("POST", "/texts", "Ça va, Node?")
        assert (code, made) == (202, {"job": 1, "status": "/jobs/1", "result": "/jobs/1/result"})
        assert ask("GET", made["status"])[1]["status"] == "pending"
        assert ask("POST", "/texts", "never")[0] == 202
        assert ask("DELETE", "/jobs/2") == (200, {"status": "cancelled"})
        with running(folder, sys.executable, "-m", "supervisor", "run"):
            result = wait_for(lambda: [answer] if (answer := ask("GET", made["result"]))[0] != 504 else [], "a result")
            assert result == [(200, {"slug": "ca-va-node", "cancelled": False})]
        assert ask("GET", "/jobs/2/result")[0] == 409
        assert [ask("GET", path)[0] for path in ("/jobs/3", "/jobs/x", "/")] == [404, 404, 404]
        assert ask("POST", "/texts", "x" * (1 << 20))[0] == 400
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as db:
        assert db.execute("SELECT text, job FROM texts").fetchall() == [("Ça va, Node?", 1), ("never", 2)]
