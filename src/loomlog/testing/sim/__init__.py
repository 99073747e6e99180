"""The deterministic simulator: ordinary asyncio programs under a virtual clock, network and disk.

Every simulated process has an event loop of its own on one shared clock; a crash is a loop whose
callbacks never run again. One thread, one seed, the same run every time. Start with
`Simulation`. The tests of loomlog itself (`make sim`), with whole clusters, are in tests/sim.

    Simulation   hosts, network, clock          simulation.py
    Host         a machine; Process, one life   host.py
    World        virtual time, event queue      world.py
    SimLoop      asyncio on a World             loop.py
    Network      partitions, delays, resets     net.py, transport.py
    SimDisk      files, and power losses        disk.py, blocks.py
    Nemesis      faults at random times         faults.py
"""

from loomlog.testing.sim.disk import DiskSettings, SimDisk, SimFiles, SimWorker
from loomlog.testing.sim.faults import FAULTS, FaultPlan, Nemesis
from loomlog.testing.sim.host import Host, Process
from loomlog.testing.sim.loop import SimLoop
from loomlog.testing.sim.net import Network, NetworkSettings
from loomlog.testing.sim.simulation import Simulation
from loomlog.testing.sim.world import (
    Failed,
    Overdue,
    Runaway,
    SimulationError,
    Stalled,
    World,
)

__all__ = [
    "FAULTS",
    "DiskSettings",
    "Failed",
    "FaultPlan",
    "Host",
    "Nemesis",
    "Network",
    "NetworkSettings",
    "Overdue",
    "Process",
    "Runaway",
    "SimDisk",
    "SimFiles",
    "SimLoop",
    "SimWorker",
    "Simulation",
    "SimulationError",
    "Stalled",
    "World",
]
