"""The names that users see in a notebook after a dot and the tab key."""

from __future__ import annotations

from fake_cluster import FakeCluster

from loomlog import connect

LOG = {
    *("append", "append_many", "append_arrow", "stage", "writer", "trim", "name"),
    *("read", "subscribe", "subscribe_arrow", "subscribe_stream", "subscribe_stream_arrow"),
    *("head", "tail", "earliest", "is_empty", "find_time", "find_last", "locate", "describe"),
    *(
        "archive",
        "checkpoint",
        "checkpoints",
        "group",
        "groups",
        "queue",
        "queues",
        "pipeline",
        "set_retention",
    ),
}


async def test_a_log_shows_its_public_api_only() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        assert {name for name in dir(cluster.log("events")) if not name.startswith("_")} == LOG
