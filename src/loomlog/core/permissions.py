"""Permissions, roles and grants: they decide who may do what. Pure.

A permission is a verb and a pattern of names, written `append:orders.*`; `*` stands for any
characters. What the names are depends on the verb: logs, or the names of registers and pipelines.
Verbs about the whole cluster have no name, so any pattern covers them.

A grant gives a subject a permission, or all those of a role. Operators may do everything. Storage
nodes and metadata repositories have rights that nobody is granted (wire/permissions.py), and may
append to the audit log.
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

_OWN: Final = "loomlog."  # begins the names of the system's own logs
AUDIT_LOG: Final = f"{_OWN}audit"
EVERYBODY: Final = "*"  # a subject: also who has no name
ANONYMOUS_SUBJECT: Final = "anonymous"
_VERBS_SHOWN_MAX: Final = 3  # of a need, in messages


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
_SUBJECT: Final = re.compile(r"\*|[A-Za-z0-9._@-]+")


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
    """A verb or a role that a subject is given, for names that a pattern covers."""

    subject: str
    what: str
    pattern: str

    def __post_init__(self) -> None:
        if not _SUBJECT.fullmatch(self.subject) or len(self.subject) > limits.SUBJECT_CHARS_MAX:
            raise InvalidArgument(
                f"{self.subject[:100]!r} is no subject: write the name of a client, "
                f"{ANONYMOUS_SUBJECT!r}, or '*' for everybody"
            )
        permissions_for(self.what, self.pattern)

    @property
    def permissions(self) -> tuple[Permission, ...]:
        return permissions_for(self.what, self.pattern)

    def __str__(self) -> str:
        return f"{self.subject} {self.what}:{self.pattern}"


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
            f"{what[:100]!r} is no verb and no role: use one of {', '.join([*Verb, *ROLES])}"
        ) from None


def parse_permissions(text: str) -> tuple[Permission, ...]:
    """Parse VERB:PATTERN, or ROLE:PATTERN."""
    what, colon, pattern = text.partition(":")
    if not colon:
        raise InvalidArgument(f"{text[:100]!r} is no permission: write for example append:orders.*")
    return permissions_for(what, pattern)


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern covers a name, in linear time. Names of the system's own logs are
    covered only by patterns that begin like them."""
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
    """The permissions one of which a request needs."""

    verbs: tuple[Verb, ...]
    name: str = ""

    def __str__(self) -> str:
        if len(self.verbs) > _VERBS_SHOWN_MAX:
            return f"for {self.name}"
        texts = [verb if verb in OF_CLUSTER else f"{verb}:{self.name}" for verb in self.verbs]
        return " or ".join(texts)


def of_staging(need: Need) -> Need:
    """Return what a request about a staging log needs, as a part of the log that it stages for:
    who appends there creates and trims it when needed."""
    base = staged_log(need.name)
    if base is None:
        return need
    verbs = need.verbs
    if {Verb.CREATE, Verb.TRIM}.intersection(verbs):
        verbs = (*verbs, Verb.APPEND)
    return Need(verbs, base)


_RESERVED: Final[Mapping[str, tuple[Verb, Verb]]] = MappingProxyType(
    {  # first part of a register's name -> what reading and changing it needs, for the second part
        "checkpoint": (Verb.CHECKPOINT, Verb.CHECKPOINT),
        "group": (Verb.CHECKPOINT, Verb.CHECKPOINT),  # also the leases of its members
        "queue": (Verb.CHECKPOINT, Verb.CHECKPOINT),
        "writer": (Verb.APPEND, Verb.APPEND),  # of publications
        "archive": (Verb.READ, Verb.TRIM),
        "pipeline": (Verb.PIPELINE, Verb.PIPELINE),
    }
)


def register_need(name: str, *, change: bool) -> Need:
    """Return what reading or changing a register or a lease needs, by its name."""
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
        """Return what a peer may do, as its certificate names it."""
        if principal.kind == "operator":
            return (*permissions_for("*", "*"), *permissions_for("*", f"{_OWN}*"))
        if principal.kind in ("node", "metadata"):
            return (Permission(Verb.APPEND, AUDIT_LOG),)
        name = principal.name if principal.kind == "client" else ANONYMOUS_SUBJECT
        return self.permissions_of_subject(name)

    def permissions_of_subject(self, name: str) -> tuple[Permission, ...]:
        subjects = (name, EVERYBODY)
        granted = (grant.permissions for grant in self.grants if grant.subject in subjects)
        return tuple(dict.fromkeys(each for permissions in granted for each in permissions))

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
