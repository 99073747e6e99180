"""Operators' requests about nodes: recorded as desired state, which the protocols' keepers
reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final

from loomlog import limits
from loomlog.core.conditions import Condition, Kind
from loomlog.core.outage import LogOutage, of_log
from loomlog.errors import InvalidArgument, NotFound, Unavailable
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.logs.admin import logged
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.protocol import Keepers, ReplicaSet
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.01  # while others take over from a node that stops
RESTART_S_MAX: Final = 86_400.0  # a day; replicas that are away longer should be replaced
_GIVE_UP: Final = (
    pb.ChangeNode.REMOVE,
    pb.ChangeNode.REPLACE,
    pb.ChangeNode.MARK_UNRECOVERABLE,
)


class NodeOperator:
    """Checks, drains, removes, replaces and cleans up storage nodes."""

    def __init__(self, catalog: Catalog, nodes: ConnectedNodes, keepers: Keepers) -> None:
        self._catalog = catalog
        self._nodes = nodes
        self._keepers = keepers
        change = pb.ChangeNode
        self._changes: dict[int, Callable[[pb.ChangeNode], Awaitable[pb.Changed]]] = {
            change.DRAIN: self._drain,
            change.UNDRAIN: self._undrain,
            change.REMOVE: self._remove,
            change.CLEANUP: self._cleanup,
            change.REPLACE: self._replace,
            change.RESTART: self._restart,
            change.MARK_UNRECOVERABLE: self._mark_unrecoverable,
        }

    async def change(self, request: pb.ChangeNode) -> pb.Changed:
        change = self._changes.get(request.action)
        if change is None:
            raise InvalidArgument(f"there is no change {request.action} of a node")
        node = request.storage_node_id
        self._catalog.node(node)
        changed = logged(await change(request))
        if request.action in _GIVE_UP and not self._nodes.alive(node):
            self._nodes.cut(node)  # a hanging process would continue as if it had its data
        return changed

    # ---- check

    def check(self, request: pb.CheckNodes) -> pb.NodesOutage:
        """Return the effect of stopping nodes, in addition to those that are already away."""
        stopped = set(request.nodes)
        for node in stopped:
            self._catalog.node(node)
        if request.location:
            found = {n for n, where in self._catalog.locations.items() if where == request.location}
            if not found:
                raise NotFound(
                    f"no node has the location {request.location!r}: `loom node list` shows them"
                )
            stopped |= found
        away = {node for node in self._catalog.nodes if not self._nodes.reachable(node)}
        logs = [log for log in self._catalog.logs.values() if not log.unfinished]
        outages = {log.name: self._outage(log, away | stopped) for log in logs}
        return pb.NodesOutage(
            nodes=sorted(stopped),
            away=sorted(away - stopped),
            logs=len(logs),
            affected=[
                pb.LogOutage(
                    name=name,
                    copies=outage.copies,
                    copies_left=outage.copies_left,
                    appends_stop=outage.appends_stop,
                    reads_stop=outage.reads_stop,
                )
                for name, outage in sorted(outages.items())
                if outage is not None and outage.is_affected
            ],
        )

    def _outage(self, log: LogRecord, away: set[NodeId]) -> LogOutage | None:
        parts = (part for keeper in self._keepers.values() for part in keeper.outage(log, away))
        return of_log(parts)

    # ---- drain and undrain

    async def _drain(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        if request.volume:
            return await self._drain_volume(node, request.volume)
        await self._catalog.update_node(node, draining=True)
        self._wishes_changed(node)
        moving = len(self._replicas_on(node))
        stuck = [name for keeper in self._keepers.values() for name in keeper.stuck_on(node)]
        if not moving:
            then = f"it is empty: `loom node remove {node}` forgets it"
        elif stuck:
            then = (
                f"{moving} replicas move away, but {len(stuck)} of them find no other node "
                f"yet ({', '.join(stuck)}): start another one"
            )
        else:
            then = f"{moving} replicas move to other nodes, a few at a time"
        return pb.Changed(done=f"node {node} is being drained: it takes nothing new", next=then)

    async def _drain_volume(self, node: NodeId, volume: str) -> pb.Changed:
        """Move all data off one volume. Repeated requests return what is left."""
        if not self._nodes.reachable(node):
            raise Unavailable(f"node {node} is not alive: start it first")
        await self._set_draining(node, {*self._catalog.node(node).draining_volumes, volume})
        answer = await self._nodes.request(node, pb.Frame(list_stored=pb.ListStored()))
        stored = [r for r in answer.stored_list.replicas if r.volume == volume]
        record = self._catalog.node(node)
        index = record.shards[record.volumes.index(volume)]
        leaving = [await keeper.leave(node, index, stored) for keeper in self._keepers.values()]
        left = sum(leaving)
        return pb.Changed(
            done=f"volume {volume} of node {node} is being drained: it takes nothing new",
            next=f"{left} replicas move away, a few at a time"
            if left
            else f"it is empty: start node {node} without it, then run `loom node replace {node} "
            f"--volume {volume}`",
            replicas_left=left,
        )

    async def _set_draining(self, node: NodeId, volumes: set[str]) -> None:
        """Tell the node to place nothing on the volumes, except those that it no longer has."""
        record = self._catalog.node(node)
        new = volumes.difference(record.draining_volumes)
        there = sorted(volumes.intersection(record.volumes) | new)
        order = pb.Frame(drain_volumes=pb.DrainVolumes(volumes=there))
        await self._nodes.request(node, order)
        await self._catalog.update_node(node, draining_volumes=tuple(sorted(volumes)))
        self._wishes_changed(node)

    async def _undrain(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        if request.volume:
            volumes = set(self._catalog.node(node).draining_volumes) - {request.volume}
            await self._set_draining(node, volumes)
            return pb.Changed(
                done=f"volume {request.volume} of node {node} is not drained any more",
                next="replicas that have begun to move continue",
            )
        if self._catalog.node(node).removing:
            raise InvalidArgument(f"node {node} is being removed")
        await self._catalog.update_node(node, draining=False)
        self._wishes_changed(node)
        return pb.Changed(
            done=f"node {node} is not drained any more",
            next=f"it keeps its {len(self._replicas_on(node))} replicas and takes new ones",
        )

    # ---- restart

    async def _restart(self, request: pb.ChangeNode) -> pb.Changed:
        node, for_s = request.storage_node_id, request.for_s
        if not 0 <= for_s <= RESTART_S_MAX:
            raise InvalidArgument(f"a restart takes at most {RESTART_S_MAX:g} s, not {for_s:g}")
        if for_s and not self._nodes.reachable(node):
            raise Unavailable(f"node {node} is not alive: start it")
        self._nodes.expect_restart(node, for_s)
        self._wishes_changed(node)
        if not for_s:
            return pb.Changed(done=f"node {node} is not restarted any more")
        return pb.Changed(
            done=f"node {node} hands over what it sequences",
            next=f"restart it within {for_s:g} s; until then its replicas are not replaced",
        )

    async def hand_over(self, node: NodeId) -> None:
        """Let others take over from a node that stops; return when they have, or after a short
        time."""
        self._nodes.stops(node)
        logger.info("node %d stops", node)
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.HAND_OVER_S):
                while self._nodes.all_reachable() and self._is_needed(node):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)

    def _is_needed(self, node: NodeId) -> bool:
        return any(keeper.is_needed(node) for keeper in self._keepers.values())

    # ---- replace

    def gives_up(self, request: pb.ChangeNode) -> bool:
        """Return whether an operator declares a node lost, with its data."""
        node = request.storage_node_id
        if request.action == pb.ChangeNode.REPLACE and not request.volume:
            self.check_replaceable(node)
            return True
        is_forced = request.action == pb.ChangeNode.REMOVE and request.force
        return is_forced and not self._nodes.reachable(node)

    def check_replaceable(self, node: NodeId) -> None:
        """Raise if the node is connected or being removed."""
        known = self._catalog.node(node)
        if known.removing:
            raise InvalidArgument(
                f"node {node} is being removed: once it is forgotten, its number is free"
            )
        if self._nodes.reachable(node):
            raise InvalidArgument(
                f"node {node} is connected from {known.address} and has its volumes: stop it "
                "first, or give the new node another number"
            )

    async def _replace(self, request: pb.ChangeNode) -> pb.Changed:
        """Let the next node of this number register with empty volumes."""
        node = request.storage_node_id
        if request.volume:
            return await self._replace_volume(node, request.volume)
        self.check_replaceable(node)
        await self._catalog.make_replaceable(self._catalog.node(node))
        waiting = self._nodes.held_back(node)
        then = f"the one at {waiting} registers in a moment" if waiting else "start it"
        return pb.Changed(
            done=f"the next node {node} with empty volumes takes the place of the one that is away",
            next="; ".join(
                [then, *self._what_becomes_of(node), "its old volumes are refused from then on"]
            ),
        )

    async def _replace_volume(self, node: NodeId, volume: str) -> pb.Changed:
        """Have a node give up a volume that it was started without."""
        if not self._nodes.reachable(node):
            raise Unavailable(f"node {node} is not alive: start it without volume {volume} first")
        order = pb.Frame(give_up_volume=pb.GiveUpVolume(volume=volume))
        await self._nodes.request(node, order)
        drained = set(self._catalog.node(node).draining_volumes)
        if volume in drained:  # an empty one in its place is another volume
            await self._set_draining(node, drained - {volume})
        return pb.Changed(
            done=f"node {node} gave up its volume {volume}, which is refused from now on",
            next="restart it with an empty one in its place: then what the old one had is made "
            "from other copies, or counts as lost",
        )

    def _what_becomes_of(self, node: NodeId) -> list[str]:
        """Return a sentence about the data of a node whose volumes are lost."""
        words, replicas = [], self._replicas_on(node)
        only = [name for name, nodes in replicas if nodes == (node,)]
        if copied := len(replicas) - len(only):
            words.append(f"{copied} replicas that it had are copied from other nodes")
        if only:
            words.append(f"it had the only replica of {', '.join(only)}, which is lost")
        return words

    async def _mark_unrecoverable(self, request: pb.ChangeNode) -> pb.Changed:
        """Record that the data of an absent node will not come back."""
        node = request.storage_node_id
        if self._nodes.alive(node):
            raise InvalidArgument(
                f"node {node} is alive and has its data: stop it first if that is not so"
            )
        replicas: list[ReplicaSet] = []  # those whose protocols wait for an operator's decision

        def give_up(record: NodeRecord) -> NodeRecord:
            if record.is_given_up:
                return record
            before = record
            for keeper in self._keepers.values():
                given_up = keeper.give_up(record)
                replicas.extend(keeper.replicas_on(node) if given_up != record else ())
                record = given_up
            return record if record == before else record.given_up()

        if not await self._catalog.change_node(node, give_up):
            raise InvalidArgument(
                f"nothing waits for what node {node} had: its replicas are made from others"
            )
        # It may only be slow. When it registers again, the decision is revoked.
        self._nodes.disconnect(node, Unavailable(f"the data of node {node} was given up"))
        self._wishes_changed(node)
        return pb.Changed(
            done=f"what node {node} had counts as lost",
            next="its copies are made from others; "
            f"{self._lost_with(node, replicas) or 'entries without any are reported as lost'}",
        )

    def _lost_with(self, node: NodeId, replicas: list[ReplicaSet]) -> str:
        """Return a sentence about sets of replicas whose nodes were all given up; "" if there are
        none."""
        known = self._catalog.nodes
        lost = [
            name
            for name, nodes in replicas
            if nodes and all(n == node or (n in known and known[n].is_given_up) for n in nodes)
        ]
        if not lost:
            return ""
        return f"of {', '.join(lost)} no node is left: what only these had is reported as lost"

    def replacement_condition(self, node: NodeId) -> Condition | None:
        """Return the condition of a node that is to be replaced."""
        kind, waiting = Kind.NODE_REPLACEMENT, self._nodes.held_back(node)
        if self._catalog.node(node).replaceable:
            helps = f"start node {node} with empty volumes"
            return Condition(kind, "is to be replaced", helps, node=node)
        if waiting is None:
            return None
        return Condition(
            kind,
            f"is away, and an empty node at {waiting} asks for its number",
            f"give that one the volumes of node {node}; or, if they are lost, run "
            f"`loom node replace {node}`",
            node=node,
        )

    def drain_conditions(self, node: NodeId) -> list[Condition]:
        """Return the condition of a node that is being drained, or those of its volumes."""
        if not self._catalog.node(node).draining:
            return [*self._drained_volumes(node)]
        left = len(self._replicas_on(node))
        stuck = [name for keeper in self._keepers.values() for name in keeper.stuck_on(node)]
        text = f"is drained, {left} replicas are still there" if left else "is drained and empty"
        helps = "" if left else f"stop it, then run `loom node remove {node}`"
        if self._catalog.node(node).removing:
            text = f"is being removed, {left} of its replicas are made elsewhere first"
            helps = ""
        if stuck:
            helps = f"start another node: there is none that can take {stuck[0]}"
        return [Condition(Kind.NODE_DRAINING, text, helps, node=node)]

    def _drained_volumes(self, node: NodeId) -> Iterator[Condition]:
        record = self._catalog.node(node)
        for volume in record.draining_volumes:
            if volume in record.volumes:
                yield Condition(
                    Kind.VOLUME_DRAINING,
                    f"volume {volume} is being drained, or is empty: it takes nothing new",
                    f"`loom node drain {node} --volume {volume} --wait` shows what is left; "
                    f"`loom node undrain {node} --volume {volume}` uses it again",
                    node=node,
                    volume=volume,
                )

    # ---- remove

    async def _remove(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        replicas = self._replicas_on(node)
        if not replicas:
            await self._catalog.update_node(node, draining=True, removing=True)
            await self.forget_if_removed(node)
            return pb.Changed(
                done=f"node {node} is removed",
                next="if it runs, it stops; with empty volumes it may come again",
            )
        self._check_removable(node, replicas, force=request.force)
        await self._catalog.update_node(node, draining=True, removing=True)
        self._wishes_changed(node)
        then = f"its {len(replicas)} replicas are recreated elsewhere; then it is forgotten"
        return pb.Changed(
            done=f"node {node} is not used any more",
            next="; ".join(filter(None, (then, self._lost_with(node, replicas)))),
        )

    def _check_removable(self, node: NodeId, replicas: list[ReplicaSet], *, force: bool) -> None:
        holds = f"node {node} has {len(replicas)} replicas"
        if self._nodes.alive(node):
            raise InvalidArgument(
                f"{holds} and is alive: `loom node drain {node}`, wait until it is empty, "
                "then remove it"
            )
        if not force:
            raise InvalidArgument(
                f"{holds}: start it and drain it; or, if it never comes back, remove it with "
                "--force, and its replicas are recreated from the others"
            )
        only = [name for name, nodes in replicas if nodes == (node,)]
        if only and not self._catalog.node(node).is_given_up:
            raise InvalidArgument(
                f"node {node} has the only replica of {', '.join(only)}: start it again, or, if "
                f"its data never comes back, run `loom node mark-unrecoverable {node}` first"
            )

    async def forget_if_removed(self, node: NodeId) -> None:
        """Forget a node that an operator removed, once it has no replicas left."""
        record = self._catalog.nodes.get(node)
        if record is None or not record.removing or self._replicas_on(node):
            return
        await self._catalog.remove_node(node)
        self._nodes.forget(node)
        logger.info("node %d is removed", node)
        self._wishes_changed(node)

    def holders(self) -> set[NodeId]:
        """Return the nodes that have, or are about to have, replicas of any log."""
        placed = {
            node
            for keeper in self._keepers.values()
            for nodes in keeper.placement()
            for node in nodes
        }
        return placed.union(filter(self._replicas_on, self._catalog.nodes))

    def _replicas_on(self, node: NodeId) -> list[ReplicaSet]:
        return [each for keeper in self._keepers.values() for each in keeper.replicas_on(node)]

    def _wishes_changed(self, node: NodeId) -> None:
        for keeper in self._keepers.values():
            keeper.node_changed(node, alive=True)

    # ---- clean up

    async def _cleanup(self, request: pb.ChangeNode) -> pb.Changed:
        node = request.storage_node_id
        if not self._nodes.reachable(node):
            raise Unavailable(f"node {node} is not alive: start it first")
        cleaned = await asyncio.gather(*(each.clean_up(node) for each in self._keepers.values()))
        deleted = " and ".join(each.deleted for each in cleaned if each.deleted)
        left = "; ".join(each.left for each in cleaned if each.left)
        return pb.Changed(
            done=f"node {node} deleted {deleted or 'nothing'}", next=left or "nothing is left"
        )
