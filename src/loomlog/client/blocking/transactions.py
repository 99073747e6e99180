"""Transactions for programs without an event loop."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from loomlog.client.blocking.loop_thread import BlockingContext, blocking
from loomlog.client.transactions.transaction import Transaction
from loomlog.types import Buffer, Position


class BlockingTransaction(BlockingContext[Transaction]):
    """Entries for several logs that become visible together at the end of the `with` block; the
    blocking form of `Transaction`."""

    @property
    def positions(self) -> dict[str, list[Position]]:
        """The positions of the entries in each log, once they are visible."""
        return self._target.positions

    def append(
        self,
        log: str,
        value: Buffer,
        key: Buffer | None = None,
        *,
        headers: Mapping[str, bytes] | None = None,
        timestamp: datetime | float | None = None,
    ) -> None:
        """Add an entry for the log named `log`; see `Transaction.append`."""
        self._target.append(log, value, key, headers=headers, timestamp=timestamp)

    commit = blocking(Transaction.commit)
