"""The codec of connections: greetings, errors and kinds of loomlog.proto."""

from __future__ import annotations

from loomlog import errors
from loomlog.wire import frames
from loomlog.wire import loomlog_pb2 as pb

PROTOCOL_VERSION = 2

_READS = frozenset(
    {
        *("read", "fetch_batches", "list_commits"),
        *("get_status", "list_logs", "get_register", "list_registers", "list_leases"),
        "round_read",
    }
)
_CHAIN_READS = frozenset(
    {pb.ChainRequest.READ, pb.ChainRequest.BEFORE, pb.ChainRequest.LIST, pb.ChainRequest.FETCH}
)
_COPYSET_READS = frozenset({pb.CopysetRequest.READ, pb.CopysetRequest.DIGEST})


class Codec:
    """The codec of one process, which greets as a role ("client", "vsn" or "vmr")."""

    def __init__(self, role: str, software: str = "loomlog", cluster_id: str = "") -> None:
        self._hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION, role=role, software=software, cluster_id=cluster_id
        )

    def reader(self) -> frames.FrameReader:
        return frames.FrameReader()

    def writer(self) -> frames.FrameWriter:
        return frames.FrameWriter()

    def kind(self, frame: pb.Frame) -> str:
        """Return the name of the message inside; empty for one of a newer version."""
        return frame.WhichOneof("body") or ""

    def greeting(self) -> pb.Frame:
        return pb.Frame(hello=self._hello)

    def check_greeting(self, frame: pb.Frame) -> str:
        """Return the peer's role; raise if it cannot be talked to."""
        if self.kind(frame) == "error":
            raise _error_in(frame)
        if self.kind(frame) != "hello":
            raise errors.Corrupt("the peer did not say hello: connection closed")
        theirs = frame.hello.protocol_version
        if theirs != PROTOCOL_VERSION:
            raise errors.VersionMismatch(
                f"the peer ({frame.hello.software}) speaks protocol version {theirs}, "
                f"this side {PROTOCOL_VERSION}: use the same release on both"
            )
        if "vmr" == frame.hello.role == self._hello.role:
            self._check_same_cluster(frame.hello.cluster_id)
        return str(frame.hello.role)

    def _check_same_cluster(self, theirs: str) -> None:
        """Keep metadata repositories of different clusters apart."""
        ours = self._hello.cluster_id
        if theirs != ours:
            raise errors.Unauthorized(
                f"the peer serves cluster {theirs!r}, this side {ours!r}: correct its address"
            )

    def ping(self) -> pb.Frame:
        return pb.Frame(ping=pb.Ping())

    def pong_to(self, frame: pb.Frame) -> pb.Frame:
        return pb.Frame(id=frame.id, reply=True, done=pb.Done())

    def asks_for_content(self, kind: str, frame: pb.Frame) -> bool:
        """Return whether the answer may be large and does not wait for new entries."""
        if kind == "chain_request":
            chained = frame.chain_request
            return chained.kind in _CHAIN_READS and not chained.wait_ms
        if kind == "copyset_request":
            asked = frame.copyset_request
            return asked.kind in _COPYSET_READS and not asked.wait_ms
        return kind in _READS

    def failure(self, frame: pb.Frame) -> errors.LoomError | None:
        """Return the error inside the frame, if any."""
        return _error_in(frame) if frame.HasField("error") else None

    def failure_frame(self, error: errors.LoomError) -> pb.Frame:
        leader = error.leader if isinstance(error, errors.NotLeader) else ""
        inside = pb.Error(code=error.code, message=str(error), leader=leader)  # type: ignore[arg-type]
        return pb.Frame(error=inside)


def _error_in(frame: pb.Frame) -> errors.LoomError:
    return errors.from_code(frame.error.code, frame.error.message, frame.error.leader)
