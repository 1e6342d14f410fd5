"""The peers: one file each. To add one, write its file, its program in programs/ with the tasks `noop` and `arrive`,
and its pinned version in requirements.txt or package.json, and name it here.
"""

from bench.peers import celery, dbos, dramatiq, flexiq, huey, plainjob, rq
from bench.peers.base import Peer

PEERS: dict[str, Peer] = {
    peer.name: peer for peer in (plainjob.PEER, huey.PEER, flexiq.PEER, dbos.PEER, celery.PEER, dramatiq.PEER, rq.PEER)
}
