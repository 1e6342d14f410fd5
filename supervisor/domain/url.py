"""A database's URL as it is shown to people and written to logs, and what is told about one that is none."""

from __future__ import annotations

import re

SQLITE = "sqlite:///./jobs.db"
SERVER = "postgresql://user@host/database"
_WITH_DRIVER = re.compile(r"(postgres(?:ql)?)\+\w+:")
_SECRETS = ("password=", "sslpassword=")


def without_password(url: str) -> str:
    """The URL without the password that may stand before an @ or among the parameters; a file's is unchanged."""
    scheme, mark, rest = url.partition("://")
    if not scheme.startswith("postgres") or not mark:
        return url
    rest, question, parameters = rest.partition("?")
    who, at, where = rest.rpartition("@")
    shown = f"{scheme}://{who.partition(':')[0]}{at}{where}"
    kept = "&".join(part for part in parameters.split("&") if not part.startswith(_SECRETS))
    return shown + (question + kept if kept else "")


def why_unknown(url: str) -> str:
    """One sentence about a URL of no engine, with what was probably meant."""
    from difflib import get_close_matches  # rarely needed

    scheme, mark, _ = url.partition("://")
    if found := _WITH_DRIVER.match(url.lower()):
        return f"{hidden(url)} names a driver of SQLAlchemy; leave it out: {found[1]}://…"
    near = get_close_matches(scheme.partition(":")[0].lower(), ("postgresql", "postgres", "sqlite"), 1, 0.65)
    if mark and not near:
        return f"{hidden(url)} is not an SQLite or PostgreSQL URL; write it like {SQLITE} or {SERVER}"
    if near and near != ["sqlite"]:
        return f"{hidden(url)} is not a PostgreSQL URL; write it like {SERVER}"
    return f"{hidden(url)} is not an SQLite URL; write it like {_meant(url)}"


def _meant(url: str) -> str:
    """A guess: a bare path, or a missing slash."""
    path = url.removeprefix("sqlite://").removeprefix("sqlite:/")
    return SQLITE if ":" in path or not path.strip() else f"sqlite:///{path}"


def hidden(url: str) -> str:
    """The URL in quotes, without what may be a user name or a password: before an @, or among the parameters."""
    start, at, end = url.partition("?")[0].rpartition("@")
    scheme, mark, _ = start.partition("://")
    return repr((f"{scheme if mark else ''}{mark}…@{end}" if at else end) + ("?…" if "?" in url else ""))
