"""Checks whether a peer may send a request, before the request reaches its handler.

A peer is identified by its certificate or token; with TLS, a token counts even if no rules are
enforced, because it replaces a certificate. A decision is made once per connection, rule and
target and cached while the access rules stay the same, so an append costs one look-up in a set.
When the rules change, and every minute for tokens, the cached decisions are checked again. If
something is no longer allowed, the connection is closed, which ends its subscriptions.

Without TLS there are no certificates, and a peer that greets as a server is taken for one: rules
without TLS protect against mistakes, not against attackers on the same machine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol, TypeAlias

from google.protobuf import text_format
from google.protobuf.message import Message

from loomlog import limits
from loomlog.core.audit import AuditTrail
from loomlog.core.permissions import (
    AUDIT_LOG,
    Need,
    Permission,
    Verb,
    allows,
    of_staging,
    register_need,
)
from loomlog.core.principal import ANONYMOUS, Principal
from loomlog.core.usage import NO_LIMITS, UNKNOWN, Usage
from loomlog.errors import Busy, LoomError, NotFound, PermissionDenied, Unauthorized
from loomlog.limits import IdentityLimits
from loomlog.types import LogId, StreamId
from loomlog.wire.access import Access
from loomlog.wire.link import Connection, Frame
from loomlog.wire.permissions import AUDITED, Rule, Target, rule_of
from loomlog.wire.tokens import VerifiedToken, verify

RECHECK_S: Final = 60.0  # a token's own checks may depend on the time
ADMITTED_MAX: Final = 1000  # decisions on names that a connection remembers
_CLAIMED: Final[Mapping[str, str]] = {"vsn": "node", "vmr": "metadata"}


class LogNames(Protocol):
    """Names of logs, as a server knows them."""

    def loglet_of(self, stream: StreamId) -> LogId | None:
        """Return the loglet of a stream; None if it is unknown."""

    def log_of(self, loglet: LogId) -> str | None:
        """Return the log of a loglet; None if its name is not cached."""

    async def learn(self, loglet: LogId) -> None:
        """Fetch the name of its log; raise NotFound if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class _Peer:
    """The peer of a connection, with its permissions."""

    name: str  # for messages and the audit log
    kind: str  # of principals
    permissions: tuple[Permission, ...]
    token: VerifiedToken | None = None
    refusal: PermissionDenied | None = None  # its token is not accepted

    def permits(self, need: Need, now_s: float) -> bool:
        if self.refusal is not None:
            return False
        if self.token is not None:
            return any(self.token.permits(verb, need.name, now_s) for verb in need.verbs)
        return any(allows(self.permissions, verb, need.name) for verb in need.verbs)


_Key: TypeAlias = tuple[Rule, int | str]


class Session:
    """The decisions on one connection under one version of the rules."""

    __slots__ = ("admitted", "generation", "lesser", "peer")

    def __init__(self, generation: int, peer: _Peer) -> None:
        self.generation = generation
        self.peer = peer
        self.admitted: dict[_Key, Need | None] = {}
        self.lesser: set[_Key] = set()  # rules of which the peer fulfils only the lesser one

    def remember(self, rule: Rule, target: int | str, need: Need | None) -> None:
        """Cache a decision. Decisions about numbers of logs are always cached, because a change has
        to end subscriptions; those about names are limited, since peers choose the names."""
        is_bounded = need is not None and isinstance(target, int)
        is_small = isinstance(target, int) or len(target) <= limits.LOG_NAME_CHARS_MAX
        if is_bounded or (is_small and len(self.admitted) < ADMITTED_MAX):
            self.admitted[rule, target] = need


