"""Support for tests of loomlog and of programs that use it.

    LocalCluster   a whole cluster in this process, for tests and notebooks
    LocalEtcd      etcd processes on this machine
    sim            the deterministic simulator: clock, network and disk from one seed
    history        records what clients did and saw; `check` proves that it was one log

The simulator is not imported here: `from loomlog.testing.sim import Simulation`. Other names are
loaded when they are first used: `loom up` starts an etcd, and needs no servers in its process.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loomlog.testing.etcd import LocalEtcd
    from loomlog.testing.history import History, Rule, Violation, check
    from loomlog.testing.local import LocalCluster

__all__ = ["History", "LocalCluster", "LocalEtcd", "Rule", "Violation", "check"]
_HOMES = {"LocalCluster": "local", "LocalEtcd": "etcd"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'history')}"), name)
