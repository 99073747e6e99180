"""Signed beats, by which a leader proves to storage nodes that it belongs to their cluster.

Anyone can connect to a node. What makes it turn to another metadata repository must come from
one that knows the cluster's secret. A signed beat may be repeated by anybody: it says the same
again, and an epoch that is over changes nothing.
"""

from __future__ import annotations

import hmac

from loomlog.wire import loomlog_pb2 as pb


def signed(beat: pb.LeaderBeat, cluster_secret: str) -> pb.LeaderBeat:
    """Return the beat with its proof."""
    beat.proof = _proof(beat, cluster_secret)
    return beat


def is_signed(beat: pb.LeaderBeat, cluster_secret: str) -> bool:
    """Return whether the beat comes from the cluster with this secret; no secret proves nothing."""
    return bool(cluster_secret) and hmac.compare_digest(beat.proof, _proof(beat, cluster_secret))


def _proof(beat: pb.LeaderBeat, cluster_secret: str) -> bytes:
    content = f"leader {beat.epoch} {beat.leader} {beat.address}"
    return hmac.digest(cluster_secret.encode(), content.encode(), "sha256")
