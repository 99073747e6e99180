"""The protocols that logs can use. Tests add others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from loomlog.metadata.chained.keeper import ChainedKeeper
from loomlog.metadata.chained.records import ChainedDraft
from loomlog.metadata.copyset.keeper import CopysetKeeper
from loomlog.metadata.copyset.records import CopysetDraft
from loomlog.metadata.offline.rebuild import RoundRebuild
from loomlog.metadata.ordered.draft import OrderedDraft
from loomlog.metadata.ordered.keeper import OrderedKeeper
from loomlog.metadata.ordered.rebuild import OrderedRebuild
from loomlog.metadata.protocol import KeeperContext, Keepers, LoadKeeper
from loomlog.metadata.rollback.draft import ProtocolDraft

KEEPERS: Final[dict[str, LoadKeeper]] = {
    keeper.protocol: keeper.load for keeper in (OrderedKeeper, ChainedKeeper, CopysetKeeper)
}

# For `loom metadata catch-up`; in the order in which records are drafted.
DRAFTS: Final[dict[str, Callable[[], ProtocolDraft]]] = {
    draft.protocol: draft for draft in (OrderedDraft, ChainedDraft, CopysetDraft)
}

# For `loom metadata rebuild`: one protocol has commit rounds.
REBUILD: Final[type[RoundRebuild]] = OrderedRebuild


async def load_keepers(keepers: Keepers, context: KeeperContext) -> None:
    """Create one keeper for each protocol; each reads its records."""
    for protocol, load in KEEPERS.items():
        keepers[protocol] = await load(context)
