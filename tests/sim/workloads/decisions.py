"""Decisions on transactions that are trimmed by themselves, under faults.

Writers make transactions while others trim the logs. What was acknowledged and not trimmed must be
there in the end, whatever became of the decisions. Once everything is trimmed, those go, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from sim_cluster import Shape

from loomlog import Gap
from loomlog.client.cluster import Cluster
from loomlog.core.transactions import DECISIONS_LOG
from loomlog.errors import Retryable, RolledBack, Timeout
from loomlog.metadata.logs import decisions as trimmer
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation
from workloads.transactions import PAUSE_MAX_S, Transactions, run_in

INTERVALS_S: Final = (0.01, 0.05, 0.3)
WHOLE: Final = 0.5  # of the trims


def decisions(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module."""
    random = sim.world.random
    shape = replace(
        Shape.draw(random, power_losses="crash" in plan.kinds),
        retention_interval_s=random.choice(INTERVALS_S),
    )
    with patch.object(trimmer, "LATE_S", 0.0):
        return run_in(shape, sim, plan, _TrimmedTransactions)


class _TrimmedTransactions(Transactions):
    async def _witness(self, process: Process) -> None:
        """Trim one log after the other."""
        cluster = await self._run.connect(process)
        while not self._run.calm:
            try:
                await self._trim(cluster, self._random.choice(list(self._logs)))
            except (Retryable, RolledBack):
                pass
            await asyncio.sleep(self._random.random() * PAUSE_MAX_S)

    async def _trim(self, cluster: Cluster, name: str, *, whole: bool = False) -> None:
        log = cluster.log(name)
        head, tail = await log.head(), await log.tail()
        if head <= tail:
            whole = whole or self._random.random() < WHOLE
            await log.trim(tail if whole else self._random.randint(head, tail))

    async def _trim_all(self, cluster: Cluster, name: str) -> None:
        while True:
            try:
                return await self._trim(cluster, name, whole=True)
            except Timeout:  # the trim waits for a volume that is not used again yet
                await asyncio.sleep(0.1)

    async def _judge(self, process: Process) -> None:
        async with await self._run.connect(process) as cluster:
            seen: dict[str, dict[str, int]] = {}
            heads: dict[str, int] = {}
            for name in self._logs:
                log = cluster.log(name)
                heads[name], tail = await log.head(), await log.tail()
                async for item in log.subscribe(heads[name], tail, gaps=True):
                    if not isinstance(item, Gap):
                        transaction = item.value.decode().split("/")[0]
                        seen.setdefault(transaction, {}).setdefault(name, item.position)
            for name, places in self._acked.items():
                left = {log: at for log, at in places.items() if at >= heads[log]}
                found = {log: seen.get(name, {}).get(log) for log in left}
                assert found == left, f"{name} was acknowledged at {places}, and is at {found}"
            for name in self._logs:
                await self._trim_all(cluster, name)
            while not await cluster.log(DECISIONS_LOG).is_empty():  # noqa: ASYNC110 - only asked
                await asyncio.sleep(0.1)
