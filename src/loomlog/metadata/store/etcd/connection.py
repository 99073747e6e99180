"""Connections to etcd: one gRPC channel per member; the first that answers is used.

`aetcd` has the messages and stubs. Its client lacks TLS, failover by name and renewal of tokens, so
channels, credentials and retries are implemented here.

`AnswerLost` is raised if a request reached a member but was not answered: it may have been carried
out, or may still be. Every other error means that nothing happened.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from loomlog.config import EtcdSettings
from loomlog.errors import InvalidArgument, LoomError, RolledBack, Unauthorized, Unavailable
from loomlog.net.address import split_address

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are reported here, once

try:
    import grpc
    from aetcd import rpc as rpc
except ModuleNotFoundError as missing:
    raise LoomError("etcd needs one more package: pip install 'loomlog[etcd]'") from missing

Ask = Callable[["Endpoint"], Any]  # selects the method of a stub

_POLL_S: Final = 0.02  # between checks of connecting channels
_ATTEMPTS: Final = 5  # within the timeout: a silent member must not use all of it
_CHANNEL: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Detects a vanished host even without traffic; etcd refuses more than one ping in 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_LOST: Final = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNKNOWN,
}


class AnswerLost(Exception):  # noqa: N818 - what happened to the answer
    """The answer of etcd was lost."""


class _TokenVoidError(Unauthorized):
    """The token expired, or its etcd member restarted."""


class LeaseGone(Exception):  # noqa: N818 - what happened to the lease
    """etcd does not know the lease, or no longer knows it."""


class Compacted(Exception):  # noqa: N818 - what happened to the revision
    """etcd no longer has the requested revision."""


class Endpoint:
    """A member of etcd."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=_CHANNEL)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=_CHANNEL)
        self.kv = rpc.KVStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)

    @property
    def ready(self) -> bool:
        state = self.channel.get_state(try_to_connect=True)
        return bool(state is grpc.ChannelConnectivity.READY)


