"""Two sites of a pipeline, as processes: one freezes in the midst of a unit, the other goes on, and
the first one, when it is woken, is fenced. The output is exact whatever step it slept in."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kill_rig import SparkDriver, cleared, pipeline_run, progress_of, until

import loomlog
from loomlog.spark import table_files

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

LEASE_S = 3.0
SLACK_S = 15.0  # of a busy machine
DEFINITIONS = """
import time
from pathlib import Path

from loomlog.spark import parquet, pipeline

PLACE = Path("{place}")

class Gated:
    '''A table; who finds hold-STEP at a step makes it held-STEP, and waits till that is gone.'''

    inner = parquet(PLACE / "table")

    def stage(self, frame, unit):
        staged = self.inner.stage(frame, unit)
        self.at("staged")
        return staged

    def publish(self, unit, staged):
        self.at("decided")
        self.inner.publish(unit, staged)
        self.at("published")

    def at(self, step):
        try:
            (PLACE / f"hold-{{step}}").rename(PLACE / f"held-{{step}}")
        except FileNotFoundError:
            return
        while (PLACE / f"held-{{step}}").exists():
            time.sleep(0.01)

COMMON = {{
    "source": "{name}", "decode": "json", "schema": "n long", "output": Gated(),
    "lease_ttl_s": {lease_s},
}}

@pipeline("{name}", **COMMON)
def copied(rows):
    return rows.select("n")

@pipeline(
    "{name}-unique",
    stateful=True, checkpoint=str(PLACE / "checkpoint"), watermark=("timestamp", "1 hour"),
    **COMMON,
)
def unique(rows):
    return rows.dropDuplicatesWithinWatermark(["n"]).select("n")
"""


class TwoSites:
    """A pipeline with two sites, of which `active` is at work and `standby` is not."""

    def __init__(
        self, cluster: loomlog.Cluster, address: str, log: loomlog.Log, place: Path, pipeline: str
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._place = place
        self._pipeline = pipeline
        definitions = place / "definitions.py"
        definitions.write_text(DEFINITIONS.format(place=place, name=log.name, lease_s=LEASE_S))
        self.active, self.standby = (
            pipeline_run(
                definitions, pipeline, address, place, site=site, spark_master="local[1,4]"
            )
            for site in ("north", "south")
        )

    async def append(self, numbers: Sequence[int]) -> None:
        await self._log.append_many([json.dumps({"n": n}).encode() for n in numbers])

    async def committed(self) -> None:
        """Wait until everything in the log is committed."""
        tail = await self._log.tail()

        async def done() -> bool:
            progress = await progress_of(self._cluster, self._pipeline)
            return progress is not None and progress.positions[self._log.name] >= tail

        await until(done, f"{tail} records are committed", self.active, self.standby)

    async def heard(self, driver: SparkDriver, text: str) -> None:
        async def said() -> bool:
            assert driver.running, driver.said
            return text in driver.said

        await until(said, f"{driver.name} says {text!r}", driver)

    async def replaced_at(self, step: str, numbers: Sequence[int]) -> None:
        """Freeze the active site at a step of the next unit, and wake it up when the other one is
        far ahead; in the end the two have changed places."""
        hold, held = self._place / f"hold-{step}", self._place / f"held-{step}"
        hold.touch()
        await self.append(numbers)

        async def is_held() -> bool:
            return held.exists()

        await until(is_held, f"the active site is at {step}", self.active)
        frozen, taking_over = self.active, self.standby
        frozen.freeze()
        begin = time.monotonic()
        await self.heard(taking_over, "active as site")
        assert time.monotonic() - begin < LEASE_S + SLACK_S
        await self.committed()
        await self.append([n + 10_000 for n in numbers])
        await self.committed()
        held.unlink()
        frozen.wake()
        assert await frozen.wait() == 1
        assert "was replaced: another one runs pipeline" in frozen.said
        self.active, self.standby = taking_over, frozen

    def rows(self) -> list[int]:
        files = table_files(self._place / "table")
        return sorted(n for file in files for n in pq.read_table(file)["n"].to_pylist())


@pytest.mark.parametrize(
    ("stateful", "steps"),
    [(False, ("staged", "decided", "published")), (True, ("staged", "decided"))],
    ids=["stateless", "stateful"],
)
async def test_a_site_that_slept_is_fenced_and_the_output_is_exact(
    cluster_address: str, tmp_path: Path, stateful: bool, steps: Sequence[str]
) -> None:
    name = f"site-{uuid.uuid4().hex[:8]}"
    async with await loomlog.connect(cluster_address) as cluster:
        log = await cluster.create_log(name, streams=2, replicas=2)
        pipeline = f"{name}-unique" if stateful else name
        sites = TwoSites(cluster, cluster_address, log, tmp_path, pipeline)
        async with cleared(sites.active, sites.standby):
            await sites.active.start()
            await sites.heard(sites.active, "active as site")
            expected: list[int] = []
            for turn, step in enumerate(steps):
                await sites.standby.start()
                await sites.heard(sites.standby, "standing by as site")
                numbers = range(100 * turn, 100 * turn + 50)
                await sites.replaced_at(step, numbers)
                expected += [*numbers, *(n + 10_000 for n in numbers)]
            if stateful:
                await sites.append(expected)  # all of them were there before
                await sites.committed()
            assert await sites.active.stop() == 0
            assert "Traceback" not in sites.active.said
        assert sites.rows() == sorted(expected)
        await cluster.delete_log(name)
