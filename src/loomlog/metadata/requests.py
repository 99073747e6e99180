"""Requests of nodes and clients to the leading metadata repository.

The leader first confirms that it still leads, so an answer is at least as new as the request, even
if another member leads by the time it arrives. Answers carry the epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from loomlog import limits
from loomlog.core.permissions import Need, Verb, register_need
from loomlog.errors import (
    AlreadyExists,
    DiskFailed,
    LoomError,
    NotLeader,
    PermissionDenied,
    RolledBack,
    Unauthorized,
    Unavailable,
)
from loomlog.metadata.access import CatalogNames, ClusterAccess
from loomlog.metadata.logs.stream_description import describe_stream
from loomlog.metadata.protocol import Answer, AnswerAtOnce, ProtocolKeeper, TakeReport
from loomlog.metadata.store.contract import StoreFailed
from loomlog.metadata.term import Term
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.events import action
from loomlog.wire.guard import Guard
from loomlog.wire.link import Connection, Frame, Route, Service
from loomlog.wire.permissions import AUDITED

_CLIENT: Final = "client"


class Requests(Service):
    """Answers the requests of one term: the common ones, and those of each protocol."""

    def __init__(self, term: Term, codec: Codec, guard: Guard) -> None:
        self._term = term
        self._judge = guard
        self._access = ClusterAccess(term.catalog, term.nodes, guard)
        term.view.denials = lambda: guard.denials
        term.view.audit_dropped = lambda: guard.trail.dropped
        term.view.refusals = lambda: pb.LimitRefusals(**guard.refusals)
        looks: dict[str, Answer] = {
            "list_logs": self._list_logs,
            "change_node": self._change_node,
            "check_nodes": self._check_nodes,
            "describe_stream": self._describe_stream,
            "plan_rebalance": self._plan_rebalance,
            "describe_loglet": self._describe_loglet,
            "get_access": self._get_access,
            "list_events": self._list_events,
        }
        commands: dict[str, Answer] = {
            "switch_log": self._switch_log,
            "change_stream": self._change_stream,
            "change_metadata": self._change_metadata,
        }
        confirmed: dict[str, Answer] = {
            "create_log": self._create_log,
            "delete_log": self._delete_log,
            "trim_log": self._trim_log,
            "get_bounds": self._get_bounds,
            "set_retention": self._set_retention,
            "find_expired": self._find_expired,
            "enlist_log": self._enlist_log,
            "get_register": self._get_register,
            "swap_register": self._swap_register,
            "list_registers": self._list_registers,
            "change_lease": self._change_lease,
            "list_leases": self._list_leases,
            "change_access": self._change_access,
            "create_token": self._create_token,
        }
        routes: dict[str, Route] = {
            kind: self._confirming(answer) for kind, answer in looks.items()
        }
        # Appends that follow a description would not be answered before then.
        routes["describe_log"] = self._confirming(self._describe_log, term.gate.wait_for_nodes)
        for kind, answer in confirmed.items():
            routes[kind] = self._confirming(answer, term.gate.wait)
        for kind, answer in commands.items():
            routes[kind] = self._confirming(answer, term.gate.wait_for_command)
        self._confirm_and_register = self._confirming(self._register)
        routes |= {
            "register": self._register_or_turn_away,
            "report": self._report,
            "node_stops": self._node_stops,
            "get_status": self._get_status,
        }
        self._report_handlers: list[TakeReport] = [term.nodes.take_report]
        answers: dict[str, list[tuple[ProtocolKeeper, Answer]]] = {}
        for keeper in term.keepers.values():
            if (handler := keeper.report_handler()) is not None:
                self._report_handlers.append(handler)
            for kind, answer in keeper.requests().items():
                answers.setdefault(kind, []).append((keeper, answer))
            for kind, answer_at_once in keeper.requests_at_once().items():
                routes[kind] = self._at_once(kind, answer_at_once)
        for kind, takers in answers.items():
            routes[kind] = self._confirming(_by_loglet(kind, takers), term.gate.wait)
        super().__init__(codec, routes, guard)

    def _at_once(self, kind: str, answer: AnswerAtOnce) -> Route:
        gate = self._term.gate

        def answer_at_once(connection: Connection, frame: Frame, payload: memoryview) -> None:
            if gate.rolled_back is not None:
                raise gate.rolled_back
            self.reply(connection, kind, frame, answer(connection, frame))

        return answer_at_once

    def _confirming(
        self, answer: Answer, gate_opens: Callable[[], Awaitable[None]] | None = None
    ) -> Callable[[Connection, Frame, memoryview], Awaitable[Frame]]:
        async def confirm_and_answer(
            connection: Connection, frame: Frame, payload: memoryview
        ) -> Frame:
            self._term.gate.check_not_shut()
            await self._confirm()
            try:
                if gate_opens is not None:
                    await gate_opens()
                return await answer(connection, frame)
            except NotLeader as error:
                raise _LostMeanwhile(error) from error

        return confirm_and_answer

    async def _confirm(self) -> None:
        try:
            async with asyncio.timeout(limits.LEADER_SILENCE_S):
                await self._term.confirm()
        except TimeoutError:
            raise Unavailable(
                "a majority of the metadata repositories does not answer: start those that are down"
            ) from None

    def reply(self, connection: Connection, kind: str, frame: Frame, answer: Frame) -> None:
        answer.leader_epoch = self._term.leader.epoch
        super().reply(connection, kind, frame, answer)
        if kind in AUDITED:
            self._audit(connection, kind, frame)

    def answer_error(
        self, connection: Connection, frame: Frame, kind: str, error: Exception
    ) -> None:
        if isinstance(error, NotLeader):
            self._term.end_with(error)
        if isinstance(error, StoreFailed) and connection.greeted.result() == _CLIENT:
            error = DiskFailed(str(error))  # retrying at once would not help
        if isinstance(error, _LostMeanwhile):
            # It may be partly applied: close the connection instead of answering.
            connection.close(error)
        else:
            super().answer_error(connection, frame, kind, error)
        if not isinstance(error, PermissionDenied):
            # Many programs create their log at every start: that is no event.
            is_event = not isinstance(error, AlreadyExists)
            self._audit(connection, kind, frame, f"failed: {error}", is_event=is_event)

    def _audit(
        self,
        connection: Connection,
        kind: str,
        frame: Frame,
        failure: str = "",
        *,
        is_event: bool = True,
    ) -> None:
        """Record the outcome of an operator's request."""
        if kind in AUDITED:
            self._judge.audit(connection, kind, frame, failure or "done")
            who = self._who(connection)
            done = action(kind, frame, who, f" {failure}" if failure else "")
            if done is not None and is_event:
                self._term.timeline.note(done)

    def _who(self, connection: Connection) -> str:
        if connection.principal.kind == "anonymous" and not connection.token:
            return f"client at {connection.peer.rpartition(':')[0] or 'an unknown address'}"
        return self._judge.name_of(connection)

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self._term.connection_closed(connection)

    # ---- nodes

    async def _register_or_turn_away(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        try:
            return await self._confirm_and_register(connection, frame, payload)
        except (RolledBack, Unavailable) as error:
            self._term.registration.turned_away(frame.register, error)
            raise

    async def _register(self, connection: Connection, frame: Frame) -> Frame:
        answer = await self._term.registration.register(connection, frame.register)
        return pb.Frame(registered=answer)

    def _report(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        node, report = self._term.nodes.node_of(connection), frame.report
        if node is None:  # it was replaced, or never registered
            return
        for take in self._report_handlers:
            take(node, report)
        if generations := report.generations:
            self._term.note_generations(node, generations)

    async def _node_stops(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        node = self._term.nodes.node_of(connection)
        if node is None:
            raise Unauthorized("a node stops on the connection that it registered on")
        await self._term.node_operator.hand_over(node)
        return pb.Frame(done=pb.Done())

    # ---- clients: logs

    async def _create_log(self, connection: Connection, frame: Frame) -> Frame:
        log = await self._term.admin.create_log(frame.create_log)
        return pb.Frame(log=self._term.view.log(log))

    async def _describe_log(self, connection: Connection, frame: Frame) -> Frame:
        async with connection.turns:
            log = self._term.view.log(self._term.catalog.log(frame.describe_log.name))
            log.metadata.extend(self._term.view.metadata_addresses())
            return pb.Frame(log=log)

    async def _list_logs(self, connection: Connection, frame: Frame) -> Frame:
        view = self._term.view
        async with connection.turns:
            logs = view.in_steps()
            seen = [view.log(log) async for log in logs if self._sees_log(connection, log.name)]
            return pb.Frame(log_list=pb.LogList(logs=seen))

    def _sees_log(self, connection: Connection, name: str) -> bool:
        """Return whether a list shows a log: to peers with read permission, and to operators."""
        sees = self._judge.sees
        return sees(connection, Need((Verb.READ,), name)) or sees(connection, Need((Verb.OPERATE,)))

    async def _delete_log(self, connection: Connection, frame: Frame) -> Frame:
        await self._term.admin.delete_log(frame.delete_log.name)
        return pb.Frame(done=pb.Done())

    async def _trim_log(self, connection: Connection, frame: Frame) -> Frame:
        log = await self._term.admin.trim_log(frame.trim_log.name, frame.trim_log.position)
        return pb.Frame(bounds=await self._term.view.bounds(log))

    async def _get_bounds(self, connection: Connection, frame: Frame) -> Frame:
        log = self._term.catalog.log(frame.get_bounds.name)
        return pb.Frame(bounds=await self._term.view.bounds(log))

    async def _switch_log(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(changed=await self._term.switching.switch(frame.switch_log))

    async def _set_retention(self, connection: Connection, frame: Frame) -> Frame:
        log = await self._term.retention.set(frame.set_retention)
        return pb.Frame(log=self._term.view.log(log))

    async def _find_expired(self, connection: Connection, frame: Frame) -> Frame:
        position = await self._term.retention.find_expired(frame.find_expired.name)
        return pb.Frame(expired=pb.Expired(position=position))

    async def _enlist_log(self, connection: Connection, frame: Frame) -> Frame:
        await self._term.decisions.enlist(frame.enlist_log.name)
        return pb.Frame(done=pb.Done())

    # ---- clients: operators

    async def _change_stream(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(changed=await self._term.admin.change_stream(frame.change_stream))

    async def _describe_stream(self, connection: Connection, frame: Frame) -> Frame:
        term, stream = self._term, frame.describe_stream.log_stream_id
        described = await describe_stream(stream, term.view, term.keepers, term.nodes)
        return pb.Frame(stream_description=described)

    async def _plan_rebalance(self, connection: Connection, frame: Frame) -> Frame:
        await self._term.gate.wait_for_command()
        return pb.Frame(rebalance_plan=await self._term.rebalancer.plan())

    async def _change_node(self, connection: Connection, frame: Frame) -> Frame:
        change, gate = frame.change_node, self._term.gate
        operator = self._term.node_operator
        if not operator.gives_up(change):
            await gate.wait_for_command()
            return pb.Frame(changed=await operator.change(change))
        with gate.giving_up(change.storage_node_id):
            changed = await operator.change(change)
        if gate.condition:
            changed.next = f"this metadata still waits: {gate.condition}"
        return pb.Frame(changed=changed)

    async def _check_nodes(self, connection: Connection, frame: Frame) -> Frame:
        await self._term.gate.wait_for_command()
        async with connection.turns:
            return pb.Frame(nodes_outage=self._term.node_operator.check(frame.check_nodes))

    async def _change_metadata(self, connection: Connection, frame: Frame) -> Frame:
        changed = await self._term.change_members(self._term, frame.change_metadata)
        return pb.Frame(changed=changed)

    async def _get_status(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        async with connection.turns:
            status = await self._term.view.status()
            if self._judge.is_on or connection.token:
                _hide(status, lambda name: self._sees_log(connection, name))
            return pb.Frame(status=status)

    async def _list_events(self, connection: Connection, frame: Frame) -> Frame:
        judged = self._judge.is_on or bool(connection.token)
        async with connection.turns:
            found = await self._term.timeline.part(
                frame.list_events, lambda name: not judged or self._sees_log(connection, name)
            )
            return pb.Frame(event_list=found)

    # ---- clients: registers and leases

    async def _get_register(self, connection: Connection, frame: Frame) -> Frame:
        async with connection.turns:
            return pb.Frame(register_value=await self._term.registers.get(frame.get_register))

    async def _swap_register(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(register_value=await self._term.registers.swap(frame.swap_register))

    async def _list_registers(self, connection: Connection, frame: Frame) -> Frame:
        async with connection.turns:
            registers, sees = self._term.registers, partial(self._sees_register, connection)
            return pb.Frame(register_list=await registers.list(frame.list_registers, sees))

    def _sees_register(self, connection: Connection, name: str) -> bool:
        return self._judge.sees(connection, register_need(name, change=False))

    async def _change_lease(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(lease=await self._term.leases.change(frame.change_lease))

    async def _list_leases(self, connection: Connection, frame: Frame) -> Frame:
        async with connection.turns:
            sees = partial(self._sees_register, connection)
            return pb.Frame(lease_list=self._term.leases.list(frame.list_leases, sees))

    # ---- permissions

    async def _describe_loglet(self, connection: Connection, frame: Frame) -> Frame:
        names = CatalogNames(lambda: self._term.catalog)
        log = names.log_of(frame.describe_loglet.loglet_id)
        return pb.Frame(loglet_name=pb.LogletName(log=log))

    async def _get_access(self, connection: Connection, frame: Frame) -> Frame:
        async with connection.turns:
            return pb.Frame(access=self._access.describe())

    async def _change_access(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(access=await self._access.change(connection, frame.change_access))

    async def _create_token(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(token=await self._access.create_token(frame.create_token))


class Front(Service):
    """Serves every connection. Each member answers its peers by `routes`; while it leads, the
    `requests` of its term answer all others."""

    def __init__(
        self,
        codec: Codec,
        routes: dict[str, Route],
        guard: Guard,
        not_leader: Callable[[], NotLeader],
    ) -> None:
        super().__init__(codec, routes, guard)
        self._closed = guard.closed
        self._not_leader = not_leader
        self.requests: Requests | None = None

    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        if self._stopped or kind in self._routes:
            super().frame_received(connection, kind, frame, payload)
        elif self.requests is not None:
            self.requests.frame_received(connection, kind, frame, payload)
        else:
            self.answer_error(connection, frame, kind, self._not_leader())

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self._closed(connection)
        if self.requests is not None:
            self.requests.connection_closed(connection, error)


def _by_loglet(kind: str, takers: Sequence[tuple[ProtocolKeeper, Answer]]) -> Answer:
    """Return the handler of a request: if several protocols take it, that of the one which keeps
    the loglet that it names."""
    first = takers[0][1]
    if len(takers) == 1:
        return first

    async def answer(connection: Connection, frame: Frame) -> Frame:
        loglet = getattr(frame, kind).loglet_id
        chosen = (taken for keeper, taken in takers if keeper.has_loglet(loglet))
        return await next(chosen, first)(connection, frame)

    return answer


def _hide(status: pb.Status, sees: Callable[[str], bool]) -> None:
    """Remove the logs from a status that the peer may not see."""
    logs = [log for log in status.logs if sees(log.name)]
    conditions = [each for each in status.conditions if not each.log or sees(each.log)]
    del status.logs[:], status.conditions[:]
    status.logs.extend(logs)
    status.conditions.extend(conditions)


class _LostMeanwhile(NotLeader):
    """Raised when another member took over while the request was carried out."""

    def __init__(self, cause: NotLeader) -> None:
        super().__init__(str(cause), cause.leader)
