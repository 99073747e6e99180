"""Joins small batches, so that a member searches many of them at once.

A search takes about thirty calls of numpy and Arrow, however few the rows are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol, TypeGuard

import numpy as np
import pyarrow as pa

from loomlog import limits
from loomlog.client.groups.fetcher import PieceFetcher
from loomlog.client.subscribe.pieces import Piece, Rows
from loomlog.columns.layout import BINARY
from loomlog.columns.reader import entries_of, headers_of, index_column, int64_numbers, items
from loomlog.errors import LoomError
from loomlog.types import NO_HEADERS, Entry

_SMALL_ROWS: Final = 500  # batches with more are searched one at a time
_ROWS_MAX: Final = 2000
_BYTES_MAX: Final = limits.MIB


class SearchedRows(Protocol):
    """Consecutive records of one or several pieces."""

    def positions_and_keys(self) -> tuple[Any, Any]: ...

    def chosen(self, indices: Any) -> Iterable[Entry]: ...


class JoinedRows:
    """The rows of several pieces, in order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._counts = np.array([piece.rows for piece in pieces])
        ends = self._counts.cumsum()
        self._starts = ends - self._counts  # the index of the first row of each piece
        self._rows = int(ends[-1])

    def positions_and_keys(self) -> tuple[Any, Any]:
        firsts = np.array([piece.last_position - piece.rows + 1 for piece in self._pieces])
        positions = np.arange(self._rows) + np.repeat(firsts - self._starts, self._counts)
        return positions, _joined(self._pieces, [piece.batch.keys for piece in self._pieces])

    def chosen(self, indices: Any) -> Iterable[Entry]:
        """Return the entries at these indices, which ascend. There must be one."""
        owners = self._starts.searchsorted(indices, "right") - 1  # the piece of each row
        is_first = np.concatenate(([True], owners[1:] != owners[:-1]))
        used, which = owners[is_first], is_first.cumsum() - 1
        # Only the pieces that have chosen rows are copied.
        pieces = [self._pieces[number] for number in used.tolist()]
        offsets = indices - self._starts[owners]  # of each row in its piece
        counts = self._counts[used]
        rows = offsets + (counts.cumsum() - counts)[which]
        position, llsn, stream = np.array([_place(piece) for piece in pieces]).T
        keys = _joined(pieces, [piece.batch.keys for piece in pieces])
        headers = _joined(pieces, [piece.batch.headers for piece in pieces])
        times = _joined(pieces, [piece.batch.timestamps for piece in pieces])
        return entries_of(
            (position[which] + offsets).tolist(),
            stream[which].tolist(),
            (llsn[which] + offsets).tolist(),
            int64_numbers(times)[rows].tolist(),
            repeat(None) if keys is None else items(keys, rows),
            items(_joined(pieces, [piece.batch.values for piece in pieces]), rows),
            repeat(NO_HEADERS) if headers is None else headers_of(headers.take(index_column(rows))),
        )


def _place(piece: Piece) -> tuple[int, int, int]:
    """Return the numbers of the first row of a piece: position, LLSN and stream."""
    header = piece.header
    return header.first_position + piece.skip, piece.first_llsn, header.stream_id


def _joined(pieces: Sequence[Piece], columns: Sequence[Any]) -> Any:
    """Return one column for the rows of all pieces; None if no piece has that column."""
    if all(column is None for column in columns):
        return None
    return pa.concat_arrays(map(_rows_of, pieces, columns))


def _rows_of(piece: Piece, column: Any) -> Any:
    if column is None:
        return pa.nulls(piece.rows, BINARY)
    is_whole = len(column) == piece.rows
    return column if is_whole else column.slice(piece.skip, piece.rows)


def ready_rows(reader: PieceFetcher) -> SearchedRows | None:
    """Return the next rows if they have arrived: small batches together, others one by one."""
    first = reader.ready()
    if first is None or not _is_small(first):
        return first
    pieces, count, size = [first], first.rows, first.header.size
    while count < _ROWS_MAX and size < _BYTES_MAX:
        try:
            rows = reader.ready()
        except LoomError as error:  # comes after what arrived before it
            reader.put_back(error)
            break
        if rows is None:
            break
        if not _is_small(rows):
            reader.put_back(rows)
            break
        pieces.append(rows)
        count += rows.rows
        size += rows.header.size
    return JoinedRows(pieces) if len(pieces) > 1 else first


def _is_small(rows: Rows) -> TypeGuard[Piece]:
    return isinstance(rows, Piece) and rows.rows <= _SMALL_ROWS
