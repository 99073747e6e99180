"""What the sequencers of a node share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from loomlog.core.copyset.exclusions import Exclusions
from loomlog.core.copyset.messages import Release
from loomlog.core.copyset.placement import Chance
from loomlog.core.copyset.sequencer import SequencerSettings
from loomlog.node.copyset.asking import Asker, AskNode
from loomlog.node.copyset.epoch_store import EpochStore
from loomlog.node.copyset.looking_back import FindBatch
from loomlog.types import NodeId


@dataclass(frozen=True, slots=True)
class Means:
    me: NodeId
    ask: AskNode
    tell: Callable[[NodeId, Release], None]
    asker: Asker
    find_batch: FindBatch
    epochs: EpochStore
    exclusions: Exclusions
    chance: Chance
    settings: SequencerSettings
    now_us: Callable[[], int]
    spawn: Callable[[Coroutine[Any, Any, None]], object]
