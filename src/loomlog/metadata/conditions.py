"""What is the matter with a stream, in words. Pure."""

from __future__ import annotations

from typing import NamedTuple

from loomlog.core.ordered import repair
from loomlog.types import Llsn, NodeId

RUNNING = "running"


class Copying(NamedTuple):
    """How far the copy of a stream to one of its replicas is."""

    source: NodeId
    destination: NodeId
    copied_llsn: Llsn
    last_llsn: Llsn
    copied_bytes: int


def condition(action: repair.Action, copying: Copying | None, trouble: str | None) -> str:
    """Why it does not run, what is under way; empty: all is well."""
    words = _words(action, copying)
    if trouble and words:
        return f"{words}; {trouble}"
    return words


def _words(action: repair.Action, copying: Copying | None) -> str:
    match action:
        case repair.Wait(reason):
            return reason.removeprefix(RUNNING).removeprefix("; ")
        case repair.BeginSeal(reason):
            return f"is being sealed: {reason}"
        case repair.SendSeal(nodes):
            return f"sealed: telling node {', '.join(map(str, nodes))}"
        case repair.Unseal():
            return "is being unsealed"
        case repair.Join(node):
            return f"making a replica on node {node}"
        case repair.Synchronise(source, destination):
            return _copy_words(source, destination, copying)
        case repair.Swap(replicas):
            return f"goes on with nodes {', '.join(map(str, replicas))}"
        case repair.DropJoining(node, reason):
            return f"node {node} does not join: {reason}"


def _copy_words(source: NodeId, destination: NodeId, copying: Copying | None) -> str:
    words = f"copying from node {source} to node {destination}"
    if copying is None or copying.destination != destination:
        return words
    return f"{words}: {copying.copied_llsn} of {copying.last_llsn} entries"
