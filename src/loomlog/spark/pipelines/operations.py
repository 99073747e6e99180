"""What an operator does with a pipeline.

No runner has to be told: it looks at the progress before it begins something new. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from loomlog.spark.pipelines import units
from loomlog.spark.pipelines.store import ProgressStore
from loomlog.spark.pipelines.units import Progress
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingCluster


def pause(cluster: BlockingCluster, name: str, *, wanted: bool) -> Progress:
    """No new unit is begun, or units are begun again."""
    return ProgressStore(cluster, name).change(lambda now: units.paused(now, wanted))


def reset(cluster: BlockingCluster, name: str, to: Glsn | str, *, same_output: bool) -> Progress:
    """Begin anew at a position of its sources, "earliest" or "latest"."""
    store = ProgressStore(cluster, name)
    behind = _behind(cluster, store.load().positions, to)
    return store.change(lambda now: units.reset(now, behind, same_output=same_output))


def _behind(
    cluster: BlockingCluster, positions: Mapping[str, Glsn], to: Glsn | str
) -> dict[str, Glsn]:
    if isinstance(to, int):
        return dict.fromkeys(positions, to - 1)
    if to == "latest":
        return {log: cluster.log(log).tail() for log in positions}
    return {log: cluster.log(log).earliest() - 1 for log in positions}
