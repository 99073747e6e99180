"""An operator who chooses again and again which node appends go to first."""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.errors import LoomError
from loomlog.testing.sim.host import Process
from workloads.cluster import LOG, Run

PAUSE_MAX_S: Final = (0.1, 0.4)


async def choose_primaries(run: Run, process: Process) -> None:
    """Choose primaries, heads and sequencers of the log, until all is calm."""
    random, nodes = run.random, run.servers.shape.nodes
    pause_max_s = random.choice(PAUSE_MAX_S)
    async with await run.connect(process) as cluster:
        while not run.calm:
            await asyncio.sleep(random.random() * pause_max_s)
            try:
                stream = random.choice((await cluster.log(LOG).describe()).streams)
                part = random.randrange(max(1, len(stream.chains)))
                node = random.choice((*stream.nodes_of(part), random.randint(1, nodes)))
                await cluster.set_primary(stream.id, node, part)
            except LoomError:
                pass  # refused, or nobody knows: both are fine
