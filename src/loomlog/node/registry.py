"""The protocols that storage nodes run, by name. Tests may add others before a node starts."""

from __future__ import annotations

from typing import Final

from loomlog.node.chained.service import ChainedService
from loomlog.node.copyset.service import CopysetService
from loomlog.node.ordered.service import OrderedService
from loomlog.node.protocol import MakeProtocol

# Creating one recovers what is on the disks, which blocks.
PROTOCOLS: Final[dict[str, MakeProtocol]] = {
    "ordered": OrderedService,
    "chained": ChainedService,
    "copyset": CopysetService,
}