class EtcdConnection:
    """The connections to all members. Create it in the event loop that uses it."""

    def __init__(self, settings: EtcdSettings) -> None:
        if not settings.endpoints:
            raise InvalidArgument("etcd needs at least one endpoint: write host:port")
        if (settings.user is None) != (settings.password is None):
            raise InvalidArgument("etcd needs both a user and a password, or neither")
        for address in settings.endpoints:
            split_address(address)
        self._settings = settings
        credentials = _credentials(settings)
        self._endpoints = [Endpoint(address, credentials) for address in settings.endpoints]
        self._token: str | None = None
        self.revision = 0  # the newest one in any answer
        self._went_back = ""  # how etcd went back in time, once it did

    @property
    def endpoint(self) -> Endpoint:
        """Return the address of the member in use."""
        return self._endpoints[0]

    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._settings.timeout_s

    async def close(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    # ---- requests

    async def ask_now(self, method: Ask, request: Any) -> Any:
        return await self.ask(method, request, self.deadline())

    async def ask(self, method: Ask, request: Any, deadline: float) -> Any:
        """Ask until there is an answer. Only for idempotent requests."""
        while True:
            try:
                return await self.ask_once(method, request, deadline)
            except AnswerLost as lost:
                if asyncio.get_running_loop().time() >= deadline:
                    raise self._away(str(lost)) from lost

    async def ask_once(self, method: Ask, request: Any, deadline: float) -> Any:
        """Ask one member. Raise Unavailable if none can be reached, AnswerLost without an
        answer."""
        endpoint = await self.reach(deadline)
        token, known = self._token, self.revision
        try:
            answer = await self._call(endpoint, method, request, deadline)
        except _TokenVoidError:  # then nothing was done
            self.forget_token(token)
            endpoint = await self.reach(deadline)
            answer = await self._call(endpoint, method, request, deadline)
        revision = answer.header.revision
        if revision < known and not self._went_back:  # all requests are linearizable
            self._went_back = f"etcd went back in time, from revision {known} to {revision}"
        self.revision = max(self.revision, revision)
        return answer

    def check(self) -> None:
        """Raise RolledBack if etcd went back in time since this process is connected. Later
        revisions do not show it: others may have written since."""
        if self._went_back:
            raise RolledBack(
                f"{self._went_back}: stop all vmr, and restore a newer copy of it or run "
                "`loom metadata catch-up`"
            )

    async def _call(self, endpoint: Endpoint, method: Ask, request: Any, deadline: float) -> Any:
        timeout = self._attempt_s(deadline)
        try:
            return await method(endpoint)(request, timeout=timeout, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() in _LOST:
                self.leave(endpoint)
            raise _explained(error) from error

    @asynccontextmanager
    async def stream(self, endpoint: Endpoint, method: Ask) -> AsyncIterator[Any]:
        """Call a method with many messages. A member that has no leader ends it."""
        token = self._token
        call = method(endpoint)(metadata=(*self.metadata, ("hasleader", "true")))
        try:
            yield call
        except grpc.aio.AioRpcError as error:
            self.leave(endpoint)
            raise _explained(error) from error
        except AnswerLost:
            self.forget_token(token)
            raise
        finally:
            call.cancel()

    def _attempt_s(self, deadline: float) -> float:
        left = deadline - asyncio.get_running_loop().time()
        return min(max(left, _POLL_S), self._settings.timeout_s / _ATTEMPTS)

    def _away(self, reason: str) -> Unavailable:
        addresses = ", ".join(self._settings.endpoints)
        return Unavailable(
            f"etcd at {addresses} does not answer: {reason}; see that most of its members run"
        )

    # ---- the member in use

    async def reach(self, deadline: float) -> Endpoint:
        """Return the first member, in the order of use, that is connected and authenticated."""
        reason = ""
        while True:
            for endpoint in self._endpoints:
                if endpoint.ready:
                    try:
                        await self._authenticate(endpoint, deadline)
                    except AnswerLost as lost:
                        reason = str(lost)
                        break
                    self._prefer(endpoint)
                    return endpoint
            if asyncio.get_running_loop().time() >= deadline:
                raise self._away(reason or await _why_not_ready(self.endpoint))
            await asyncio.sleep(_POLL_S)

    def leave(self, endpoint: Endpoint) -> None:
        """Prefer other members from now on, because this one did not answer."""
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)

    def _prefer(self, endpoint: Endpoint) -> None:
        self._endpoints.remove(endpoint)
        self._endpoints.insert(0, endpoint)

    # ---- credentials

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of every request."""
        return () if self._token is None else (("token", self._token),)

    def forget_token(self, token: str | None) -> None:
        """Drop a void token, unless it was already replaced."""
        if self._token == token:
            self._token = None

    async def _authenticate(self, endpoint: Endpoint, deadline: float) -> None:
        if self._settings.user is None or self._token is not None:
            return
        request = rpc.AuthenticateRequest(
            name=self._settings.user, password=self._settings.password
        )
        answer = await self._call(endpoint, lambda e: e.auth.Authenticate, request, deadline)
        self._token = answer.token


async def _why_not_ready(endpoint: Endpoint) -> str:
    """Use the channel to get its error, which gRPC does not report otherwise."""
    request = rpc.RangeRequest(key=b"loomlog", serializable=True)
    try:
        await endpoint.kv.Range(request, timeout=_POLL_S)
    except grpc.aio.AioRpcError as error:
        return _details(error).rpartition("last error: ")[2]
    return "no connection"


def _details(error: grpc.aio.AioRpcError) -> str:
    return " ".join((error.details() or error.code().name).split())


def _credentials(settings: EtcdSettings) -> grpc.ChannelCredentials | None:
    if (settings.cert is None) != (settings.key is None):
        raise InvalidArgument("etcd needs both a certificate and its key, or neither")
    if settings.ca is None:
        if settings.cert is not None:
            raise InvalidArgument("a certificate for etcd needs a CA, too: give both")
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=_content(settings.ca),
        private_key=_content(settings.key),
        certificate_chain=_content(settings.cert),
    )


def _content(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error


def _explained(error: grpc.aio.AioRpcError) -> Exception:
    code, text = error.code(), _details(error)
    if code in _LOST:
        return AnswerLost(text)
    if code is grpc.StatusCode.UNAUTHENTICATED or "auth store is old" in text:
        return _TokenVoidError(f"etcd no longer accepts our token: {text}")
    if code is grpc.StatusCode.PERMISSION_DENIED or "authentication failed" in text:
        return Unauthorized(f"etcd refuses: {text}; check user, password and the user's roles")
    if "user name is empty" in text:
        return Unauthorized("etcd requires a user and a password: give them")
    if "authentication is not enabled" in text:
        return InvalidArgument("etcd has no authentication: leave user and password out")
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in text:
        return Compacted(text)
    if code is grpc.StatusCode.NOT_FOUND and "lease" in text:
        return LeaseGone(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Unavailable(f"etcd takes nothing at the moment: {text}")
    return InvalidArgument(f"etcd refuses: {text}")


class Keys:
    """The keys of a cluster in etcd.

    - <prefix>/data/<key>: the values of the MetaStore, as they are
    - <prefix>/lane/<id>: lanes of swaps, see swaps.py
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.rstrip("/")
        if not self._prefix:
            raise InvalidArgument("the prefix in etcd must not be empty: name one, e.g. loomlog")
        self._data = f"{self._prefix}/data/".encode()

    def key(self, name: str) -> bytes:
        return self._data + name.encode()

    def name(self, key: bytes) -> str:
        return key.removeprefix(self._data).decode(errors="replace")  # damaged: never equal

    def range(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the first key and the end of all names that begin with `prefix`."""
        first = self.key(prefix)
        return first, first[:-1] + bytes([first[-1] + 1])  # no byte of UTF-8 is 255

    def lane(self, name: str) -> bytes:
        return f"{self._prefix}/lane/{name}".encode()
