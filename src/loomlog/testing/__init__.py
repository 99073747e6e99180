"""For tests of loomlog and of programs that use it.

    LocalCluster   a whole cluster in this process, for tests and notebooks
    LocalEtcd      etcd processes on this machine
    sim            the deterministic simulator: clock, network and disk from one seed
    history        records what clients did and saw; `check` proves that it was one log

The simulator is not imported here: `from loomlog.testing.sim import Simulation`.
"""

from loomlog.testing.etcd import LocalEtcd
from loomlog.testing.history import History, Rule, Violation, check
from loomlog.testing.local import LocalCluster

__all__ = ["History", "LocalCluster", "LocalEtcd", "Rule", "Violation", "check"]
