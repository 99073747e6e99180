"""Proofs that a peer knows a secret, without sending it.

Anyone can connect to a node. What makes it turn to another metadata repository must come from one
that knows the cluster's secret: a leader signs its beats. A signed beat may be repeated by anybody:
it says the same again, and an epoch that is over changes nothing.

Anyone can register, too. A metadata repository that does not know a node connects to the address
that it named, and what answers there has to know the node's secret: it signs a random challenge.
"""

from __future__ import annotations

import hmac

from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb


def signed(beat: pb.LeaderBeat, cluster_secret: str) -> pb.LeaderBeat:
    """Return the beat with its proof."""
    beat.proof = _beat_proof(beat, cluster_secret)
    return beat


def is_signed(beat: pb.LeaderBeat, cluster_secret: str) -> bool:
    """Return whether the beat comes from the cluster with this secret; no secret proves nothing."""
    return bool(cluster_secret) and hmac.compare_digest(
        beat.proof, _beat_proof(beat, cluster_secret)
    )


def node_proof(node: NodeId, node_secret: str, challenge: bytes) -> bytes:
    """Return the proof that a storage node with this number and secret got the challenge."""
    return _digest(node_secret, f"node {node} {challenge.hex()}")


def is_node_proof(proof: bytes, node: NodeId, node_secret: str, challenge: bytes) -> bool:
    """Return whether the proof is right; no secret proves nothing."""
    return bool(node_secret) and hmac.compare_digest(
        proof, node_proof(node, node_secret, challenge)
    )


def _beat_proof(beat: pb.LeaderBeat, cluster_secret: str) -> bytes:
    return _digest(cluster_secret, f"leader {beat.epoch} {beat.leader} {beat.address}")


def _digest(secret: str, content: str) -> bytes:
    return hmac.digest(secret.encode(), content.encode(), "sha256")
