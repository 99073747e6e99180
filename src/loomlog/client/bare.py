"""Records without what is in them: places and times only, for who wants to count or to find."""

from __future__ import annotations

from typing import Any, NamedTuple

from loomlog.client.archived import Pieces, Rows
from loomlog.types import Entry, Gap, Glsn


class BareRows(NamedTuple):
    """Rows of which keys and values are left out."""

    of: Rows

    @property
    def rows(self) -> int:
        return self.of.rows

    @property
    def last_position(self) -> Glsn:
        return self.of.last_position

    def entries(self) -> list[Entry]:
        return [entry._replace(key=None, value=b"") for entry in self.of.entries()]

    def to_arrow(self) -> Any:
        from loomlog import columns

        return columns.without_payloads(self.of.to_arrow())


class BarePieces:
    """The same sequence, bare."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    async def next(self) -> Rows | Gap | None:
        return _bare(await self._pieces.next())

    def next_ready(self) -> Rows | Gap | None:
        return _bare(self._pieces.next_ready())

    def close(self) -> None:
        self._pieces.close()


def _bare(piece: Rows | Gap | None) -> Rows | Gap | None:
    return piece if piece is None or isinstance(piece, Gap) else BareRows(piece)
