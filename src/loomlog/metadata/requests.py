"""What nodes and clients may ask of the metadata repository that leads.

Before anything is looked at, the leader makes sure that it still leads: so an answer is at least as
new as the question, whoever else may lead by the time it arrives. Answers carry the epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loomlog import limits
from loomlog.errors import LoomError, NotLeader, Unavailable
from loomlog.metadata.term import Term
from loomlog.net.connection import Connection, Frame
from loomlog.net.service import Route, Service
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import sequencer_answer_to_wire, sequencer_request_from_wire
from loomlog.wire.codec import Codec

Answer = Callable[[Connection, Frame], Awaitable[Frame]]


class Requests(Service):
    """Those of one term."""

    def __init__(self, term: Term, codec: Codec) -> None:
        self._term = term
        confirmed: dict[str, Answer] = {
            "register": self._register,
            "create_log": self._create_log,
            "describe_log": self._describe_log,
            "list_logs": self._list_logs,
            "delete_log": self._delete_log,
            "trim_log": self._trim_log,
            "get_bounds": self._get_bounds,
            "switch_log": self._switch_log,
            "set_retention": self._set_retention,
            "report_chain": self._report_chain,
            "epoch_store_request": self._epoch_store_request,
            "change_stream": self._change_stream,
            "change_node": self._change_node,
            "change_metadata": self._change_metadata,
            "get_register": self._get_register,
            "swap_register": self._swap_register,
            "list_registers": self._list_registers,
            "change_lease": self._change_lease,
            "list_leases": self._list_leases,
        }
        routes = {kind: self._confirming(answer) for kind, answer in confirmed.items()}
        super().__init__(
            codec,
            routes
            | {
                "report": self._report,
                "get_status": self._get_status,
                "sequencer_request": self._sequencer_request,
            },
        )

    def _confirming(self, answer: Answer) -> Route:
        async def confirm_and_answer(
            connection: Connection, frame: Frame, payload: memoryview
        ) -> Frame:
            await self._confirm()
            try:
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

    def reply(self, connection: Connection, frame: Frame, answer: Frame) -> None:
        answer.leader_epoch = self._term.leader.epoch
        super().reply(connection, frame, answer)

    def answer_error(
        self, connection: Connection, frame: Frame, kind: str, error: Exception
    ) -> None:
        if isinstance(error, NotLeader):
            self._term.end_with(error)
        if isinstance(error, _LostMeanwhile):
            # Part of it may have been done: no answer but the end of the connection is true.
            connection.close(error)
        else:
            super().answer_error(connection, frame, kind, error)

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self._term.connection_closed(connection)

    # ---- nodes

    async def _register(self, connection: Connection, frame: Frame) -> Frame:
        answer = await self._term.registration.register(connection, frame.register)
        return pb.Frame(registered=answer)

    def _report(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        node = self._term.members.node_of(connection)
        if node is not None:  # else it was replaced, or never registered
            member = self._term.registration.take_reports(node, frame.report.uncommit_reports)
            member.take_chain_bytes(frame.report.chain_bytes)
            self._term.take_tails(frame.report.tails)

    async def _epoch_store_request(self, connection: Connection, frame: Frame) -> Frame:
        node = self._term.members.node_of(connection)
        state = await self._term.epochs.answer(node, frame.epoch_store_request)
        return pb.Frame(copyset_state=state)

    # ---- clients: logs

    async def _create_log(self, connection: Connection, frame: Frame) -> Frame:
        log = await self._term.admin.create_log(frame.create_log)
        return pb.Frame(log=self._term.view.log(log))

    async def _describe_log(self, connection: Connection, frame: Frame) -> Frame:
        log = self._term.view.log(self._term.catalog.log(frame.describe_log.name))
        log.metadata.extend(self._term.view.metadata_addresses())
        return pb.Frame(log=log)

    async def _list_logs(self, connection: Connection, frame: Frame) -> Frame:
        view = self._term.view
        return pb.Frame(log_list=pb.LogList(logs=[view.log(log) for log in view.logs()]))

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

    # ---- clients: chains

    def _sequencer_request(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """In the way of every append: at once, and nobody is asked (metadata/chained)."""
        loglet, request = sequencer_request_from_wire(frame.sequencer_request)
        answer = sequencer_answer_to_wire(self._term.sequencers.answer(loglet, request))
        self.reply(connection, frame, pb.Frame(sequencer_answer=answer))

    async def _report_chain(self, connection: Connection, frame: Frame) -> Frame:
        await self._term.upkeep.report(frame.report_chain)
        return pb.Frame(done=pb.Done())

    async def _set_retention(self, connection: Connection, frame: Frame) -> Frame:
        log = await self._term.retention.set(frame.set_retention)
        return pb.Frame(log=self._term.view.log(log))

    # ---- clients: operators

    async def _change_stream(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(changed=await self._term.operator.change_stream(frame.change_stream))

    async def _change_node(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(changed=await self._term.node_operator.change(frame.change_node))

    async def _change_metadata(self, connection: Connection, frame: Frame) -> Frame:
        changed = await self._term.change_members(self._term, frame.change_metadata)
        return pb.Frame(changed=changed)

    async def _get_status(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        return pb.Frame(status=self._term.view.status())

    # ---- clients: registers and leases

    async def _get_register(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(register_value=await self._term.registers.get(frame.get_register))

    async def _swap_register(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(register_value=await self._term.registers.swap(frame.swap_register))

    async def _list_registers(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(register_list=await self._term.registers.list(frame.list_registers))

    async def _change_lease(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(lease=await self._term.leases.change(frame.change_lease))

    async def _list_leases(self, connection: Connection, frame: Frame) -> Frame:
        return pb.Frame(lease_list=self._term.leases.list(frame.list_leases))


class _LostMeanwhile(NotLeader):
    """Somebody else took over while the request was carried out."""

    def __init__(self, cause: NotLeader) -> None:
        super().__init__(str(cause), cause.leader)
