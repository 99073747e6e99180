"""Proofs that a peer knows a secret, without sending it.

Any peer can connect to a node. A message that makes the node turn to another metadata repository
must come from one that knows the cluster's secret, so a leader signs its beats. Any peer may replay
a signed beat, which is harmless: it has the same content, and an old epoch has no effect.

Any peer can also try to register. A metadata repository that does not know a node connects to the
node's address, and the server there has to prove that it knows the node's secret: it signs a random
challenge.
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
