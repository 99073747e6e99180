"""Permissions and tokens of a cluster, for those who may change them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from loomlog import limits
from loomlog.client.arguments import (
    check_each,
    check_flag,
    check_number,
    check_text,
    duration_s,
    is_number,
)
from loomlog.client.servers import Metadata
from loomlog.core.permissions import AccessRules, Grant
from loomlog.errors import InvalidArgument
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.access import grant_to_wire


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token that was issued; not the token itself."""

    id: str
    name: str
    allow: tuple[str, ...]
    created_s: int  # since 1970
    expires_s: int
    revoked: bool
    key: int  # that signed it


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token. Its text is a secret: whoever has it may do what it allows."""

    text: str = field(repr=False)
    info: TokenInfo


@dataclass(frozen=True, slots=True)
class AccessInfo:
    """The access rules of a cluster."""

    rules: AccessRules
    version: int
    keys: tuple[int, ...]  # of tokens, the newest last
    tokens: tuple[TokenInfo, ...]
    behind: tuple[NodeId, ...]  # nodes that have not confirmed the last change yet


class AccessControl:
    """The part of a Cluster that manages permissions and tokens."""

    _metadata: Metadata

    async def access(self) -> AccessInfo:
        """Return all grants, and the tokens that were issued."""
        answer = await self._metadata.request(pb.Frame(get_access=pb.GetAccess()))
        return _access_info(answer.access)

    async def enforce_access(self, enforce: bool) -> AccessInfo:
        """Deny from now on what is not granted, or allow everything again."""
        check_flag("enforce", enforce)
        return await self._change_access(pb.ChangeAccess(enforce=enforce))

    async def grant(self, *grants: Grant) -> AccessInfo:
        """Grant verbs or roles; what is granted already stays."""
        given = map(grant_to_wire, check_each("grants", grants, Grant))
        return await self._change_access(pb.ChangeAccess(grant=given))

    async def revoke(self, *grants: Grant) -> AccessInfo:
        """Take grants away; connections that used them are closed."""
        taken = map(grant_to_wire, check_each("grants", grants, Grant))
        return await self._change_access(pb.ChangeAccess(revoke=taken))

    async def remove_subject(self, subject: str) -> AccessInfo:
        """Take all grants of a subject away; if it is a role, also from all who have it."""
        check_text("subject", subject)
        access = await self.access()
        if not (grants := access.rules.grants_about(subject)):
            raise InvalidArgument(f"{subject} has no grants: look at `loom acl list`")
        return await self.revoke(*grants)

    async def create_token(
        self, name: str, allow: Iterable[str], expires: str | float = "90d"
    ) -> NewToken:
        """Return a new token that allows this, e.g. ["append:orders.*"], for a while."""
        seconds = duration_s(expires) if isinstance(expires, str) else expires
        check_text("name", name)
        allowed = [check_text("each of allow", one) for one in check_each("allow", allow, str)]
        if not is_number(seconds) or not 1 <= seconds <= limits.RETENTION_S_MAX:
            raise InvalidArgument(
                "a token lives for a second to a hundred years: give for example 90d"
            )
        lifetime_s = int(seconds)
        request = pb.CreateToken(name=name, allow=allowed, lifetime_s=lifetime_s)
        frame = pb.Frame(create_token=request)
        answer = (await self._metadata.request(frame, repeatable=False)).token
        return NewToken(answer.token, _token_info(answer.issued))

    async def revoke_tokens(self, *ids: str) -> AccessInfo:
        """Revoke tokens by their ids, or unique beginnings of those."""
        given = [check_text("a token's id", one) for one in ids]
        return await self._change_access(pb.ChangeAccess(revoke_tokens=given))

    async def rotate_token_key(self, *, drop: Iterable[int] = ()) -> AccessInfo:
        """Sign tokens with a new key, or accept none any more that the keys to `drop` signed."""
        dropped = check_each("drop", drop, int)
        for key in dropped:
            check_number("a key's number", key)
        return await self._change_access(pb.ChangeAccess(new_key=not dropped, drop_keys=dropped))

    async def _change_access(self, request: pb.ChangeAccess) -> AccessInfo:
        frame = pb.Frame(change_access=request)
        return _access_info((await self._metadata.request(frame, repeatable=False)).access)


def _access_info(message: pb.Access) -> AccessInfo:
    grants = tuple(Grant(each.subject, each.what, each.pattern) for each in message.grants)
    return AccessInfo(
        rules=AccessRules(message.enforced, grants),
        version=message.version,
        keys=tuple(key.key_id for key in message.keys),
        tokens=tuple(map(_token_info, message.tokens)),
        behind=tuple(message.behind),
    )


def _token_info(message: pb.IssuedToken) -> TokenInfo:
    return TokenInfo(
        id=message.token_id,
        name=message.name,
        allow=tuple(message.allow),
        created_s=message.created_s,
        expires_s=message.expires_s,
        revoked=message.revoked,
        key=message.key_id,
    )
