"""How the contestants are called in tables and pictures."""

from __future__ import annotations

from bench import floor, ours
from bench.peers import PEERS

TITLES = {
    "ours": "job-supervisor",
    ours.AUTO.name: ours.AUTO.title,
    ours.ONE.name: ours.ONE.title,
    **{name: peer.title for name, peer in PEERS.items()},
    **floor.TITLES,
}
STORES = {name: peer.store for name, peer in PEERS.items()}


def is_ours(name: str) -> bool:
    return name.startswith("ours")


def is_floor(name: str) -> bool:
    return name.startswith("floor")
