"""The database's address, made absolute: it means the same file even if the current folder or a link changes."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.domain.text import SQLITE_URL, unknown_url

DEFAULT = SQLITE_URL
_SCHEME = "sqlite:///"


def absolute(url: str, folder: Path) -> str:
    """`sqlite:////absolute/path` without links for a URL whose relative path starts at `folder`; a server's URL as it
    is.

    The path is taken as written: nothing else in it is decoded or expanded. Raises ValueError with one sentence.
    """
    if of_server(url):
        return server(url)
    # SQLite itself makes a private database of these; its rows would be lost with each connection.
    if url in ("sqlite:", "sqlite://", _SCHEME) or ":memory:" in url or "mode=memory" in url:
        raise ValueError("in-memory databases are not supported, as processes cannot share them; name a file")
    if not url.startswith(_SCHEME):
        raise ValueError(unknown_url(url))
    path = url.removeprefix(_SCHEME)
    if "?" in path or "#" in path:
        raise ValueError("parameters after the file's name are not supported; leave out ? and #")
    if not path.isprintable() or path.endswith("/") or path.rpartition("/")[2] in (".", ".."):
        raise ValueError(f"{path!r} is not the name of a file")
    return f"{_SCHEME}{os.path.realpath(folder / path)}"


def of_server(url: object) -> bool:
    """Whether it is meant as the URL of a server."""
    return isinstance(url, str) and url.partition(":")[0].lower() in ("postgresql", "postgres")


def server(url: str) -> str:
    """The URL of a server. Raises ValueError with one sentence."""
    if not url.startswith(("postgresql://", "postgres://")) or not url.isprintable() or " " in url:
        raise ValueError(unknown_url(url))
    return url
