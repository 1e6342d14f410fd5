"""Whatever the HTTP API is asked, it answers as its OpenAPI document says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.timeout(600)
def test_whatever_is_asked_is_answered_as_the_document_says(tmp_path: Path) -> None:
    questions = Path(__file__).with_name("anything.py")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=500",
        "-p",
        "schemathesis.pytest.plugin",
        f"--basetemp={tmp_path / 'tests'}",
    ]
    ended = subprocess.run([*command, str(questions)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
