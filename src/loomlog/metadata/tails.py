"""Where logs end, whatever protocol their active segments have."""

from __future__ import annotations

from collections.abc import Mapping

from loomlog.errors import NotFound
from loomlog.metadata.committer import Committer
from loomlog.metadata.keepers import LoneKeeper
from loomlog.metadata.records import LogRecord
from loomlog.types import Glsn


class Tails:
    def __init__(self, committer: Committer, keepers: Mapping[str, LoneKeeper]) -> None:
        self._committer = committer
        self._keepers = keepers

    async def find_tail(self, log: LogRecord) -> Glsn:
        """At or above all that was acknowledged; Unavailable if nobody knows it now."""
        active = log.chain.active
        keeper = self._keepers.get(active.settings.protocol)
        return await keeper.find_tail(active) if keeper else self._of_rounds(log, active.start)

    def known_tail(self, log: LogRecord) -> Glsn:
        """The last position that is known."""
        active = log.chain.active
        keeper = self._keepers.get(active.settings.protocol)
        return keeper.known_tail(active) if keeper else self._of_rounds(log, active.start)

    def _of_rounds(self, log: LogRecord, start: Glsn) -> Glsn:
        rounds = self._committer.logs.get(log.log_id)
        if rounds is None:
            raise NotFound(f"log {log.name!r} was deleted")
        return max(rounds.high_watermark, start - 1)  # it may just be about to begin
