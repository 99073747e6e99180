"""What the simulation found, kept: the seed, and what it was.

A seed means the same run only until the workload changes; so each bug that can be told in a few
lines is told again below, without chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from loomlog.metadata.file_round_log import FileRoundLog
from loomlog.storage.volumes import Volumes
from loomlog.testing.sim import Process, SimFiles, Simulation
from loomlog.testing.sim.run import Choice, run_seed


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        (1, "crashes"),  # a power loss took the directory of the round log, which was not synced
        (48, "crashes"),  # ... brought replicas back that had been removed for good
        (80, "crashes"),
        (77, "crashes"),  # a primary asked its backup over a dead connection, again and again
        # A primary refused an append for its seal while a replica was asked about it: both
        # answers sent it elsewhere, and it was appended twice.
        (241, "crashes"),
        # A node was too slow to remove a deleted log's replica; nobody asked it again.
        (40121, "pauses"),
    ],
)
def test_seeds_that_failed_once(seed: int, faults: str) -> None:
    outcome = run_seed(Choice(seed, faults=faults))
    assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation(seed=1) as simulation:
        yield simulation


def lives(sim: Simulation, life: object, count: int) -> None:
    """A program that runs to its end on one host, with a power loss after each life."""
    host = sim.host("host")
    for _ in range(count):
        process = host.start(life)  # type: ignore[arg-type]
        sim.run(lambda process=process: process.finished)  # type: ignore[misc]
        host.crash()


def test_a_new_round_log_survives_a_power_loss(sim: Simulation) -> None:
    opened: list[FileRoundLog] = []

    async def life(process: Process) -> None:
        create = not opened
        opened.append(
            FileRoundLog.open(process.files, "/new/vmr/rounds", process.worker(), create=create)
        )

    lives(sim, life, 5)
    assert len(opened) == 5  # each found what the first had made


@pytest.mark.parametrize("seed", range(10))
def test_a_removed_replica_does_not_come_back(seed: int) -> None:
    found: list[list[int]] = []

    def volumes(files: SimFiles) -> Volumes:
        files.make_directory("/data")
        files.sync_directory("/")
        return Volumes(files, ["/data"], "sim", 1, new_secret=lambda: "secret")

    async def life(process: Process) -> None:
        node = volumes(process.files)
        found.append(sorted(node.streams))
        if len(found) == 1:
            path = node.place(7, {})
            process.files.make_directory(path)
            file = process.files.open(f"{path}/meta", create=True)
            file.sync()
            process.files.sync_directory(path)
            process.files.sync_directory(path.rpartition("/")[0])
        elif len(found) == 2:
            node.remove(7)

    with Simulation(seed) as sim:
        lives(sim, life, 4)
    assert found == [[], [7], [], []]


def test_bytes_for_a_process_that_dies_as_they_arrive_come_back_as_a_reset(
    sim: Simulation,
) -> None:
    """The simulator's own bug behind seed 77: they vanished, and nobody ever heard of it."""

    async def server(process: Process) -> None:
        async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        await (await asyncio.start_server(ignore, "server", 1)).serve_forever()

    async def client(process: Process) -> None:
        _, writer = await asyncio.open_connection("server", 1)
        host.strike_after(crash_unheard, turns=3)
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.001)
        except ConnectionResetError:
            return

    def crash_unheard() -> None:
        host.crash()
        for _ in range(20):  # each may lose the reset that the crash would have sent
            sim.network.heal()

    host = sim.host("server")
    host.start(server)
    sim.run(0.005)
    writing = sim.host("client").start(client)
    sim.world.after(0.1, host.start, server)
    sim.run(lambda: writing.finished, timeout_s=60)
