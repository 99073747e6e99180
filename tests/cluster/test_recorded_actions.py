"""The requests of operators that become events of the cluster."""

from __future__ import annotations

import pytest
from poll import until

from loomlog import errors
from loomlog.testing import LocalCluster


async def test_a_log_that_exists_already_is_no_event() -> None:
    async with LocalCluster(nodes=1) as cluster:
        for _ in range(2):
            await cluster.create_log("orders", replicas=1, exist_ok=True)
        with pytest.raises(errors.InvalidArgument):
            await cluster.create_log("large", replicas=3)

        async def actions() -> list[str]:
            return [each.text for each in await cluster.events() if "log create" in each.text]

        async def recorded() -> bool:
            return any("large failed" in text for text in await actions())

        await until(recorded)
        assert len(await actions()) == 2, "that it was created, and that another one was not"
