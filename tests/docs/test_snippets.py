"""What the documents show works: their commands run, their programs run or compile, their files load."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor import Queue, Status
from supervisor.config import load
from tests import forkserver
from tests.clients.node import INSTALLED, link_packages
from tests.docs.markdown import DOCUMENTS, ROOT, Block, blocks
from tests.site_under_test import wait_for

PATIENCE = 30.0  # seconds for one block
TASKS = """
from supervisor import task

@task
def resize(): ...

@task("pictures.describe")
def describe(): ...

@task
def nightly(): ...
"""
OF_EXTRAS = {"django", "fastapi", "flask", "numpy", "onnx", "onnxruntime", "sqlalchemy"}
GO_PATH = Path("/usr/share/gocode")  # Debian's, with golang-github-mattn-go-sqlite3-dev
PROGRAMS = {
    "js": ["node"],
    "php": ["php"],
    "go": ["env", "GO111MODULE=off", f"GOPATH={GO_PATH}", "go", "run"],
}


def environment() -> dict[str, str]:
    """Ours, with the command `supervisor` of this interpreter first and no configuration from outside."""
    inherited = {name: value for name, value in os.environ.items() if name != "SUPERVISOR_CONFIG"}
    return inherited | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # no document needs one, and to import them takes a second
    }


def execute(block: Block, folder: Path, command: list[str]) -> str:
    """Run a block in a folder; it must succeed. Returns what it printed."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # a supervisor in it, too
        output, errors = process.communicate()
    assert process.returncode == 0, f"{block}\n{output}\n{errors}"
    return output


def perform(block: Block, folder: Path) -> str:
    """Run a block as its language asks."""
    if block.language == "sql":
        with contextlib.closing(sqlite3.connect(folder / "app.db", timeout=5)) as connection:
            connection.executescript(block.text)
        return ""
    if block.language == "python":
        program = folder / f"test_block_{block.line}.py"
        program.write_text(block.text)
        # A folder of its own: at its end pytest removes what runs of other days have left in the usual one.
        runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}"]
        tests = runner if "def test_" in block.text else []
        return execute(block, folder, [sys.executable, *tests, program.name])
    if needs_packages(block) and not (folder / "node_modules").exists():
        link_packages(folder)
    if block.language in PROGRAMS:
        program = folder / f"block_{block.line}.{block.language}"
        program.write_text(block.text)
        return execute(block, folder, [*PROGRAMS[block.language], program.name])
    return execute(block, folder, ["bash", "-euo", "pipefail", "-c", block.text])


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, marks=pytest.mark.long if path.name == "models.md" else ())  # installs and loads models
        for path in DOCUMENTS
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_marked_blocks_of_a_document_run_in_order(document: Path, tmp_path: Path) -> None:
    missing = missing_library(document)
    if missing:
        pytest.skip(f"{missing} is not installed: it comes with the extra ml or dev")
    Queue(f"sqlite:///{tmp_path}/app.db").create_tables()  # for blocks in SQL
    printed: str | None = None  # by the latest block that is run, if it was
    for block in blocks(document=document):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif block.runs:
            printed = None if missing_program(block) else perform(block, tmp_path)
        elif block.mark == "printed" and printed is not None:
            assert not lines(block.text) - lines(printed), f"{block}\n{printed}"
    without = {missing_program(block) for block in blocks(document=document)} - {""}
    if without:
        pytest.skip(f"there is no {' and no '.join(sorted(without))} here for some of the blocks; the others were run")


def lines(text: str) -> set[str]:
    return {line.rstrip() for line in text.splitlines()}


def missing_library(document: Path) -> str:
    """A library of an extra that the document's programs import and that is not here, or nothing."""
    programs = [block.text for block in blocks("python", document=document) if block.runs or block.file]
    imported = re.findall(r"^(?:import|from) (\w+)", "\n".join(programs), re.M)
    return next((name for name in imported if name in OF_EXTRAS and not is_there(name)), "")


def is_there(library: str) -> bool:
    """Django counts if it has tasks, itself or by the package for them."""
    found = importlib.util.find_spec(library) is not None
    return found and (library != "django" or any(map(importlib.util.find_spec, ("django_tasks", "django.tasks"))))


