"""Decide who may do what: permissions, roles and grants. Pure.

A permission is a verb and a pattern of names, written `append:orders.*`; `*` matches any
characters. The verb determines what is named: logs, registers or pipelines. Verbs about the whole
cluster have no name, so any pattern covers them.

A grant gives a subject one permission, or all those of a role. Some roles are built in. Any other
role, `role:NAME`, is a subject with grants of its own, which every subject with that role has, too.
Operators may do everything. Storage nodes and metadata repositories have fixed rights that cannot
be granted (wire/permissions.py), and may append to the audit log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from loomlog import limits
from loomlog.core.principal import Principal
from loomlog.errors import InvalidArgument
from loomlog.staging_logs import staged_log

_OWN: Final = "loomlog."  # prefix of the system's own logs
AUDIT_LOG: Final = f"{_OWN}audit"
EVERYBODY: Final = "*"  # a subject: every client, named or anonymous
ANONYMOUS_SUBJECT: Final = "anonymous"
_VERBS_SHOWN_MAX: Final = 3  # in a message, each with the name


class Verb(StrEnum):
    """A kind of request that may be permitted."""

    APPEND = "append"
    READ = "read"
    TRIM = "trim"
    CREATE = "create"
    DELETE = "delete"
    SWITCH = "switch"
    CHECKPOINT = "checkpoint"
    REGISTER = "register"
    PIPELINE = "pipeline"
    OPERATE = "operate"  # storage nodes, streams
    METADATA = "metadata"  # metadata repositories, permissions, tokens
    METRICS = "metrics"  # the status of servers


OF_CLUSTER: Final = frozenset({Verb.OPERATE, Verb.METADATA, Verb.METRICS})

_OF_LOGS: Final = (Verb.APPEND, Verb.READ, Verb.TRIM, Verb.CREATE, Verb.DELETE, Verb.SWITCH)
ROLES: Final[Mapping[str, tuple[Verb, ...]]] = MappingProxyType(
    {
        "reader": (Verb.READ, Verb.CHECKPOINT),
        "writer": (Verb.APPEND,),
        "owner": (*_OF_LOGS, Verb.CHECKPOINT),
        "monitor": (Verb.METRICS,),
        "admin": tuple(Verb),
    }
)

_PATTERN: Final = re.compile(r"[A-Za-z0-9._*/@:-]+")
_ROLE: Final = "role:"
_SUBJECT: Final = re.compile(rf"\*|(?:{_ROLE})?[A-Za-z0-9._@-]+")


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """A verb, for all names that a pattern covers."""

    verb: Verb
    pattern: str

    def covers(self, verb: Verb, name: str) -> bool:
        return verb is self.verb and (verb in OF_CLUSTER or matches(self.pattern, name))

    def __str__(self) -> str:
        return f"{self.verb}:{self.pattern}"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """A verb or a role that a subject has, for the names that a pattern covers. A role:NAME has
    patterns of its own, and is granted for all names."""

    subject: str
    what: str
    pattern: str

    def __post_init__(self) -> None:
        check_subject(self.subject)
        if not is_role(self.what):
            permissions_for(self.what, self.pattern)
            return
        check_subject(self.what)
        if is_role(self.subject):
            raise InvalidArgument("a role has no roles: grant its verbs to it")
        if self.pattern != "*":
            raise InvalidArgument(
                f"the grants of {self.what} name its patterns: give the role without one"
            )

    @property
    def permissions(self) -> tuple[Permission, ...]:
        """The permissions that this grant gives directly: none if it gives a role:NAME."""
        return () if is_role(self.what) else permissions_for(self.what, self.pattern)

    def __str__(self) -> str:
        return f"{self.subject} {self.what}:{self.pattern}"


def is_role(subject: str) -> bool:
    return subject.startswith(_ROLE)


def check_subject(text: str) -> None:
    """Raise InvalidArgument if this is not the name of a subject."""
    if not _SUBJECT.fullmatch(text) or len(text) > limits.SUBJECT_CHARS_MAX:
        raise InvalidArgument(
            f"{text[:100]!r} is no subject: write the name of a client, "
            f"{ANONYMOUS_SUBJECT!r}, '*' for everybody, or {_ROLE}NAME for a role"
        )


def permissions_for(what: str, pattern: str) -> tuple[Permission, ...]:
    """Return the permissions of a verb or a role; `*` is every verb."""
    if not _PATTERN.fullmatch(pattern) or len(pattern) > limits.PATTERN_CHARS_MAX:
        raise InvalidArgument(
            f"{pattern[:100]!r} is no pattern of names: write for example orders, orders.* or '*'"
        )
    if what in ROLES or what == "*":
        return tuple(Permission(verb, pattern) for verb in ROLES.get(what, tuple(Verb)))
    try:
        return (Permission(Verb(what), pattern),)
    except ValueError:
        raise InvalidArgument(
            f"{what[:100]!r} is no verb and no role: use one of {', '.join([*Verb, *ROLES])}, "
            f"or grant a role of your own, {_ROLE}NAME"
        ) from None


def parse_permissions(text: str) -> tuple[Permission, ...]:
    """Parse VERB:PATTERN, or ROLE:PATTERN."""
    what, colon, pattern = text.partition(":")
    if not colon:
        raise InvalidArgument(f"{text[:100]!r} is no permission: write for example append:orders.*")
    return permissions_for(what, pattern)


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern covers a name, in linear time. The system's own logs are covered
    only by patterns that begin with their prefix."""
    if name.startswith(_OWN) and not pattern.startswith(_OWN):
        return False
    first, *others = pattern.split("*")
    if not others:
        return pattern == name
    last = others.pop()
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in others:
        if (at := name.find(part, at, end)) < 0:
            return False
        at += len(part)
    return True


