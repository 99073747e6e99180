"""What a connection needs to know of our messages: greetings, errors, kinds."""

from __future__ import annotations

from collections.abc import Sequence

from loomlog import errors
from loomlog.types import Buffer
from loomlog.wire import frames
from loomlog.wire import loomlog_pb2 as pb

PROTOCOL_VERSION = 1


class Codec:
    """One per process: speaks loomlog.proto in the name of a role ("client", "vsn", "vmr")."""

    def __init__(self, role: str, software: str = "loomlog", cluster_id: str = "") -> None:
        self._hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION, role=role, software=software, cluster_id=cluster_id
        )

    def reader(self) -> frames.FrameReader:
        return frames.FrameReader()

    def encode(self, frame: pb.Frame, payload: Sequence[Buffer]) -> list[Buffer]:
        return frames.encode(frame, payload)

    def kind(self, frame: pb.Frame) -> str:
        """The name of what is inside; empty for a frame of a newer version."""
        return frame.WhichOneof("body") or ""

    def greeting(self) -> pb.Frame:
        return pb.Frame(hello=self._hello)

    def check_greeting(self, frame: pb.Frame) -> str:
        """The role of the peer, or why we cannot talk to it."""
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
        """Metadata repositories of two clusters must not decide for each other."""
        ours = self._hello.cluster_id
        if theirs != ours:
            raise errors.Unauthorized(
                f"the peer serves cluster {theirs!r}, this side {ours!r}: correct its address"
            )

    def failure(self, frame: pb.Frame) -> errors.LoomError | None:
        """The error inside, if it is one."""
        return _error_in(frame) if frame.HasField("error") else None

    def failure_frame(self, error: errors.LoomError) -> pb.Frame:
        leader = error.leader if isinstance(error, errors.NotLeader) else ""
        inside = pb.Error(code=error.code, message=str(error), leader=leader)  # type: ignore[arg-type]
        return pb.Frame(error=inside)


def _error_in(frame: pb.Frame) -> errors.LoomError:
    return errors.from_code(frame.error.code, frame.error.message, frame.error.leader)
