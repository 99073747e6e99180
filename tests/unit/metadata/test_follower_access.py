"""A metadata repository that does not lead: it judges tokens and pages, too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loomlog.config import MetadataSettings
from loomlog.core.permissions import parse_permissions
from loomlog.core.principal import ANONYMOUS, Principal
from loomlog.core.usage import UNKNOWN
from loomlog.errors import LoomError, PermissionDenied, Unavailable
from loomlog.metadata.catalog.records import ACCESS, AccessRecord, encode
from loomlog.metadata.server import MetadataRepository
from loomlog.metadata.store.memory import MemoryStore
from loomlog.net.certificates import create_authority, create_certificate
from loomlog.wire import tokens

KEY = tokens.new_private_key()


class Stranger:
    """A connection over TLS without a certificate."""

    def __init__(self, token: str) -> None:
        self.principal, self.token, self.peer = ANONYMOUS, token, "192.0.2.1:1"
        self.is_encrypted = self.is_private = True
        self.closed, self.session, self.usage = False, None, UNKNOWN
        self.closed_with: LoomError | None = None

    def close(self, error: LoomError) -> None:
        self.closed_with = error


async def test_tokens_are_judged_by_the_rules_of_the_leader(tmp_path: Path) -> None:
    create_authority(tmp_path / "certs", "c")
    create_certificate(tmp_path / "certs", Principal("metadata", number=2, cluster="c"), ["h"])
    peers = {1: "h:1", 2: "h:2"}
    settings = MetadataSettings(
        "c", str(tmp_path / "data"), member_id=2, peers=peers, tls=str(tmp_path / "certs")
    )
    store = MemoryStore()
    follower: Any = MetadataRepository(settings, store=store)
    follower._store = store
    expires_s = int(asyncio.get_running_loop().time()) + 4_000_000_000
    allow = parse_permissions("metrics:*")
    token = tokens.sign(1, KEY, "billing", allow, expires_s)
    with pytest.raises(Unavailable, match="does not know the keys of tokens yet"):
        follower._admit(Stranger(token.text))
    record = AccessRecord(1, True, (), ((1, KEY.hex()),))
    version = await store.compare_and_swap(ACCESS, 0, encode(record))
    await follower._learn_access()
    admitted = Stranger(token.text)
    follower._admit(admitted)
    with pytest.raises(PermissionDenied, match="not signed by a key of this cluster"):
        follower._admit(Stranger("any text"))
    assert follower._guard.permits_metrics(ANONYMOUS, token.text, "")
    assert not follower._guard.permits_metrics(ANONYMOUS, "", "")
    without_keys = AccessRecord(2, True)
    await store.compare_and_swap(ACCESS, version, encode(without_keys))
    await follower._learn_access()
    assert isinstance(admitted.closed_with, PermissionDenied)
    follower._guard.stop()
    await follower._directory.close()
