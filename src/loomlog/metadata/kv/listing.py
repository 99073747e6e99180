"""Names of registers and leases, and lists of them that are sent in parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from loomlog import limits
from loomlog.errors import InvalidArgument
from loomlog.wire import loomlog_pb2 as pb

T = TypeVar("T", pb.RegisterValue, pb.Lease)


def check_name(what: str, name: str) -> str:
    if not name.isprintable() or not 1 <= len(name) <= limits.REGISTER_NAME_CHARS_MAX:
        raise InvalidArgument(
            f"{name!r} is no name of a {what}: use 1 to {limits.REGISTER_NAME_CHARS_MAX} "
            "printable characters"
        )
    return name


def part_of(found: Iterable[T], after: str) -> tuple[list[T], bool]:
    """Return the items after this name that fit into one answer, and whether there are more."""
    part: list[T] = []
    size = 0
    for item in found:
        if item.name <= after:
            continue
        size += item.ByteSize()
        if part and size > limits.LIST_BYTES:
            return part, True
        part.append(item)
    return part, False
