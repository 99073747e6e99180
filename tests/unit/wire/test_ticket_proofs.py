"""Proofs of the tickets of `chained` logs cannot be used for other positions, or created without
the cluster's secret."""

from __future__ import annotations

import pytest

from loomlog.limits import POSITION_MAX, REFERENCE_RECORDS_MAX
from loomlog.wire.chained import TicketProofs

PROOFS = TicketProofs("secret")
TICKET = (5, 1, 2, 100, 7)  # loglet, chain, epoch, first, count


def test_a_proof_is_for_its_own_positions_only() -> None:
    proof = PROOFS.make(*TICKET)
    assert PROOFS.is_right(proof, *TICKET)
    for index in range(5):
        for step in (-1, 1):
            other = list(TICKET)
            other[index] += step
            assert not PROOFS.is_right(proof, *other)


@pytest.mark.parametrize("proof", [b"", b"\0" * 16, PROOFS.make(*TICKET)[:-1]])
def test_what_is_no_proof_proves_nothing(proof: bytes) -> None:
    assert not PROOFS.is_right(proof, *TICKET)


def test_each_cluster_has_proofs_of_its_own() -> None:
    assert TicketProofs("secret").is_right(PROOFS.make(*TICKET), *TICKET)
    assert not TicketProofs("Secret").is_right(PROOFS.make(*TICKET), *TICKET)


def test_the_largest_ticket_has_a_proof() -> None:
    ticket = ((1 << 32) - 1, (1 << 32) - 1, (1 << 64) - 1, POSITION_MAX, REFERENCE_RECORDS_MAX)
    assert PROOFS.is_right(PROOFS.make(*ticket), *ticket)
