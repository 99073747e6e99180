"""A copyset log all of whose disks are replaced, at once, by older or newer copies of them."""

from __future__ import annotations

from copyset_parties import Node
from copyset_world import STEPS, CopysetWorld


class RolledBackWorld(CopysetWorld):
    """All copies of records are lost that were stored since, and those that recovery wrote."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, disaster=True)
        self.unlucky = [*self.nodes]

    def run(self) -> None:
        for _ in range(self.random.randint(20, STEPS // 4)):
            self._step()
        self._keep_copies()
        self._stop_sequencers()
        self._calm_down()
        self.settle()
        self._replace_disks()
        super().run()

    def _keep_copies(self) -> None:
        for node in self.nodes.values():
            node.keep_copy()

    def _stop_sequencers(self) -> None:
        for host in [*self.hosts]:
            self.kill(host)

    def _replace_disks(self, share: float = 1.0) -> None:
        for node in self._down():
            if self.random.random() < share:
                node.roll_back(self.store.state.epoch)

    def _down(self) -> list[Node]:
        """Stop all nodes, and return those that are not gone."""
        for node in self.nodes.values():
            if node.up:
                self.crash(node)
        return [node for node in self.nodes.values() if not node.gone]


class PutBackWorld(RolledBackWorld):
    """Older copies of all disks are used for a while. Then the disks from before are put back, or
    some of them: whatever these have is read again, and nothing that recovery made a hole."""

    def run(self) -> None:
        for _ in range(self.random.randint(20, STEPS // 4)):
            self._step()
        self._keep_copies()
        for _ in range(self.random.randint(20, STEPS // 4)):
            self._step()
        for host in [*self.hosts]:
            if self.random.random() < 0.5:
                self.finish(host)
        self._stop_sequencers()
        self._replace_disks()
        self._calm_down()
        self.settle()
        self._replace_disks(0.8)
        CopysetWorld.run(self)
