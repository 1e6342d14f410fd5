"""Whoever operates on a server's jobs asks the store what time it is: the clock of that machine may be wrong."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2] / "supervisor"
# What has to do with this machine's clock alone.
OWN = {
    "ops/doctor/services.py": "it compares this clock with the server's",
    "ops/move.py": "when a move was made, for people",
    "admin/login.py": "sessions of browsers with this process",
    "admin/access.py": "sessions of browsers with this process",
    "admin/keys.py": "sessions of browsers with this process",
}


def test_what_operates_on_jobs_asks_the_store_what_time_it_is() -> None:
    packages = ("cli", "client", "ops", "admin")
    sources = {path for package in packages for path in (ROOT / package).rglob("*.py")}
    asking = {str(path.relative_to(ROOT)) for path in sources if "time.time(" in path.read_text(encoding="utf-8")}
    assert asking == set(OWN)
