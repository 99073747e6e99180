"""Tokens: signed by the cluster, and verified by every server on its own.

A token is a biscuit (docs/adr/0020-tokens.md): its first block, signed with a key of the cluster,
states a name, permissions and an expiry. Its holder may add blocks that restrict it further, with
checks on `time`, `verb` and `resource`; they can only take away. The id of a token is that of its
first block: revoking it also revokes what was derived from it.

A token is a secret: nothing here puts one into a message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from loomlog.core.permissions import Permission, Verb, allows
from loomlog.errors import InvalidArgument, PermissionDenied

if TYPE_CHECKING:
    from biscuit_auth import Biscuit

TOKEN_CHARS_MAX: Final = 1500  # a greeting has 2 KiB
_FACTS_MAX: Final = 500  # that checks of a token may derive
_ITERATIONS_MAX: Final = 20
_CHECK_TIME: Final = timedelta(milliseconds=100)  # many times what is needed, on a busy machine
_BEGINS: Final = r"(?:check if|check all|reject if) "
_CHECK: Final = re.compile(rf"{_BEGINS}(?!.*{_BEGINS}).*;")  # names may be any text
_COSTLY: Final = re.compile(r"->|<-|allow\(|\.matches\(")
_DENY: Final = "ask an operator for another one (`loom token create`)"


class NewToken(NamedTuple):
    """A token that was just signed."""

    text: str
    token_id: str


def new_private_key() -> bytes:
    """Return a new Ed25519 key."""
    from biscuit_auth import KeyPair

    return bytes(KeyPair().private_key.to_bytes())


def public_key(private: bytes) -> bytes:
    from biscuit_auth import Algorithm, KeyPair, PrivateKey

    pair = KeyPair.from_private_key(PrivateKey.from_bytes(private, Algorithm.Ed25519))
    return bytes(pair.public_key.to_bytes())


def sign(
    key_id: int, private: bytes, name: str, allow: Iterable[Permission], expires_s: int
) -> NewToken:
    """Return a token for a name, which may do this until that time (since 1970)."""
    from biscuit_auth import Algorithm, BiscuitBuilder, Fact, PrivateKey

    builder = BiscuitBuilder(
        "name({name}); expires({expires_s}); check if time($now), $now < {expires};",
        {"name": name, "expires_s": expires_s, "expires": datetime.fromtimestamp(expires_s, UTC)},
    )
    for verb, pattern in sorted((str(each.verb), each.pattern) for each in allow):
        builder.add_fact(Fact("allow({verb}, {pattern})", {"verb": verb, "pattern": pattern}))
    builder.set_root_key_id(key_id)
    token = builder.build(PrivateKey.from_bytes(private, Algorithm.Ed25519))
    text = token.to_base64()
    if len(text) > TOKEN_CHARS_MAX:
        raise InvalidArgument("these are too many permissions for one token: use patterns or roles")
    return NewToken(text, token.revocation_ids[0])


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """A token with a valid signature that is not revoked. Expiry is checked with every decision."""

    name: str
    token_id: str
    permissions: tuple[Permission, ...]
    expires_s: int
    _biscuit: Biscuit

    def permits(self, verb: Verb, name: str, now_s: float) -> bool:
        """Return whether it allows a request, and none of its checks forbids it."""
        if not allows(self.permissions, verb, name):
            return False
        try:
            _authorizer(self._biscuit, now_s, verb, name).authorize()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a check fails; a panic of the library denies, too
            return False
        return True


def _authorizer(biscuit: Biscuit, now_s: float, verb: str, name: str) -> Any:
    from biscuit_auth import AuthorizerBuilder

    builder = AuthorizerBuilder(
        "time({now}); verb({verb}); resource({name}); allow if true;",
        {"now": datetime.fromtimestamp(now_s, UTC), "verb": verb, "name": name},
    )
    limits = builder.limits()
    limits.max_facts, limits.max_iterations = _FACTS_MAX, _ITERATIONS_MAX
    limits.max_time = _CHECK_TIME
    builder.set_limits(limits)
    return builder.build(biscuit)


def verify(
    text: str, keys: Mapping[int, bytes], revoked: Collection[str], now_s: float
) -> VerifiedToken:
    """Return what a token states; raise PermissionDenied if it is not valid now."""
    try:
        token = _verified(text, keys, now_s)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # for any input, including a panic of the library
        token = None
    if token is None:
        raise PermissionDenied(f"the token was not signed by a key of this cluster: {_DENY}")
    if not revoked_ids(token).isdisjoint(revoked):
        raise PermissionDenied(f"the token of {token.name} was revoked: {_DENY}")
    if token.expires_s <= now_s:
        raise PermissionDenied(f"the token of {token.name} has expired: {_DENY}")
    return token


def _is_cheap(source: str) -> bool:
    """Return whether an added block has only plain checks. The library's time limit does not
    interrupt a single check, so one that joins many facts, recurses over the elements of a set or
    compiles a large expression could block a server for minutes."""
    return all(map(_CHECK.fullmatch, source.splitlines())) and not _COSTLY.search(source)


def revoked_ids(token: VerifiedToken) -> set[str]:
    """Return the ids of all its blocks: each of them can be revoked."""
    return set(token._biscuit.revocation_ids)


def _verified(text: str, keys: Mapping[int, bytes], now_s: float) -> VerifiedToken | None:
    from biscuit_auth import Algorithm, Biscuit, PublicKey, Rule, UnverifiedBiscuit

    if len(text) > TOKEN_CHARS_MAX:
        return None
    key = keys.get(UnverifiedBiscuit.from_base64(text).root_key_id() or 0)
    if key is None:
        return None
    biscuit = Biscuit.from_base64(text, PublicKey.from_bytes(key, Algorithm.Ed25519))
    if not all(_is_cheap(biscuit.block_source(index)) for index in range(1, biscuit.block_count())):
        return None
    facts = _authorizer(biscuit, now_s, "", "")  # facts of added blocks do not count
    [name] = facts.query(Rule("found($name) <- name($name)"))
    [expires] = facts.query(Rule("found($at) <- expires($at)"))
    allow = facts.query(Rule("found($verb, $pattern) <- allow($verb, $pattern)"))
    return VerifiedToken(
        name=name.terms[0],
        token_id=biscuit.revocation_ids[0],
        permissions=tuple(Permission(Verb(fact.terms[0]), fact.terms[1]) for fact in allow),
        expires_s=expires.terms[0],
        _biscuit=biscuit,
    )
