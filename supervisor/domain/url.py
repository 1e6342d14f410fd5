"""A database's URL as it is shown to people and written to logs."""

from __future__ import annotations

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
