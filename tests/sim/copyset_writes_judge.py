"""What must hold while sequencers of a `copyset` log write, judged from everything there is."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from loomlog.core.copyset.effects import (
    Acknowledge,
    Effect,
    LeaveOpen,
    Reject,
    Send,
    StepDown,
    Token,
)
from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import EPOCH_MAX, Epoch, Lsn, Offset, epoch_of, make, offset_of, words
from loomlog.core.copyset.messages import Amend, Read, Release, Store
from loomlog.core.copyset.record import Record
from loomlog.testing.copyset_node import CopysetNode
from loomlog.types import NodeId

LOG = 1


class Violation(Exception):  # noqa: N818 - it says what it is
    pass


class Judge:
    def __init__(self, metadata: EpochMetadata, nodes: Iterable[CopysetNode]) -> None:
        self.acknowledged: dict[Lsn, Record] = {}  # as it was then
        self.outcomes: dict[Token, Effect] = {}
        self.recovered: set[Epoch] = set()  # sequencers who know that all below is
        self._metadata = metadata
        self._nodes = {node.node_id: node for node in nodes}
        self._good: dict[Epoch, Offset] = {}  # all offsets up to here are stored
        self._floors: dict[Token, Lsn] = {}  # what was acknowledged when an append began
        self._over: set[Epoch] = set()
        self._frozen: dict[tuple[NodeId, Epoch], list[Record]] = {}

    # ---- what sequencers do

    def began(self, token: Token) -> None:
        self._floors[token] = max(self.acknowledged, default=0)

    def saw(self, epoch: Epoch, effect: Effect) -> None:
        match effect:
            case Acknowledge(token, lsn):
                self._ends(token, effect)
                self._acknowledged(epoch, lsn)
                self._demand(
                    lsn > self._floors[token], f"{words(lsn)} came late, and stands before"
                )
            case Reject(token) | LeaveOpen(token):
                self._ends(token, effect)
            case StepDown():
                self._over.add(epoch)
            case Send(_, Release(_, lsn)):
                self._released(epoch, lsn)
            case Send(_, Store(_, record) | Amend(_, record)):
                self._demand(
                    self._is_good(epoch, record.lng),
                    f"LNG of {words(record.first)} passes what is not stored",
                )

    def _ends(self, token: Token, effect: Effect) -> None:
        before = self.outcomes.setdefault(token, effect)
        self._demand(before is effect, f"{token} ended twice: {before}, {effect}")

    def _acknowledged(self, epoch: Epoch, lsn: Lsn) -> None:
        self._demand(epoch not in self._over, f"{words(lsn)} is acknowledged after a preemption")
        self._demand(lsn not in self.acknowledged, f"{words(lsn)} was given twice")
        copies = self._copies(lsn)
        self._demand(bool(copies), f"{words(lsn)} is nowhere")
        newest = max(copies.values(), key=lambda copy: copy.precedence)
        self._demand(
            self._is_stored(lsn),
            f"{words(lsn)} is on {sorted(copies)}, in wave {newest.wave} not on {newest.copyset}",
        )
        self._demand(
            self._metadata.can_hold_a_copyset(newest.copyset),
            f"{newest.copyset} is not spread over the failure domains",
        )
        self.acknowledged[lsn] = newest

    def _is_stored(self, lsn: Lsn) -> bool:
        """On all nodes of its newest wave."""
        copies = self._copies(lsn)
        newest = max(copies.values(), key=lambda copy: copy.precedence, default=None)
        return newest is not None and all(copies.get(node) == newest for node in newest.copyset)

    def _is_good(self, epoch: Epoch, lng: Offset) -> bool:
        """All up to it is stored."""
        good = self._good.get(epoch, 0)
        while good < lng and self._is_stored(lsn := make(epoch, good + 1)):
            good += next(iter(self._copies(lsn).values())).count
        self._good[epoch] = good
        return lng <= good

    def _released(self, epoch: Epoch, lsn: Lsn) -> None:
        self._demand(epoch in self.recovered, f"{words(lsn)} is released before recovery")
        self._demand(self._is_good(epoch, offset_of(lsn)), f"{words(lsn)} is released, not stored")

    # ---- what nodes do

    def look_at(self, node: CopysetNode) -> None:
        """After every answer of it."""
        records = node.records(LOG)
        copies, standing = records.all(), records.standing
        if any(before.last >= after.first for before, after in pairwise(copies)):
            raise Violation(f"copies of node {node.node_id} overlap")
        unclean = (copy.epoch for copy in copies if records.end_of(copy.epoch) is None)
        if epoch_of(standing.released) > next(unclean, EPOCH_MAX):
            raise Violation(f"node {node.node_id} released something over an unclean epoch")
        if standing.seal:
            sealed = [copy for copy in copies if copy.epoch <= standing.seal]
            if sealed != self._frozen.setdefault((node.node_id, standing.seal), sealed):
                raise Violation(f"node {node.node_id} took something that was sealed")

    def _copies(self, lsn: Lsn) -> dict[NodeId, Record]:
        return {
            node: copy
            for node, each in self._nodes.items()
            if (copy := each.records(LOG).by_first.get(lsn)) is not None
        }

    # ---- in the end

    def finish(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            self._demand(token in self.outcomes, f"{token} has no end")
        for lsn, record in self.acknowledged.items():
            copies = [self._copies(lsn).get(node) for node in record.copyset]
            self._demand(
                all(copy == record for copy in copies), f"{words(lsn)} changed: {record}, {copies}"
            )

    def check_delivery(self, epoch: Epoch, known_down: frozenset[NodeId]) -> int:
        """Those who are up send everything that they all know to be released, in order."""
        up = self._nodes.keys() - known_down
        released = min(self._nodes[node].records(LOG).standing.released for node in up)
        due = {lsn for lsn in self.acknowledged if epoch_of(lsn) == epoch and lsn <= released}
        sent = {lsn for node in up for lsn in self._read(node, epoch, known_down)}
        self._demand(sent >= due, f"without {known_down}, {due - sent} are not sent")
        return len(due)

    def _read(self, number: NodeId, epoch: Epoch, known_down: frozenset[NodeId]) -> list[Lsn]:
        first, until = (epoch << 32) + 1, (epoch + 1 << 32) - 1
        answer = self._nodes[number].answer(Read(LOG, first, until, 1 << 30, known_down))
        lsns = [record.first for record in answer.records]  # type: ignore[union-attr]
        self._demand(lsns == sorted(set(lsns)), f"node {number} sends {lsns}")
        return lsns

    def _demand(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Violation(otherwise)
