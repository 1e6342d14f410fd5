"""Replaces a small file as a whole: whoever reads it finds the old text or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace(path: Path, text: str, mode: int = 0o600) -> None:
    """Raises OSError; then the file is as it was. `mode` is that of the new file, less the umask."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(draft, flags, mode), "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
