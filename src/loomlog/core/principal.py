"""The principal of a connection: the peer's identity, as stated by its certificate.

A certificate carries one URI, `loom://CLUSTER/node/3`, `loom://CLUSTER/metadata/1`,
`loom://CLUSTER/client/alice` or `loom://CLUSTER/operator/carol`. Without TLS, or without a
certificate, a peer is anonymous.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, cast

from loomlog.errors import InvalidArgument

Kind = Literal["anonymous", "client", "node", "metadata", "operator"]

_SERVERS: Final = ("node", "metadata")
_PEOPLE: Final = ("client", "operator")
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_URI: Final = re.compile(rf"loom://({_NAME.pattern})/([a-z]+)/({_NAME.pattern})")


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated peer. Servers have a number, clients and operators a name."""

    kind: Kind
    name: str = ""
    number: int = 0
    cluster: str = ""

    def __post_init__(self) -> None:
        if self.kind == "anonymous":
            return
        for text in (self.cluster, self.name if self.kind in _PEOPLE else "1"):
            if not _NAME.fullmatch(text):
                raise InvalidArgument(
                    f"{text!r} cannot be named in a certificate: "
                    "use up to 100 letters, digits and . _ @ -"
                )
        if self.kind in _SERVERS and self.number < 1:
            raise InvalidArgument(f"a {self.kind} has a number from 1, not {self.number}")

    def __str__(self) -> str:
        if self.kind == "anonymous":
            return "somebody without a certificate"
        return f"{self.kind} {self.number if self.kind in _SERVERS else self.name}"

    @property
    def uri(self) -> str:
        """The URI that a certificate carries for this principal."""
        last = str(self.number) if self.kind in _SERVERS else self.name
        return f"loom://{self.cluster}/{self.kind}/{last}"


ANONYMOUS: Final = Principal("anonymous")


def stated_principal(uris: Iterable[str]) -> Principal:
    """Return the principal stated by a certificate with these URIs. A certificate without exactly
    one valid loom:// URI is anonymous."""
    ours = [uri for uri in uris if uri.startswith("loom://")]
    stated = _URI.fullmatch(ours[0]) if len(ours) == 1 else None
    if stated is None:
        return ANONYMOUS
    cluster, kind, last = stated.groups()
    if kind in _PEOPLE:
        return Principal(cast(Kind, kind), name=last, cluster=cluster)
    if kind in _SERVERS and re.fullmatch(r"[1-9][0-9]{0,9}", last):
        return Principal(cast(Kind, kind), number=int(last), cluster=cluster)
    return ANONYMOUS
