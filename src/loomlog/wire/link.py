"""The connections, handlers and services of net/, carrying the frames of the wire contract."""

from __future__ import annotations

from loomlog.net import connection, endpoints, frames, service
from loomlog.wire import loomlog_pb2 as pb

Frame = pb.Frame
Codec = frames.Codec[Frame]
Connection = connection.Connection[Frame]
Handler = connection.Handler[Frame]
Links = endpoints.Links[Frame]
OnlyAnswers = service.OnlyAnswers[Frame]
OnReply = frames.OnReply[Frame]
Route = service.Route[Frame]
Server = endpoints.Server[Frame]
Service = service.Service[Frame]
