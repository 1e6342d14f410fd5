"""The peers: one file each. To add one, write its file and its program, and name it here."""

from bench.peers import celery, dramatiq, huey, plainjob, rq
from bench.peers.base import Peer

PEERS: dict[str, Peer] = {peer.name: peer for peer in (plainjob.PEER, huey.PEER, celery.PEER, dramatiq.PEER, rq.PEER)}
