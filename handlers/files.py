"""Files that payloads name: inside a folder if the pool says so, regular, and limited in size."""

from __future__ import annotations

import errno
import os
import stat

from supervisor import Fail

_OPEN_FAULTS = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.ENAMETOOLONG: "no such file",
    errno.ELOOP: "a loop of symbolic links",
    errno.EACCES: "no permission to read the file",
    errno.EPERM: "no permission to read the file",
    errno.ENXIO: "not a regular file",
}


def inside(path: str, root: str | None) -> str:
    """The real path of a file in the folder `root`, at which relative paths start; any path if there is no root."""
    if root is None:
        return path
    try:
        folder = os.path.realpath(root, strict=True)
        found = os.path.realpath(os.path.join(folder, path))  # noqa: PTH118 - paths of payloads stay texts
    except ValueError as error:  # a NUL byte, or a lone surrogate
        raise Fail(f"no such file: {path!r}: {error}") from None
    except OSError as error:
        raise Fail(f"options.root: {root}: {error.strerror}") from None
    if not found.startswith(f"{folder.rstrip('/')}/"):
        raise Fail(f"outside the folder that this pool reads from: {path}")
    return found


def read(path: str, max_bytes: int) -> bytes:
    """The contents of a regular file. Raises Fail for what another attempt cannot fix; errors of the disk itself
    (EIO, ESTALE) pass through, because a retry may help.
    """
    try:
        # O_NONBLOCK: opening a named pipe must not wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL byte, or a lone surrogate
        raise Fail(f"no such file: {path!r}: {error}") from None
    except OSError as error:
        fault = _OPEN_FAULTS.get(error.errno or 0)
        if fault is None:
            raise
        raise Fail(f"{fault}: {path}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise Fail(f"a directory, not a file: {path}")
        if not stat.S_ISREG(mode):
            raise Fail(f"not a regular file: {path}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise Fail(f"too large: more than {max_bytes} bytes")
    return data
