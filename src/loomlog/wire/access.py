"""The access rules of a cluster, in the form that servers store and send to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loomlog.core.permissions import AccessRules, Grant
from loomlog.wire import loomlog_pb2 as pb


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of the cluster."""

    version: int = 0
    rules: AccessRules = field(default_factory=AccessRules)
    keys: Mapping[int, bytes] = field(default_factory=dict)  # public, of tokens
    revoked: frozenset[str] = frozenset()  # tokens

    @classmethod
    def from_wire(cls, message: pb.Access) -> Access:
        grants = tuple(Grant(each.subject, each.what, each.pattern) for each in message.grants)
        return cls(
            message.version,
            AccessRules(message.enforced, grants),
            {key.key_id: key.public for key in message.keys},
            frozenset(message.revoked),
        )

    def to_wire(self) -> pb.Access:
        return pb.Access(
            version=self.version,
            enforced=self.rules.enforced,
            grants=map(grant_to_wire, self.rules.grants),
            keys=[pb.TokenKey(key_id=key_id, public=key) for key_id, key in self.keys.items()],
            revoked=sorted(self.revoked),
        )


def grant_to_wire(grant: Grant) -> pb.AccessGrant:
    return pb.AccessGrant(subject=grant.subject, what=grant.what, pattern=grant.pattern)
