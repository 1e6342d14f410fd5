"""plainjob on better-sqlite3."""

from __future__ import annotations

import json
import os
import subprocess

from bench.peers import install
from bench.peers.base import PROGRAMS, Peer

_PROGRAM = ["node", str(PROGRAMS / "plainjob_app.mjs")]


def _versions() -> dict[str, str]:
    env = os.environ | {"BENCH_NODE": str(install.NODE_PLACE)}
    told = subprocess.run([*_PROGRAM, "versions"], env=env, capture_output=True, check=True).stdout
    return {str(name): str(version) for name, version in json.loads(told).items()}


PEER = Peer(
    name="plainjob",
    title="plainjob",
    store="SQLite",
    settings="on better-sqlite3, one Node.js process a worker; polls once a second when idle",
    keeps="after a time-out (30 minutes)",
    needs=(install.NODE,),
    versions=_versions,
    program=_PROGRAM,
    command=lambda workers: [[*_PROGRAM, "work"]] * workers,
    size=30_000,
    has_many=True,
)
