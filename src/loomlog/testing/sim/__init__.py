"""The deterministic simulator: ordinary asyncio programs under a virtual clock, network and disk.

Every simulated process has an event loop of its own on one shared clock; a crash is a loop whose
callbacks never run again. One thread, one seed, the same run every time. Start with
`Simulation`; `python -m loomlog.testing.sim --help` runs many seeds.

    Simulation   hosts, network, clock          simulation.py
    Host         a machine; Process, one life   host.py
    World        virtual time, event queue      world.py
    SimLoop      asyncio on a World             loop.py
    Network      partitions, delays, resets     net.py, transport.py
    SimDisk      what a power loss leaves       disk.py, blocks.py
    Nemesis      faults at random times         faults.py
    Workload     what runs under the faults     run.py, workloads/
    SimCluster   the real servers on all this   cluster.py (not imported here: it needs them all)
"""

from loomlog.testing.sim.disk import DiskSettings, SimDisk, SimFiles, SimWorker
from loomlog.testing.sim.faults import FAULTS, FaultPlan, Nemesis
from loomlog.testing.sim.host import Host, Process
from loomlog.testing.sim.loop import SimLoop
from loomlog.testing.sim.net import Network, NetworkSettings
from loomlog.testing.sim.run import Outcome, Workload, run_seed
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
    "Outcome",
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
    "Workload",
    "World",
    "run_seed",
]