def missing_program(block: Block) -> str:
    """What a block to be run needs and this machine lacks, or nothing."""
    curl, shell = (block.language == "sh" and re.search(at, block.text, re.M) for at in (r"\bcurl ", r"^sqlite3 "))
    go = GO_PATH / "src/github.com/mattn/go-sqlite3"
    needs = (
        (needs_packages(block), "node with better-sqlite3", "node", lambda: (INSTALLED / "better-sqlite3").exists()),
        (block.language == "php", "php with pdo_sqlite", "php", has_pdo_sqlite),
        (block.language == "go", "go with go-sqlite3", "go", go.exists),
        (curl, "curl", "curl", lambda: True),
        (shell, "sqlite3 shell", "sqlite3", lambda: True),
    )
    lacking = (what for needed, what, program, there in needs if needed and not (shutil.which(program) and there()))
    return next(lacking, "") if block.runs else ""


def needs_packages(block: Block) -> bool:
    """Whether it runs programs for Node.js that use our package."""
    return block.language == "js" or (block.language == "sh" and re.search(r"^node ", block.text, re.M) is not None)


def has_pdo_sqlite() -> bool:
    listed = subprocess.run(["php", "-m"], capture_output=True, text=True, timeout=PATIENCE, check=False).stdout
    return "pdo_sqlite" in listed.split()


def test_the_job_that_fails_in_the_readme_prints_what_it_shows(tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    task, configuration, statement = (blocks(each, document=readme)[0].text for each in ("python", "toml", "sql"))
    [shown] = [block.text for block in blocks("text", document=readme) if not block.mark]
    (tmp_path / "jobs.py").write_text(task)
    (tmp_path / "supervisor.toml").write_text(configuration + '\n[log]\nformat = "console"\n')
    Queue(f"sqlite:///{tmp_path}/app.db").enqueue("count_words", {"path": __file__})  # the next one is the second
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db", timeout=5)) as connection:
        connection.executescript(statement)
    log = tmp_path / "log"
    with log.open("w") as output:
        burst = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "run", "--burst"],
            cwd=tmp_path,
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    wait_for(lambda: "job_failed" in log.read_text(), "the first attempt")
    (tmp_path / "letter.txt").write_text("Dear Ada")
    assert burst.wait(PATIENCE) == 0
    show = Block(readme, 0, "sh", "run", "supervisor jobs show 2")
    found = "\n".join(alike(log.read_text() + perform(show, tmp_path)))
    # A handler's line and the log's may share one: both go to the same place.
    assert not [line for line in alike(shown) if line not in found], found


def alike(text: str) -> set[str]:
    """The lines, without what differs from run to run: times, durations, pids, the numbers of workers."""
    return {" ".join(re.sub(r"[0-9][0-9.:T-]*(ms|s|Z)?", "0", line).split()) for line in lines(text)}


@contextlib.contextmanager
def supervised(folder: Path) -> Iterator[None]:
    """A starter in the folder, and its supervisor running with workers that are ready."""
    command = [sys.executable, "-m", "supervisor"]

    def ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        shown = subprocess.run([*command, "status", "--json"], cwd=folder, capture_output=True, text=True, timeout=60)
        return '"state": "idle"' in shown.stdout

    subprocess.run([*command, "init"], cwd=folder, check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "run"], cwd=folder, stderr=log, env=environment())
        try:
            wait_for(ready, "workers")
            yield
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0


def test_the_operators_commands_work_on_a_running_supervisor(tmp_path: Path) -> None:
    [block] = [block for block in blocks("sh") if block.mark == "run: supervised"]
    with supervised(tmp_path):
        printed = perform(block, tmp_path)
    assert "pool default now has 4 workers" in printed
    assert (tmp_path / "copy.db").exists()


SERVED = {
    "docs/fastapi.md": ("fastapi", ("fastapi", "uvicorn", "python_multipart")),
    "docs/flask.md": ("flask", ("flask",)),
    "examples/node/README.md": ("node", ()),
}


