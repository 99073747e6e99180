"""The generation of the data on a volume, used to decide at start whether it may have lost writes.
Pure.

Nothing is lost if the node was stopped, or if only its process was killed: the kernel kept its
writes. But the machine may have lost power, a disk may have lost writes that it had confirmed, or
an operator may have restored a copy. Therefore the mark of a running node contains the stamp of a
file next to it (storage/files.py:Files), which is different after a boot and in a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple


class Generation(NamedTuple):
    """The generation of the data on a volume."""

    number: int
    clean: bool = False  # the node stopped and had written everything
    stamp: str = ""  # of the volume's origin file; "": not in a life that was confirmed


NO_GENERATION: Final = Generation(0)


def life_goes_on(volumes: Iterable[tuple[Generation | None, str]]) -> bool:
    """Return whether no volume of a node can have lost writes. Of each volume are given its mark
    (None: it cannot be read) and the present stamp of its origin file ("": it has none)."""
    return all(
        mark is not None and (not mark.number or mark.clean or mark.stamp == stamp != "")
        for mark, stamp in volumes
    )