class Guard:
    """Checks the requests to one server. Nothing is refused before rules are enforced."""

    def __init__(
        self,
        names: LogNames,
        trail: AuditTrail,
        clock: Callable[[], float] = time.time,
        enforced: Callable[[], None] = lambda: None,
        identity_limits: IdentityLimits | None = None,
    ) -> None:
        """`enforced` is called when rules begin to be enforced, after requests were unchecked."""
        self._names = names
        self._clock = clock
        self._enforced = enforced
        self._sessions: dict[Connection, Session] = {}
        self._limits = identity_limits or IdentityLimits()
        self._usages: dict[str, Usage] = {}  # by name, of those with connections
        self.refusals: Counter[str] = Counter()  # by limit
        self._servers = Usage("servers", NO_LIMITS, self.refusals)
        self._recheck: asyncio.TimerHandle | None = None
        self.trail = trail
        self._generation = 0  # of `access`
        self.access = Access()
        self.is_on = False
        self.denials = 0

    def stop(self) -> None:
        if self._recheck is not None:
            self._recheck.cancel()

    # ---- rules

    def update(self, access: Access) -> None:
        """Apply these rules from now on."""
        if access == self.access:
            return
        was_on, self.is_on = self.is_on, access.rules.enforced
        self.access = access
        self._generation += 1  # versions go back with metadata that was restored
        if self.is_on and not was_on:
            self._enforced()
        self._judge_again()

    def _judge_again(self) -> None:
        now_s = self._clock()
        holders: dict[str, _Peer] = {}  # by token: many connections may show the same one
        permits = cache(lambda peer, need: peer.permits(need, now_s))
        for connection, session in list(self._sessions.items()):
            if connection.closed:
                self.closed(connection)
                continue
            if not self._judges(connection):  # a new connection would not be checked either
                connection.session = None
                del self._sessions[connection]
                continue
            try:
                peer = holders.get(connection.token) or self._identify(connection)
                if connection.token:
                    holders[connection.token] = peer
                again = Session(self._generation, peer)
                _check_all(again, session, permits)
            except PermissionDenied as error:
                self._deny(connection, session.peer, "what it was allowed before", error)
                connection.close(error)
                self.closed(connection)
            else:
                self._keep(connection, again)

    def _recheck_tokens(self) -> None:
        self._recheck = None
        self._judge_again()
        if any(session.peer.token for session in self._sessions.values()):
            self._schedule_recheck()

    def _schedule_recheck(self) -> None:
        if self._recheck is None:
            loop = asyncio.get_running_loop()
            self._recheck = loop.call_later(RECHECK_S, self._recheck_tokens)

    # ---- requests

    def admit(self, connection: Connection) -> None:
        """Count a peer that greets over TLS. Raise Busy if its name has too many connections, and
        PermissionDenied if it has only a token, and this is not accepted."""
        principal = connection.principal
        if principal is not ANONYMOUS:
            if not connection.token:  # a peer with both is identified with the first request
                self._enter(connection, str(principal), principal.kind)
            return
        peer = self._identify(connection)
        if peer.refusal is not None:
            self._deny(connection, peer, "hello", peer.refusal)
            raise PermissionDenied(str(peer.refusal))
        self._begin(connection, peer)

    def check(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> Awaitable[None] | None:
        """Raise PermissionDenied, or return None if the request may be served. After any other
        result, await it and check again."""
        if not self.is_on and not connection.is_encrypted:
            return None
        rule = rule_of(kind, frame)
        if rule.is_open:
            return None
        # Without rules, certificates still distinguish servers from clients.
        if self.is_on or connection.token or (rule.servers and not rule.verbs):
            name = rule.target.field
            target: int | str = getattr(getattr(frame, kind), name) if name else ""
            session: Session | None = connection.session
            if session is not None and session.generation != self._generation:
                session = None
            if session is None or (rule, target) not in session.admitted:
                waiting = self._decide(connection, session, kind, rule, target, frame)
                if waiting is not None:
                    return waiting
            if rule.fence is not None and (lease := getattr(frame, kind).lease):
                self._decide(connection, connection.session, kind, rule.fence, lease, frame)
        elif connection.usage is UNKNOWN:
            self._enter(connection, str(connection.principal), connection.principal.kind)
        if rule.sender is not None and rule.sender.field:
            self._check_sender(connection, kind, rule, getattr(frame, kind))
        if connection.usage.is_limited:
            connection.count(frame.id, len(payload) + frame.ByteSize())
        return None

    def _decide(
        self,
        connection: Connection,
        session: Session | None,
        kind: str,
        rule: Rule,
        target: int | str,
        frame: Frame,
    ) -> Awaitable[None] | None:
        peer = session.peer if session else None
        try:
            if session is None:
                peer = self._identify(connection)
                session = self._begin(connection, peer)
            peer = session.peer
            if peer.refusal is not None:
                raise PermissionDenied(str(peer.refusal))
            if rule.servers and peer.kind in rule.servers:
                session.remember(rule, target, None)
                return None
            need = self._need(peer, rule, target)
            if need is None:
                assert isinstance(target, int)
                return self._names.learn(self._loglet(rule, target))
            now_s = self._clock()
            if peer.permits(need, now_s):
                session.lesser.discard((rule, target))
                session.remember(rule, target, need)
                return None
            if rule.lesser is not None:
                need = Need(rule.lesser.verbs, need.name)
            if rule.lesser is None or not peer.permits(need, now_s):
                if rule.purpose:
                    need = need.only(getattr(getattr(frame, kind), rule.purpose))
                raise _denied(peer, self._shown(peer, rule, target, need))
        except PermissionDenied as error:
            self._deny(connection, peer, kind, error)
            raise
        session.lesser.add((rule, target))
        session.remember(rule.lesser, target, need)
        return None

    def _check_sender(
        self, connection: Connection, kind: str, rule: Rule, message: Message
    ) -> None:
        """Raise Unauthorized unless the peer has the certificate of the server that the message
        names."""
        assert rule.sender is not None
        number, peer = getattr(message, rule.sender.field), connection.principal
        if connection.is_encrypted and number != peer.number:
            error = Unauthorized(
                f"this needs the certificate of {peer.kind} {number}, not that of {peer}"
            )
            self._deny(connection, None, kind, error)
            raise error

    def _begin(self, connection: Connection, peer: _Peer) -> Session:
        if connection.usage is UNKNOWN:
            self._enter(connection, peer.name, peer.kind)
        session = Session(self._generation, peer)
        self._keep(connection, session)
        if peer.token is not None:
            self._schedule_recheck()
        return session

    def _enter(self, connection: Connection, name: str, kind: str) -> None:
        """Count a connection as one of its identity; raise Busy if that has too many."""
        if kind in _CLAIMED.values():
            connection.usage = self._servers
        elif not connection.closed:  # otherwise its end, already reported, would never be counted
            usage = self._usages.get(name) or Usage(name, self._limits, self.refusals)
            usage.connect()
            connection.usage = self._usages[name] = usage

    def _keep(self, connection: Connection, session: Session) -> None:
        connection.session = session
        if not connection.closed:
            self._sessions[connection] = session

    def closed(self, connection: Connection) -> None:
        """Forget a connection; called when it is closed."""
        self._sessions.pop(connection, None)
        usage, connection.usage = connection.usage, UNKNOWN
        if usage.is_limited:
            usage.connections -= 1
            if not usage.connections:
                self._usages.pop(usage.name, None)

    def _need(self, peer: _Peer, rule: Rule, target: int | str) -> Need | None:
        """Return the permission that a request needs; None if the name of its log is not known."""
        match rule.target:
            case Target.REGISTER | Target.REGISTER_CHANGE | Target.LEASE:
                change = rule.target is Target.REGISTER_CHANGE
                return register_need(str(target), change=change)
            case Target.LOGLET | Target.STREAM:
                assert isinstance(target, int)
                if not peer.permissions:  # such a peer must not cause requests for names
                    raise _denied(peer, _unnamed(rule))
                name = self._names.log_of(self._loglet(rule, target))
                return None if name is None else of_staging(Need(rule.verbs, name))
        if not rule.verbs:
            raise PermissionDenied(
                f"{peer.name} may not send this: only servers of this cluster do, with their "
                "certificates"
            )
        return of_staging(Need(rule.verbs, str(target)))

    def _loglet(self, rule: Rule, target: int) -> LogId:
        if rule.target is Target.LOGLET:
            return target
        loglet = self._names.loglet_of(target)
        if loglet is None:
            raise NotFound(f"there is no replica of stream {target} here: refresh the metadata")
        return loglet

    def _shown(self, peer: _Peer, rule: Rule, target: int | str, need: Need) -> str:
        """Return the missing permission, without the name of a log that was given by number."""
        if isinstance(target, str):
            return str(need)
        every = Need(tuple(Verb), need.name)
        return str(need) if peer.permits(every, self._clock()) else _unnamed(rule)

    def _judges(self, connection: Connection) -> bool:
        """Return whether a client's requests on this connection are checked."""
        return self.is_on or bool(connection.is_encrypted and connection.token)

    def sees(self, connection: Connection, need: Need) -> bool:
        """Return whether a list may show something to a peer, given the permission to see it."""
        if not self._judges(connection):
            return True
        try:
            session = connection.session
            if session is None or session.generation != self._generation:
                session = self._begin(connection, self._identify(connection))
        except (PermissionDenied, Busy):
            return False
        return bool(session.peer.permits(of_staging(need), self._clock()))

    def permits_metrics(self, principal: Principal, token: str, where: str) -> bool:
        """Return whether the peer of an HTTP request may see status and metrics. Every peer may
        while no rules are enforced."""
        if token:
            peer = self._peer_of_token(token)
        else:
            if not self.is_on:
                return True
            permissions = self.access.rules.permissions_of(principal)
            peer = _Peer(str(principal), principal.kind, permissions)
        permitted = peer.permits(Need((Verb.METRICS,)), self._clock())
        if not permitted:
            self.denials += 1
            self.trail.note(self._clock(), peer.name, where, "HTTP", "denied: metrics", denied=True)
        return permitted

    # ---- peers

    def _identify(self, connection: Connection) -> _Peer:
        principal, rules = connection.principal, self.access.rules
        if connection.token:
            return self._token_holder(connection)
        if principal.kind == "anonymous" and not connection.is_encrypted:
            kind = _CLAIMED.get(connection.greeted.result(), principal.kind)
            if kind != principal.kind:
                own = (Permission(Verb.APPEND, AUDIT_LOG),)
                return _Peer(f"a {kind} without a certificate", kind, own)
        return _Peer(str(principal), principal.kind, rules.permissions_of(principal))

    def _token_holder(self, connection: Connection) -> _Peer:
        if not connection.is_private:
            raise PermissionDenied("tokens are accepted over TLS and on the same machine only")
        return self._peer_of_token(connection.token)

    def _peer_of_token(self, text: str) -> _Peer:
        access = self.access
        try:
            token = verify(text, access.keys, access.revoked, self._clock())
        except PermissionDenied as refusal:  # cached, since verifying costs more than sending
            return _Peer("a token that is not accepted", "client", (), refusal=refusal)
        return _Peer(f"token {token.name}", "client", token.permissions, token)

    def name_of(self, connection: Connection) -> str:
        """Return the name of the peer for the audit log."""
        try:
            return self._identify(connection).name
        except PermissionDenied:
            return str(connection.principal)

    def may_after(self, connection: Connection, access: Access, verb: Verb) -> bool:
        """Return whether a peer would have a permission about the cluster under other rules."""
        before, self.access = self.access, access
        try:
            return self._identify(connection).permits(Need((verb,)), self._clock())
        except PermissionDenied:  # a token over plain TCP
            return False
        finally:
            self.access = before

    # ---- audit

    def audit(self, connection: Connection, kind: str, frame: Frame, outcome: str) -> None:
        """Record the outcome of a request, if its kind is audited."""
        if self.is_on and kind in AUDITED:
            what = f"{kind} {_words(getattr(frame, kind))}"
            who = self.name_of(connection)
            self.trail.note(self._clock(), who, connection.peer, what, outcome, denied=False)

    def _deny(
        self, connection: Connection, peer: _Peer | None, kind: str, error: LoomError
    ) -> None:
        self.denials += 1
        name = peer.name if peer is not None else str(connection.principal)
        outcome = f"denied: {error}"
        self.trail.note(self._clock(), name, connection.peer, kind, outcome, denied=True)


def _check_all(again: Session, before: Session, permits: Callable[[_Peer, Need], bool]) -> None:
    """Raise PermissionDenied if something that was allowed before would be denied now."""
    peer = again.peer
    if peer.refusal is not None:
        raise PermissionDenied(str(peer.refusal))
    for key, need in before.admitted.items():
        if need is None and peer.kind not in key[0].servers:
            raise PermissionDenied(f"{peer.name} is no server of this cluster any more")
        if need is not None and not permits(peer, need):
            raise _denied(peer, str(need))
        again.admitted[key] = need


def _words(message: Message) -> str:
    return text_format.MessageToString(message, as_one_line=True)


def _unnamed(rule: Rule) -> str:
    return f"{' or '.join(rule.verbs)} for this log"


def _denied(peer: _Peer, missing: str) -> PermissionDenied:
    return PermissionDenied(
        f"{peer.name} has no permission {missing}: ask an operator (`loom acl grant`, "
        "`loom token create`)"
    )
