"""The faults of a simulated copyset log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from copyset_parties import LOG, Message, Node, ignore

from loomlog.core.copyset.messages import Amend, Clean, Store, Trim
from loomlog.core.copyset.nodeset import Trouble, node_of
from loomlog.core.copyset.record import Epoch, Kind
from loomlog.core.copyset.storage import Put

if TYPE_CHECKING:
    from copyset_world import CopysetWorld

LOSE_DISK: Final = 3
COPY_AGAIN: Final = 16
OFTEN: Final = (10, 6, 8, 2, 5, 5, 6, 3, 3, 4, 3, 2, 3, 2, 2, 3, 1)  # how often each is done


class Harm:
    def __init__(self, world: CopysetWorld) -> None:
        """Choose a mixture of faults, by the seed."""
        self._world = world
        self.often = [weight * world.random.choice((0, 1, 1, 4)) for weight in OFTEN]
        self.often[0] += 1
        self._strikes = world.random.choice((0.0, 0.02, 0.1))

    def do(self) -> None:
        world, random = self._world, self._world.random
        up = [node for node in world.nodes.values() if node.up]
        down = [node for node in world.nodes.values() if not (node.up or node.gone)]
        match random.choices(range(len(OFTEN)), self.often)[0]:
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
            case 10:
                random.choice([*world.nodes.values()]).keep_copy()
            case 11 if world.unlucky:
                self._roll_back(world.nodes[random.choice(world.unlucky)])
            case 12 if world.hosts:
                world.finish(random.choice(world.hosts))
            case 13:
                for host in world.hosts:
                    host.exclusions.down = frozenset(node_of(node.node_id) for node in down)
            case 14:
                world.suspects ^= {random.choice([*world.nodes])}
            case 15:
                self._damage()
            case 16:
                self.copy_again()

    def _lose_disk(self, node: Node) -> None:
        world = self._world
        if node.up:
            world.crash(node)
        node.lose_disk(world.store.state.epoch)
        node.gone = world.disaster and world.random.random() < 0.5 and self._is_spare(node)

    def _roll_back(self, node: Node) -> None:
        if node.up:
            self._world.crash(node)
        if not node.gone:
            node.roll_back(self._world.store.state.epoch)

    def _is_spare(self, node: Node) -> bool:
        """Return whether, without the node, every nodeset can be recovered and the newest can be
        written to."""
        here = {n for n, other in self._world.nodes.items() if other is not node and not other.gone}
        history = self._world.store.state.history
        is_anybody_left = all(here.intersection(metadata.shards) for metadata in history)
        return is_anybody_left and history[-1].can_hold_a_copyset(here)

    def _trim(self) -> None:
        world = self._world
        lsn = world.somewhere_released()
        world.judge.trimmed = max(world.judge.trimmed, lsn)
        for node in world.nodes:
            world.send(0, node, Trim(LOG, lsn), ignore)

    def _damage(self) -> None:
        """Make copies of recovered epochs unreadable: a few, or all of the last records."""
        world, random = self._world, self._world.random
        clean = world.store.state.last_clean
        records = [r for node in world.nodes.values() for r in node.records.all()]
        records = [r for r in records if r.kind is Kind.DATA and r.epoch <= clean]
        if not records:
            return
        damaged = {r.first for r in random.sample(records, len(records) // 2 + 1)}
        nodes = world.unlucky
        if world.disaster:
            nodes = random.sample([*world.nodes], 2)
            if random.random() < 0.3:
                epoch = random.choice(records).epoch
                firsts = sorted({r.first for r in records if r.epoch == epoch})
                damaged, nodes = set(firsts[-random.randint(1, 3) :]), [*world.nodes]
        for node in nodes:
            world.nodes[node].unreadable |= damaged

    def copy_again(self) -> None:
        """Copy the recovered records of nodes that are gone to others."""
        world = self._world
        for node in [node for node in world.nodes.values() if node.gone]:
            state, me = world.store.state, node.node_id
            epochs = range(1, state.epoch + 1)
            concerned = [epoch for epoch in epochs if me in state.metadata_of(epoch).shards]
            are_clean = all(epoch <= state.last_clean for epoch in concerned)
            if are_clean and all(map(self._complete, concerned)):
                world.emptied.add(me)

    def _complete(self, epoch: Epoch) -> bool:
        """Return whether every record has as many copies as it should."""
        world, metadata = self._world, self._world.store.state.metadata_of(epoch)
        nodes = [world.nodes[n] for n in metadata.shards if not world.nodes[n].gone]
        nodes = [node for node in nodes if node.records.end_of(epoch) is not None]
        copies = {r.first: r for node in nodes for r in node.readable() if r.epoch == epoch}
        is_complete = True
        for record in [r for r in copies.values() if r.last > world.judge.trimmed]:
            holders = [node for node in nodes if record in node.readable()]
            spares = [node for node in nodes if record.first not in node.records.by_first]
            world.random.shuffle(spares)
            while spares and not metadata.can_hold_a_copyset([n.node_id for n in holders]):
                holders.append(spares.pop())
            is_complete &= metadata.can_hold_a_copyset([n.node_id for n in holders])
            copyset = tuple(node.node_id for node in holders)
            for node in holders:
                node.records.apply(Put(record._replace(copyset=copyset)))
        return is_complete

    def before_reading(self) -> None:
        world, random = self._world, self._world.random
        if random.random() < 0.5:
            self._damage()
        if world.unlucky and random.random() < 0.5:
            self._lose_disk(world.nodes[random.choice(world.unlucky)])
        up = [node for node in world.nodes.values() if node.up]
        for node in random.sample(up, min(len(up), random.randint(1, 2))):
            world.crash(node)

    def strike(self, message: Message) -> None:
        """Sometimes kill a recovery after some of its writes have arrived."""
        world = self._world
        match message.request:
            case Store(record=record) | Amend(record=record) if not record.recovered:
                return
            case Store() | Amend() | Clean() if world.random.random() < self._strikes:
                for host in [host for host in world.hosts if host.process == message.sender]:
                    world.kill(host)
