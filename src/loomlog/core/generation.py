"""The generation of the data on a volume, and whether a node that is started may have forgotten
something. Pure.

A node that is started again has forgotten nothing if it stopped before, or if only its process was
killed: what it had written was in the memory of the machine. But the machine may have lost its
power, and a disk what it had confirmed; or an operator put a copy of the data back. So the mark of
a running node has the stamp of a file beside it (storage/files.py:Files): after a boot, and in a
copy, the stamp of that file is another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple


class Generation(NamedTuple):
    """The generation of the data on a volume."""

    number: int
    clean: bool = False  # the node stopped, and wrote all that it had
    stamp: str = ""  # of the volume's origin, while a life is under way that is known


NO_GENERATION: Final = Generation(0)


def life_goes_on(volumes: Iterable[tuple[Generation | None, str]]) -> bool:
    """Return whether no volume of a node can have forgotten anything, given the mark that was found
    on each, None if it cannot be read, and the present stamp of its origin, "" if it has none."""
    return all(
        mark is not None and (not mark.number or mark.clean or mark.stamp == stamp != "")
        for mark, stamp in volumes
    )
