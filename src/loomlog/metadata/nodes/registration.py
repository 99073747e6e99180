"""Registration of storage nodes: core/registration.py decides, from the state in this module.

Both secrets are stored with the node's data. A new node gets the cluster's secret when it joins,
but only if a storage node with its number and secret answers at its advertised address.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from loomlog import limits
from loomlog.core.registration import (
    Verdict,
    is_same,
    is_twin,
    judge,
    life_of,
    may_have_twin,
    older_shards,
)
from loomlog.errors import AlreadyExists, InvalidArgument, LoomError, Unauthorized, Unavailable
from loomlog.metadata.access import access_of
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import NodeRecord
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.rollback.gate import Gate
from loomlog.net.address import split_address
from loomlog.net.endpoints import connect
from loomlog.storage.identity import fingerprint
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Codec, Connection, OnlyAnswers
from loomlog.wire.proofs import is_node_proof

logger = logging.getLogger(__name__)

_LOCATION: Final = re.compile(r"[A-Za-z0-9._=,:/-]{0,100}")


class Registration:
    """Admits storage nodes or refuses them."""

    def __init__(
        self,
        catalog: Catalog,
        nodes: ConnectedNodes,
        keepers: Keepers,
        gate: Gate,
        heartbeat_s: float,
        metadata_addresses: Callable[[], list[str]],
        new_secret: Callable[[], str],
    ) -> None:
        self._catalog = catalog
        self._nodes = nodes
        self._keepers = keepers
        self._gate = gate
        self._heartbeat_s = heartbeat_s
        self._metadata_addresses = metadata_addresses
        self._new_secret = new_secret
        self._visits = 0  # under way
        self._one_by_one = asyncio.Lock()

    async def register(self, connection: Connection, request: pb.Register) -> pb.Registered:
        verdict = self._judge(request)
        if verdict is Verdict.HELD_BACK:
            return self._hold_back(request)
        if verdict is not Verdict.KNOWN:
            await self._visit(request, connection.codec)
        last_process = await self._check_alone(connection, request)
        # Only a node with a known secret may give evidence about the past.
        known_run = request.known_run if verdict is Verdict.KNOWN else pb.NoteRun()
        await self._gate.admit(request.storage_node_id, connection, known_run)
        async with self._one_by_one:
            _check_open(connection)
            verdict = self._judge(request)
            if verdict is Verdict.HELD_BACK:
                return self._hold_back(request)
            known = self._catalog.nodes.get(request.storage_node_id)
            if known is not None and known.process != last_process:
                raise Unavailable(f"node {known.node_id} registered meanwhile: try again")
            if verdict is Verdict.KNOWN:
                await self._catalog.raise_ids(request.highest_log_id, request.highest_stream_id)
            lost = older = self._older_shards(request)
            if verdict is Verdict.REPLACES:
                lost = {*self._catalog.nodes[request.storage_node_id].generations, *request.shards}
            if verdict is Verdict.KNOWN and self._catalog.node(request.storage_node_id).is_given_up:
                logger.warning(
                    "node %d is back, although its data was given up: its replicas count again "
                    "where no other node has taken its place",
                    request.storage_node_id,
                )
            record = await self._catalog.put_node(
                self._record_of(request), partial(self._note_losses, request, lost)
            )
            if connection.closed:
                self._nodes.let_register_again(request.storage_node_id)
            _check_open(connection)
            self._join(connection, request, record)
        cluster = self._catalog.cluster
        answer = pb.Registered(
            cluster_id=cluster.cluster_id,
            cluster_secret="" if request.cluster_secret else cluster.secret,
            heartbeat_s=self._heartbeat_s,
            metadata=self._metadata_addresses(),
            generation=max(record.generations.values(), default=0) + bool(older),
            draining_volumes=record.draining_volumes,
            access=access_of(self._catalog.access).to_wire(),
            life=record.life,
        )
        for keeper in self._keepers.values():
            keeper.fill_registered(record, answer)
        return answer

    def _record_of(self, request: pb.Register) -> NodeRecord:
        life = life_of(request, self._catalog.nodes.get(request.storage_node_id))
        return replace(record_of(request), life=life)

    def turned_away(self, request: pb.Register, reason: LoomError) -> None:
        """Record that a node of this cluster is up, but may not register now."""
        if is_same(request, self._catalog.nodes.get(request.storage_node_id)):
            self._nodes.turn_away(request.storage_node_id, str(reason))

    def _note_losses(
        self, request: pb.Register, lost: Collection[int], node: NodeRecord
    ) -> NodeRecord:
        for keeper in self._keepers.values():
            node = keeper.note_losses(node, request, lost)
        return node

    def _join(self, connection: Connection, request: pb.Register, record: NodeRecord) -> None:
        node = record.node_id
        self._nodes.joined(node, connection)
        self._nodes.heard(node)
        for keeper in self._keepers.values():
            keeper.registered(record, request)
        self._nodes.take_conditions(node, request.conditions)
        logger.info("node %d registered from %s", node, request.address)
        # After the answer, which is sent in this iteration of the loop.
        asyncio.get_running_loop().call_soon(self._joined, node)

    def _joined(self, node: NodeId) -> None:
        for keeper in self._keepers.values():
            keeper.node_joined(node)

    def _older_shards(self, request: pb.Register) -> Collection[int]:
        older = older_shards(request, self._catalog.nodes.get(request.storage_node_id))
        for shard, volume in zip(request.shards, request.volumes, strict=True):
            if shard in older:
                logger.warning(
                    "node %d came back with an older copy of its data at %s: what it stored there "
                    "since counts as lost",
                    request.storage_node_id,
                    volume,
                )
        return older

    # ---- checks

    def _judge(self, request: pb.Register) -> Verdict:
        """Return the verdict about a node; raise if it may not register."""
        node, cluster = request.storage_node_id, self._catalog.cluster
        known, reachable = self._catalog.nodes.get(node), self._nodes.reachable(node)
        _check_bounds(request)
        _compare("cluster id", cluster.cluster_id, request.cluster_id, node)
        verdict = judge(
            request,
            known,
            reachable=reachable,
            contradicted=reachable and self._gate.is_contradicted_by(request.known_run),
            has_data=any(keeper.has_data(request) for keeper in self._keepers.values()),
        )
        address = known.address if known else ""
        if verdict is Verdict.CONNECTED:
            raise AlreadyExists(
                f"node {node} is connected already, from {address}: "
                "give this one another storage node id"
            )
        if verdict is Verdict.COPY:
            raise AlreadyExists(
                f"node {node} is connected already, from {address}, and this one has a copy of its "
                "data that was used in another cluster: check --mr"
            )
        if verdict is Verdict.HAS_DATA:
            raise Unauthorized(
                f"node {node} has data, but does not know of which cluster: check its volumes, or "
                "start it with empty ones"
            )
        if request.cluster_secret:
            _compare("cluster secret", cluster.secret, request.cluster_secret, node, fingerprint)
            # It may have joined after this copy was made.
            self._gate.compare(node, request.known_run, is_registered=is_same(request, known))
        if verdict is Verdict.REMOVED:
            raise Unauthorized(
                f"node {node} was removed from this cluster: to use it again, start it with empty "
                "volumes"
            )
        if known is not None and verdict is Verdict.OTHER_SECRET:
            _compare("node secret", known.node_secret, request.node_secret, node, fingerprint)
        return verdict

    async def _check_alone(self, connection: Connection, request: pb.Register) -> str:
        """Raise if another process with the data of this node runs where the node registered last;
        return which process that was."""
        node = request.storage_node_id
        known = self._catalog.nodes.get(node)
        if known is None or not may_have_twin(request, known):
            return known.process if known is not None else ""
        if known.address == request.address and not self._nodes.reachable(node):
            return known.process  # nothing else can listen there
        process = ""
        with suppress(LoomError, TimeoutError):
            async with asyncio.timeout(limits.VISIT_S):
                process = await self._process_at(known.address, request, connection.codec) or ""
        if is_twin(request, process):
            await _check_there(connection)  # it may have been started again: its request came late
            self._nodes.refuse_twin(node, request.address)
            logger.error(
                "node %d runs twice: at %s, and at %s, which is refused: stop that one",
                node,
                known.address,
                request.address,
            )
            raise AlreadyExists(
                f"node {node} runs already, at {known.address}: this process at {request.address} "
                "has a copy of its data, or the same volume; keep it stopped, or stop the other "
                "one first"
            )
        return known.process

    async def _visit(self, request: pb.Register, codec: Codec) -> None:
        """Raise unless the node answers at its address, which other nodes and clients will use."""
        if self._visits >= limits.NEWCOMERS_MAX:
            raise Unavailable("too many new nodes register at once: try again")
        self._visits += 1
        try:
            async with asyncio.timeout(limits.VISIT_S):
                process = await self._process_at(request.address, request, codec)
        except TimeoutError:
            raise _not_reached(request, f"it did not answer within {limits.VISIT_S:g} s") from None
        except LoomError as error:
            raise _not_reached(request, str(error)) from error
        finally:
            self._visits -= 1
        if process is None:
            raise _not_reached(request, "something else answers there")

    async def _process_at(self, address: str, request: pb.Register, codec: Codec) -> str | None:
        """Return which process of the node answers at an address; None if something else does."""
        challenge = self._new_secret().encode()
        connection = await connect(
            address,
            codec,
            OnlyAnswers(),
            limits.VISIT_S,
            wanted=("node", request.storage_node_id),
        )
        try:
            question = pb.Frame(prove_node=pb.ProveNode(challenge=challenge))
            answer, _ = await connection.request(question, timeout_s=limits.VISIT_S)
        finally:
            connection.close()
        found, node = answer.node_proof, request.storage_node_id
        is_proven = is_node_proof(found.proof, node, request.node_secret, challenge)
        return found.process if is_proven else None

    def _hold_back(self, request: pb.Register) -> pb.Registered:
        node = request.storage_node_id
        if self._catalog.nodes[node].removing:
            why = f"node {node} is being removed: wait until it is forgotten, or use another number"
        else:
            why = (
                f"node {node} was here before with other volumes, and these are empty: put its "
                f"volumes back; or, if its data is lost, run `loom node replace {node}`"
            )
        if self._nodes.held_back(node) is None:
            logger.warning("held back an empty node at %s: %s", request.address, why)
        self._nodes.hold_back(node, request.address)
        return pb.Registered(cluster_id=self._catalog.cluster.cluster_id, held_back=why)


def _check_open(connection: Connection) -> None:
    if connection.closed:
        raise Unavailable("the connection was lost")


async def _check_there(connection: Connection) -> None:
    """Raise unless the process at the other end still answers."""
    try:
        await connection.request(connection.codec.ping(), timeout_s=limits.VISIT_S)
    except LoomError as error:
        raise Unavailable(f"the process that registers does not answer: {error}") from error


def _check_bounds(request: pb.Register) -> None:
    """Refuse values that no storage node sends, because any program can connect."""
    node, address = request.storage_node_id, request.address
    if not 0 < node <= limits.NODE_ID_MAX:
        raise InvalidArgument(f"a storage node id is a number from 1 to {limits.NODE_ID_MAX}")
    if len(address) > limits.ADDRESS_CHARS_MAX or not split_address(address)[1]:
        raise InvalidArgument(f"node {node} cannot have the address {address[:100]!r}")
    texts = (request.node_secret, request.cluster_secret, request.sync_mode, request.process)
    if not request.node_secret or max(map(len, texts)) > limits.NODE_TEXT_CHARS_MAX:
        raise InvalidArgument(f"node {node} registers without a secret, or with texts too long")
    volumes = request.volumes
    if not _LOCATION.fullmatch(request.location):
        raise InvalidArgument(
            f"node {node} cannot have the location {request.location!r}: use up to 100 letters, "
            "digits and . _ = , : / - as in rack=a"
        )
    if len(volumes) > limits.VOLUMES_MAX or any(len(v) > limits.PATH_CHARS_MAX for v in volumes):
        raise InvalidArgument(f"node {node} has too many volumes, or their names are too long")
    shards = request.shards
    if len({*shards}) != len(volumes) or max(shards, default=0) >= limits.SHARDS_MAX:
        raise InvalidArgument(f"node {node} does not say which shard each of its volumes is")
    if len(request.generations) != len(volumes):
        raise InvalidArgument(f"node {node} does not say how old the data on its volumes is")


def _not_reached(request: pb.Register, why: str) -> Unavailable:
    return Unavailable(
        f"node {request.storage_node_id} cannot join, because it was not reached at the address "
        f"{request.address} that it names: {why}; check its --listen and --advertise"
    )


def record_of(request: pb.Register) -> NodeRecord:
    return NodeRecord(
        request.storage_node_id,
        request.address,
        request.node_secret,
        request.sync_mode,
        tuple(request.volumes),
        location=request.location,
        generations=dict(zip(request.shards, request.generations, strict=True)),
        process=request.process,
        shards=tuple(request.shards),
    )


def _compare(
    what: str, expected: str, found: str, node: NodeId, show: Callable[[str], str] = str
) -> None:
    if not secrets.compare_digest(expected.encode(), found.encode()):
        raise Unauthorized(
            f"node {node} has another {what}: expected {show(expected)!r}, "
            f"found {show(found)!r}; its volumes belong elsewhere, or it connects to the wrong "
            "metadata repository"
        )