@pytest.mark.parametrize("page", SERVED)
def test_an_application_answers_the_requests_that_its_page_shows(page: str, tmp_path: Path) -> None:
    example, libraries = SERVED[page]
    [block] = [block for block in blocks("sh", document=ROOT / page) if block.mark == "run: server"]
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing or (example == "node" and not (shutil.which("node") and (INSTALLED / "better-sqlite3").exists())):
        pytest.skip(f"{missing[0] if missing else 'node with better-sqlite3'} is not installed")
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    folder = tmp_path / example
    shutil.copytree(
        ROOT / "examples" / example, folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*", "node_modules")
    )
    if example == "node":
        link_packages(folder)
    [shown] = set(re.findall(r"127\.0\.0\.1:(\d+)", block.text))
    printed = perform(replace(block, text=block.text.replace(shown, str(free_port()))), folder)
    logs = "".join((folder / name).read_text() for name in ("log", "web-log"))
    assert ('"hello-world"' if example == "node" else '"status": "done"') in printed, f"{printed}\n{logs}"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_foreign_claim_is_a_claim_of_its_own_and_is_settled_as_the_pages_show_it(tmp_path: Path) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/app.db")
    job = queue.enqueue("report", at=datetime.now(UTC) - timedelta(seconds=1))  # SQLite's clock counts milliseconds
    [block] = [
        b
        for b in blocks("sql", document=ROOT / "docs/sharing-the-table.md")
        if "RETURNING id, payload" in b.text and b.runs
    ]
    perform(block, tmp_path)
    claimed = queue.job(job)
    assert (claimed.status, claimed.locked_by, claimed.attempts) == (Status.RUNNING, "foreign", 1)
    [block] = [b for b in blocks("sql", document=ROOT / "docs/internals/schema.md") if "claim_token" in b.text]
    perform(block, tmp_path)
    settled = queue.job(job)
    assert (settled.status, settled.result) == (Status.DONE, {"tags": []})


@pytest.mark.parametrize("block", [b for b in blocks("js", "php", "go") if "INSERT INTO jobs" in b.text], ids=str)
def test_the_statements_of_other_languages_enqueue_a_job(block: Block, tmp_path: Path) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/app.db")
    queue.create_tables()
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
        for statement in re.findall(r"['\"`](INSERT INTO jobs[^'\"`]+)['\"`]", block.text):
            words = ["tag", '{"path":"cat.jpg"}', None][: statement.count("?")]
            job = connection.execute(statement, words).lastrowid
            assert job is not None
            assert queue.job(job).payload == {"path": "cat.jpg"}
            with pytest.raises(sqlite3.OperationalError, match="malformed JSON"):
                connection.execute(statement, ["tag", "{", *words[2:]])


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
@pytest.mark.parametrize("block", blocks("js", "javascript"), ids=str)
def test_programs_in_node_parse(block: Block, tmp_path: Path) -> None:
    (tmp_path / "block.js").write_text(block.text)
    execute(block, tmp_path, ["node", "--check", "block.js"])


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_configurations_load(block: Block, tmp_path: Path) -> None:
    for module in ("jobs", "shop/tasks", "src/shop/jobs"):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{module}.py").write_text(TASKS)
    (tmp_path / "supervisor.toml").write_text(block.text)
    assert load(tmp_path / "supervisor.toml").pools


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_shell_commands_parse(block: Block, tmp_path: Path) -> None:
    execute(block, tmp_path, ["bash", "-n", "-c", block.text])


@pytest.mark.parametrize("block", blocks("sql"), ids=str)
def test_every_sql_block_is_run(block: Block) -> None:
    assert (
        block.runs or block.mark == "run: postgres"
    )  # by test_several_machines.py, and by test_foreign_programs.py on PostgreSQL


def test_the_faults_shown_are_those_that_are_reported(tmp_path: Path) -> None:
    [block] = blocks("text", document=ROOT / "docs/configuration.md")
    (tmp_path / "supervisor.toml").write_text('\n\n[pools.tag]\nhandler = "jobs:Tagger"\ntimeout = 500\nwokers = 3\n')
    ran = forkserver.run(["run"], cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr == block.text
