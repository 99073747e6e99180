"""Trimming a log takes along what only the trimmed part needed of its staging log.

A reference says from which staged position on everything is kept that it and all later ones need.
So the first reference that is kept decides; where there is none, the writers' registers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loomlog import limits
from loomlog.client.pieces import Piece, Referred
from loomlog.client.publishing import Registry, held_back, writers_prefix
from loomlog.errors import Trimmed
from loomlog.staging_logs import staging_name
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog.client.log import Log

SEARCH_BYTES_MAX: Final = 64 * limits.MIB  # of plain batches before a reference; then next time


async def trim_staged(log: Log, registry: Registry, now_us: int) -> None:
    """After `log` was trimmed."""
    staging = registry.log(staging_name(log.name))
    staged = await staging.describe()
    # In this order: who publishes meanwhile is either in its register or in the log already.
    registers = await registry.registers(writers_prefix(log.name))
    kept_from = min((staged.tail + 1, *held_back(registers, now_us)))
    needed_from = await _first_needed(log, kept_from)
    if needed_from - 1 >= staged.head:
        await staging.trim(needed_from - 1)


async def _first_needed(log: Log, otherwise: Glsn) -> Glsn:
    """What the first reference that is kept needs; 0 if that could not be found out."""
    info = await log.describe()
    if info.head > info.tail:
        return otherwise
    pieces = log.open_stored(info.head, info.tail)
    searched = 0
    try:
        while (piece := await pieces.next()) is not None:
            if isinstance(piece, Referred):
                return piece.reference.needed_from
            searched += piece.header.size if isinstance(piece, Piece) else 0
            if searched > SEARCH_BYTES_MAX:
                return 0
    except Trimmed:  # by somebody else, who does the rest, too
        return 0
    finally:
        pieces.close()
    return otherwise
