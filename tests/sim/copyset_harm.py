"""What may happen to a simulated copyset log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from copyset_calls import Message, ignore
from copyset_parties import LOG, Node

from loomlog.core.copyset.messages import Amend, Clean, Store, Trim, Trouble

if TYPE_CHECKING:
    from copyset_world import World

OFTEN: Final = (10, 6, 8, 2, 5, 5, 6, 3, 3, 4)  # how often each is done


class Harm:
    def __init__(self, world: World) -> None:
        """A seed has its own mixture."""
        self._world = world
        self._often = [weight * world.random.choice((0, 1, 1, 4)) for weight in OFTEN]
        self._often[0] += 1
        self._strikes = world.random.choice((0.0, 0.02, 0.1))

    def do(self) -> None:
        world, random = self._world, self._world.random
        up = [node for node in world.nodes.values() if node.up]
        down = [node for node in world.nodes.values() if not (node.up or node.gone)]
        match random.choices(range(len(OFTEN)), self._often)[0]:
            case 0:
                world.activate()
            case 1 if up:
                world.crash(random.choice(up))
            case 2 if down:
                world.restart(random.choice(down))
            case 3 if world.unlucky:
                self._lose_disk(world.nodes[random.choice(world.unlucky)])
            case 4 if world.hosts:
                recovering = [host for host in world.hosts if host.recovering]
                world.kill(random.choice(recovering or world.hosts))
            case 5 if world.hosts:
                process = random.choice(world.hosts).process
                world.blocked.add((process, random.choice([*world.nodes])))
            case 6:
                world.blocked.clear()
            case 7:
                random.choice([*world.nodes.values()]).trouble = random.choice([None, *Trouble])
            case 8:
                self._trim()
            case 9:
                world.replace_follower()

    def _lose_disk(self, node: Node) -> None:
        world = self._world
        if node.up:
            world.crash(node)
        there = [record.first for record in node.records.all()]
        node.lose_disk(world.store.state.epoch)
        node.gone = world.disaster and world.random.random() < 0.3 and self._is_spare(node)
        world.oracle.look_for_losses(there)

    def _is_spare(self, node: Node) -> bool:
        """Without it every nodeset keeps somebody who can be recovered from, and the newest one so
        many that it can be written to."""
        here = {n for n, other in self._world.nodes.items() if other is not node and not other.gone}
        history = self._world.store.state.history
        is_anybody_left = all(here.intersection(metadata.nodes) for metadata in history)
        return is_anybody_left and history[-1].can_hold_a_copyset(here)

    def _trim(self) -> None:
        world = self._world
        lsn = world.oracle.somewhere_released()
        world.judge.trimmed = max(world.judge.trimmed, lsn)
        for node in world.nodes:
            world.send(0, node, Trim(LOG, lsn), ignore)

    def strike(self, message: Message) -> None:
        """Now and then who recovers dies in the midst of it: of what it writes, some arrived."""
        world = self._world
        match message.request:
            case Store(record=record) | Amend(record=record) if not record.recovered:
                return
            case Store() | Amend() | Clean() if world.random.random() < self._strikes:
                for host in [host for host in world.hosts if host.process == message.sender]:
                    world.kill(host)
