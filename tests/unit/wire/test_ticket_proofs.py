"""Proofs of the tickets of `chained` logs: nobody makes one for other positions, or without the
cluster's secret."""

from __future__ import annotations

import pytest

from loomlog.limits import POSITION_MAX, REFERENCE_RECORDS_MAX
from loomlog.wire.proofs import TicketProofs

PROOFS = TicketProofs("secret")
TICKET = (5, 2, 100, 7)  # loglet, epoch, first, count


def test_a_proof_is_for_its_own_positions_only() -> None:
    proof = PROOFS.make(*TICKET)
    assert PROOFS.are_proven(proof, *TICKET)
    for index in range(4):
        for step in (-1, 1):
            other = list(TICKET)
            other[index] += step
            assert not PROOFS.are_proven(proof, *other)


@pytest.mark.parametrize("proof", [b"", b"\0" * 16, PROOFS.make(*TICKET)[:-1]])
def test_what_is_no_proof_proves_nothing(proof: bytes) -> None:
    assert not PROOFS.are_proven(proof, *TICKET)


def test_each_cluster_has_proofs_of_its_own() -> None:
    assert TicketProofs("secret").are_proven(PROOFS.make(*TICKET), *TICKET)
    assert not TicketProofs("Secret").are_proven(PROOFS.make(*TICKET), *TICKET)


def test_the_largest_ticket_has_a_proof() -> None:
    ticket = ((1 << 32) - 1, (1 << 64) - 1, POSITION_MAX, REFERENCE_RECORDS_MAX)
    assert PROOFS.are_proven(PROOFS.make(*ticket), *ticket)
