"""Node.js and the package in clients/node, for the tests that need them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import ROOT

PACKAGE = ROOT / "clients" / "node"
EXAMPLE = ROOT / "examples" / "node"
PATIENCE = 60.0  # seconds for one program
INSTALLED = PACKAGE / "node_modules"

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
needs_packages = pytest.mark.skipif(
    shutil.which("node") is None or not (INSTALLED / "better-sqlite3").exists(),
    reason="there is no node here" if shutil.which("node") is None else "`make node` has not installed better-sqlite3",
)


def link_packages(folder: Path) -> None:
    """What `npm install` does in a folder whose program uses the package, without a network."""
    modules = folder / "node_modules"
    modules.mkdir()
    (modules / "job-supervisor").symlink_to(PACKAGE)
    (modules / "better-sqlite3").symlink_to(INSTALLED / "better-sqlite3")


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A program in Node.js, in which `Queue`, `Database` and the arguments, `words`, are known."""
    preamble = (
        'const Database = require("better-sqlite3"); const { Queue } = require("job-supervisor");'
        "const words = process.argv.slice(1).map((word) => JSON.parse(word));"
    )
    return subprocess.Popen(
        ["node", "-e", preamble + code, *(json.dumps(str(a) if isinstance(a, Path) else a) for a in arguments)],
        cwd=PACKAGE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(code: str, *arguments: object) -> Any:
    """Run such a program; it succeeds. Returns the JSON that it printed."""
    program = start(code, *arguments)
    output, _ = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, output
    return json.loads(output or "null")
