"""Permissions and tokens of a cluster, for operators who may change them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from loomlog import limits
from loomlog.client.arguments import (
    check_count,
    check_each,
    check_flag,
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
    """A description of a token that was issued, without its secret text."""

    id: str
    name: str
    allow: tuple[str, ...]
    created_s: int  # since 1970
    expires_s: int  # since 1970
    revoked: bool
    key: int  # the number of the key that signed it


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token. Its text is a secret: anyone who has it may do what it allows."""

    text: str = field(repr=False)
    info: TokenInfo


@dataclass(frozen=True, slots=True)
class AccessInfo:
    """The access rules of a cluster."""

    rules: AccessRules
    version: int
    keys: tuple[int, ...]  # the numbers of the keys that sign tokens, the newest last
    tokens: tuple[TokenInfo, ...]
    behind: tuple[NodeId, ...]  # nodes that have not confirmed the last change yet


class AccessControl:
    """The methods of a Cluster that manage permissions and tokens. Those that change something
    return the resulting rules."""

    _metadata: Metadata

    async def access(self) -> AccessInfo:
        """Return all grants and all tokens that were issued."""
        answer = await self._metadata.request(pb.Frame(get_access=pb.GetAccess()))
        return _access_info(answer.access)

    async def enforce_access(self, enforce: bool) -> AccessInfo:
        """Deny everything that is not granted or, with False, allow everything again."""
        check_flag("enforce", enforce)
        return await self._change_access(pb.ChangeAccess(enforce=enforce))

    async def grant(self, *grants: Grant) -> AccessInfo:
        """Add grants of verbs or roles; those that exist already stay."""
        given = map(grant_to_wire, check_each("grants", grants, Grant))
        return await self._change_access(pb.ChangeAccess(grant=given))

    async def revoke(self, *grants: Grant) -> AccessInfo:
        """Remove grants, and close connections that depend on them."""
        taken = map(grant_to_wire, check_each("grants", grants, Grant))
        return await self._change_access(pb.ChangeAccess(revoke=taken))

    async def remove_subject(self, subject: str) -> AccessInfo:
        """Remove all grants of a subject; if it is a role, also the grants of this role to others.
        Raise InvalidArgument if there are none."""
        check_text("subject", subject)
        access = await self.access()
        if not (grants := access.rules.grants_about(subject)):
            raise InvalidArgument(f"{subject} has no grants: look at `loom acl list`")
        return await self.revoke(*grants)

    async def create_token(
        self, name: str, allow: Iterable[str], expires: str | float = "90d"
    ) -> NewToken:
        """Create a token and return it, with its secret text.

        `allow` lists permissions such as "append:orders.*". The token is valid for the duration
        `expires`, e.g. "90d" or seconds."""
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
        """Revoke tokens, given their ids or unique prefixes of these."""
        given = [check_text("a token's id", one) for one in ids]
        return await self._change_access(pb.ChangeAccess(revoke_tokens=given))

    async def rotate_token_key(self, *, drop: Iterable[int] = ()) -> AccessInfo:
        """Sign new tokens with a new key. With `drop`, instead stop accepting tokens that were
        signed with these keys."""
        dropped = check_each("drop", drop, int)
        for key in dropped:
            check_count("a key's number", key, limits.TOKEN_KEY_MAX)
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
