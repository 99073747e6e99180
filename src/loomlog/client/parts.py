"""The parts of a subscription: each follows one stretch of a log, the way its protocol is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from loomlog.client.orders import Order
from loomlog.client.pieces import Stored
from loomlog.errors import LoomError, Trimmed
from loomlog.wire import loomlog_pb2 as pb


class Part(Protocol):
    """For one consumer at a time. Numbers only grow; a number that is skipped has no entry."""

    @property
    def last(self) -> int:
        """Its last number, once it is over."""

    async def next(self) -> Stored | None:
        """What comes next; None when the stretch, or what was asked for of it, is over."""

    def next_ready(self) -> Stored | None:
        """The same, if it is here already."""

    def close(self, error: LoomError | None = None) -> None:
        """Stop; a consumer that waits is told `error`."""


OpenPart: TypeAlias = Callable[[pb.Log, int, int | None], Part]
"""Follows the stretch that holds a number, from that one on to a last one."""

PartsByProtocol: TypeAlias = Mapping[str, OpenPart]


def trimmed(order: Order, number: int, log: str, head: int) -> Trimmed:
    return Trimmed(
        f"{order.describe(number)} of log {log!r} was trimmed; "
        f"the first one kept is {head}: subscribe from there or from 'earliest'"
    )
