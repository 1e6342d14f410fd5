"""Virtual environments for tests, made without a network: they find the packages of the test's own environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parents[2]


def with_everything(folder: Path) -> Path:
    """The interpreter of an environment that has all libraries and us, though it is not ours."""
    packages, interpreter = _empty(folder)
    (packages / "others.pth").write_text(f"{_ours()}\n{ROOT}\n")
    return interpreter


def without(folder: Path, missing: Collection[str]) -> Path:
    """The interpreter of one that lacks these modules, and has the command `supervisor`."""
    packages, interpreter = _empty(folder)
    for found in _ours().iterdir():
        if found.name.partition(".")[0] not in missing and found.suffix != ".pth":
            (packages / found.name).symlink_to(found)
    (packages / "us.pth").write_text(f"{ROOT}\n")
    command = interpreter.with_name("supervisor")
    command.write_text(f"#!{interpreter}\nimport sys\nfrom supervisor.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)
    return interpreter


def _ours() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _empty(folder: Path) -> tuple[Path, Path]:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    [packages] = (folder / "lib").glob("python*/site-packages")
    return packages, folder / "bin" / "python"