def allows(permissions: Iterable[Permission], verb: Verb, name: str) -> bool:
    return any(permission.covers(verb, name) for permission in permissions)


@dataclass(frozen=True, slots=True)
class Need:
    """A request's need of permission for one of these verbs."""

    verbs: tuple[Verb, ...]
    name: str = ""

    def only(self, verb: str) -> Need:
        """Return the need for this verb alone; unchanged if it is not one of the verbs."""
        verbs = tuple(each for each in self.verbs if each == verb)
        return Need(verbs, self.name) if verbs else self

    def __str__(self) -> str:
        if len(self.verbs) > _VERBS_SHOWN_MAX:
            return f"{', '.join(self.verbs[:-1])} or {self.verbs[-1]} for {self.name}"
        texts = [verb if verb in OF_CLUSTER else f"{verb}:{self.name}" for verb in self.verbs]
        return " or ".join(texts)


def of_staging(need: Need) -> Need:
    """Return the need of a request, with a staging log replaced by the log that it stages for.
    Permission to append there includes creating and trimming the staging log."""
    base = staged_log(need.name)
    if base is None:
        return need
    verbs = need.verbs
    if {Verb.CREATE, Verb.TRIM}.intersection(verbs):
        verbs = (*verbs, Verb.APPEND)
    return Need(verbs, base)


_RESERVED: Final[Mapping[str, tuple[Verb, Verb]]] = MappingProxyType(
    {  # first part of a register's name: verbs to read and to change it, named by the second part
        "checkpoint": (Verb.CHECKPOINT, Verb.CHECKPOINT),
        "group": (Verb.CHECKPOINT, Verb.CHECKPOINT),  # also the leases of its members
        "queue": (Verb.CHECKPOINT, Verb.CHECKPOINT),
        "writer": (Verb.APPEND, Verb.APPEND),  # of publications
        "archive": (Verb.READ, Verb.TRIM),
        "pipeline": (Verb.PIPELINE, Verb.PIPELINE),
    }
)


def register_need(name: str, *, change: bool) -> Need:
    """Return the need for reading or changing the register or lease of this name."""
    area, _, rest = name.partition("/")
    if area in _RESERVED:
        owner = rest if area in ("pipeline", "archive") else rest.partition("/")[0]
        return Need((_RESERVED[area][change],), owner)
    return Need((Verb.REGISTER,), name)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The grants of a cluster. Nothing is refused unless they are `enforced`."""

    enforced: bool = False
    grants: tuple[Grant, ...] = ()

    def permissions_of(self, principal: Principal) -> tuple[Permission, ...]:
        """Return the permissions of a peer, given the principal of its certificate."""
        if principal.kind == "operator":
            return (*permissions_for("*", "*"), *permissions_for("*", f"{_OWN}*"))
        if principal.kind in ("node", "metadata"):
            return (Permission(Verb.APPEND, AUDIT_LOG),)
        name = principal.name if principal.kind == "client" else ANONYMOUS_SUBJECT
        return self.permissions_of_subject(name)

    def permissions_of_subject(self, name: str) -> tuple[Permission, ...]:
        granted = (grant.permissions for grant in self.grants_of(name))
        return tuple(dict.fromkeys(each for permissions in granted for each in permissions))

    def grants_of(self, name: str) -> tuple[Grant, ...]:
        """Return the grants of a subject: its own, those of everybody, and those of its roles."""
        own = {name, EVERYBODY}
        roles = {each.what for each in self.grants if each.subject in own and is_role(each.what)}
        return tuple(grant for grant in self.grants if grant.subject in own | roles)

    def grants_about(self, subject: str) -> tuple[Grant, ...]:
        """Return the grants to a subject and, if it is a role, the grants of that role."""
        return tuple(each for each in self.grants if subject in (each.subject, each.what))

    def reasons(self, name: str, verb: Verb, resource: str) -> list[str]:
        """Return the permissions that allow a subject something, with the role they come from."""
        return sorted(
            {
                f"{permission} by {grant.subject}" if is_role(grant.subject) else str(permission)
                for grant in self.grants_of(name)
                for permission in grant.permissions
                if permission.covers(verb, resource)
            }
        )

    def with_grants(self, grants: Iterable[Grant]) -> AccessRules:
        together = tuple(sorted({*self.grants, *grants}))
        if len(together) > limits.GRANTS_MAX:
            raise InvalidArgument(
                f"a cluster has at most {limits.GRANTS_MAX} grants: use patterns and roles"
            )
        return AccessRules(self.enforced, together)

    def without_grants(self, grants: Iterable[Grant]) -> AccessRules:
        gone = set(grants)
        if unknown := gone.difference(self.grants):
            raise InvalidArgument(f"not granted: {min(unknown)}; look at `loom acl list`")
        return AccessRules(self.enforced, tuple(each for each in self.grants if each not in gone))
