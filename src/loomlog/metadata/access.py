"""Permissions and tokens of the cluster, stored with the metadata and distributed to every node.

The leading metadata repository signs tokens; nodes get the public keys and the list of revoked
tokens. A change is durable before it applies here, and is then sent to all connected nodes; the
others get it when they register.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from loomlog import limits
from loomlog.core.permissions import (
    AccessRules,
    Grant,
    Verb,
    check_subject,
    is_role,
    parse_permissions,
)
from loomlog.errors import InvalidArgument, LoomError, NotFound
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import AccessRecord, TokenRecord
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire import tokens
from loomlog.wire.access import Access
from loomlog.wire.guard import Guard
from loomlog.wire.link import Connection

CONFIRM_S: Final = 2.0  # for nodes to confirm new rules; then they are reported as behind
_ID_CHARS_MIN: Final = 8  # of a token's id, when abbreviated


class CatalogNames:
    """Names of logs for the guard of a metadata repository, while it leads."""

    def __init__(self, catalog: Callable[[], Catalog | None]) -> None:
        self._catalog = catalog

    def loglet_of(self, stream: StreamId) -> LogId | None:
        return None  # no permission of a metadata repository depends on a stream

    def log_of(self, loglet: LogId) -> str:
        catalog = self._catalog()
        for log in catalog.logs.values() if catalog is not None else ():
            # Streams name the log itself, whose first segment may have been trimmed.
            if log.log_id == loglet or log.segment_of(loglet) is not None:
                return log.name
        raise NotFound(f"there is no log with a loglet {loglet}: refresh the metadata")

    async def learn(self, loglet: LogId) -> None:
        """Do nothing: all names are known."""


def access_of(record: AccessRecord) -> Access:
    """Return the part of a record that servers need."""
    grants = tuple(Grant(*grant) for grant in record.grants)
    return Access(
        record.version,
        AccessRules(record.enforced, grants),
        {key_id: tokens.public_key(bytes.fromhex(private)) for key_id, private in record.keys},
        frozenset(token.token_id for token in record.tokens if token.revoked),
    )


class ClusterAccess:
    """Answers requests about permissions and tokens during one term."""

    def __init__(self, catalog: Catalog, nodes: ConnectedNodes, guard: Guard) -> None:
        self._catalog = catalog
        self._nodes = nodes
        self._guard = guard
        self._changing = asyncio.Lock()
        guard.update(access_of(catalog.access))

    def describe(self) -> pb.Access:
        """Return the rules for operators, with the tokens that were issued."""
        record = self._catalog.access
        answer = access_of(record).to_wire()
        answer.tokens.extend(map(_token_to_wire, record.tokens))
        return answer

    async def change(self, connection: Connection, request: pb.ChangeAccess) -> pb.Access:
        async with self._changing:
            record = self._catalog.access
            rules = AccessRules(record.enforced, tuple(Grant(*each) for each in record.grants))
            rules = rules.without_grants(map(_grant, request.revoke))
            rules = rules.with_grants(map(_grant, request.grant))
            enforced = request.enforce if request.HasField("enforce") else record.enforced
            keys = _changed_keys(record, request)
            changed = replace(
                record,
                enforced=enforced,
                grants=tuple((each.subject, each.what, each.pattern) for each in rules.grants),
                keys=keys,
                tokens=_revoked(self._kept(record.tokens, keys), request.revoke_tokens),
            )
            if enforced and not self._guard.may_after(
                connection, access_of(changed), Verb.METADATA
            ):
                raise InvalidArgument(
                    "refused: you could not change permissions afterwards; use an operator's "
                    "certificate, or a token that allows metadata:*"
                )
            behind = await self._put(changed)
        answer = self.describe()
        answer.behind.extend(behind)
        return answer

    async def create_token(self, request: pb.CreateToken) -> pb.Token:
        allow = [each for text in request.allow for each in parse_permissions(text)]
        if not allow or not 0 < request.lifetime_s <= limits.RETENTION_S_MAX:
            raise InvalidArgument("a token needs at least one permission and an expiry")
        check_subject(request.name)  # the same rule as for names of clients
        if is_role(request.name):
            raise InvalidArgument("a token has the name of a program, not that of a role")
        async with self._changing:
            record = self._catalog.access
            keys = record.keys or _with_new_key(())
            key_id, private = keys[-1]
            now_s = int(time.time())
            expires_s = now_s + request.lifetime_s
            signed = tokens.sign(key_id, bytes.fromhex(private), request.name, allow, expires_s)
            texts = tuple(request.allow)
            issued = TokenRecord(signed.token_id, request.name, texts, now_s, expires_s, key_id)
            kept = self._kept(record.tokens, keys)
            if len(kept) >= limits.TOKENS_MAX:
                raise InvalidArgument(
                    f"{limits.TOKENS_MAX} tokens are valid: let some expire, or revoke them and "
                    "their key (`loom token rotate`)"
                )
            await self._put(replace(record, keys=keys, tokens=(*kept, issued)))
        return pb.Token(token=signed.text, issued=_token_to_wire(issued))

    def _kept(
        self, issued: Iterable[TokenRecord], keys: tuple[tuple[int, str], ...]
    ) -> tuple[TokenRecord, ...]:
        """Return the tokens that could still be used."""
        now_s, known = time.time(), dict(keys)
        return tuple(token for token in issued if token.expires_s > now_s and token.key_id in known)

    # ---- distribution

    async def _put(self, record: AccessRecord) -> list[NodeId]:
        """Write rules and enforce them; return the nodes that have not confirmed them."""
        record = replace(record, version=record.version + 1)
        await self._catalog.put_access(record)
        access = access_of(record)
        self._guard.update(access)
        nodes = sorted(self._catalog.nodes)
        confirmed = await asyncio.gather(*(self._send(node, access) for node in nodes))
        return [node for node, done in zip(nodes, confirmed, strict=True) if not done]

    async def _send(self, node: NodeId, access: Access) -> bool:
        try:
            await self._nodes.request(node, pb.Frame(access=access.to_wire()), CONFIRM_S)
        except LoomError:
            return False
        return True


def _grant(message: pb.AccessGrant) -> Grant:
    return Grant(message.subject, message.what, message.pattern)


def _with_new_key(keys: tuple[tuple[int, str], ...]) -> tuple[tuple[int, str], ...]:
    key_id = max((key_id for key_id, _ in keys), default=0) + 1
    return (*keys, (key_id, tokens.new_private_key().hex()))


def _changed_keys(record: AccessRecord, request: pb.ChangeAccess) -> tuple[tuple[int, str], ...]:
    keys = _with_new_key(record.keys) if request.new_key else record.keys
    known = {key_id for key_id, _ in keys}
    if unknown := set(request.drop_keys) - known:
        raise InvalidArgument(f"there is no key {min(unknown)}: look at `loom token list`")
    if known and keys[-1][0] in request.drop_keys:
        raise InvalidArgument("the newest key signs tokens: make another one with --new first")
    if len(keys) > limits.TOKEN_KEYS_MAX:
        raise InvalidArgument(f"there are {limits.TOKEN_KEYS_MAX} keys: drop old ones first")
    return tuple(key for key in keys if key[0] not in request.drop_keys)


def _revoked(issued: tuple[TokenRecord, ...], ids: Iterable[str]) -> tuple[TokenRecord, ...]:
    gone = set()
    for beginning in ids:
        found = [token.token_id for token in issued if token.token_id.startswith(beginning)]
        if len(beginning) < _ID_CHARS_MIN or len(found) != 1:
            raise NotFound(
                f"{len(found)} tokens have an id that begins with {beginning[:100]!r}: give at "
                f"least {_ID_CHARS_MIN} characters that `loom token list` shows"
            )
        gone.update(found)
    return tuple(
        replace(token, revoked=True) if token.token_id in gone else token for token in issued
    )


def _token_to_wire(token: TokenRecord) -> pb.IssuedToken:
    return pb.IssuedToken(
        token_id=token.token_id,
        name=token.name,
        allow=token.allow,
        created_s=token.created_s,
        expires_s=token.expires_s,
        revoked=token.revoked,
        key_id=token.key_id,
    )
