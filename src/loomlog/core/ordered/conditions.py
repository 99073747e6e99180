"""Describe in words what is wrong with a stream. Pure."""

from __future__ import annotations

from typing import NamedTuple

from loomlog.core.ordered import repair
from loomlog.types import Llsn, NodeId


class Copying(NamedTuple):
    """The progress of a copy from one replica to another."""

    source: NodeId
    destination: NodeId
    copied_llsn: Llsn
    last_llsn: Llsn
    copied_bytes: int


def condition(action: repair.Action, copying: Copying | None, trouble: str | None) -> str:
    """Return why the stream does not run and what is under way; "" if all is well."""
    words = _words(action, copying)
    if trouble and words:
        return f"{words}; {trouble}"
    return words


def _words(action: repair.Action, copying: Copying | None) -> str:
    match action:
        case repair.Wait(reason):
            return reason.removeprefix(repair.RUNNING).removeprefix("; ")
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
