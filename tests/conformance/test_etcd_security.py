"""Metadata in an etcd that wants to know who we are: TLS, users and their roles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from loomlog.config import EtcdSettings
from loomlog.errors import Unauthorized, Unavailable
from loomlog.metadata.store.contract import ItemChange, StoredItem
from loomlog.metadata.store.etcd import EtcdStore
from loomlog.metadata.store.etcd.connection import rpc
from loomlog.testing import LocalEtcd

USER, PASSWORD, PREFIX = "loomlog", "a secret", "clusters/mine"


@pytest.fixture(scope="session")
def etcd() -> Iterator[LocalEtcd]:
    """An etcd with users: ours may use what is under PREFIX, and nothing else."""
    with LocalEtcd() as etcd:
        asyncio.run(add_users(etcd.endpoints[0]))
        yield etcd


async def add_users(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        auth = rpc.AuthStub(channel)
        await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password="root"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.UserAdd(rpc.AuthUserAddRequest(name=USER, password=PASSWORD))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="metadata"))
        permission = rpc.Permission(
            permType=rpc.Permission.READWRITE,
            key=f"{PREFIX}/".encode(),
            range_end=f"{PREFIX}0".encode(),
        )
        await auth.RoleGrantPermission(
            rpc.AuthRoleGrantPermissionRequest(name="metadata", perm=permission)
        )
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=USER, role="metadata"))
        await auth.AuthEnable(rpc.AuthEnableRequest())


@asynccontextmanager
async def opened(settings: EtcdSettings) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(settings)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def settings(etcd: LocalEtcd) -> EtcdSettings:
    return EtcdSettings(etcd.endpoints, PREFIX, USER, PASSWORD)


async def heard_of(heard: list[ItemChange], count: int) -> None:
    async with asyncio.timeout(30):
        while len(heard) < count:  # noqa: ASYNC110 - it happens in etcd
            await asyncio.sleep(0.01)


# ---- users


async def test_a_user_reads_writes_and_watches_under_its_prefix(settings: EtcdSettings) -> None:
    async with opened(settings) as store:
        heard: list[ItemChange] = []
        store.watch("", heard.append)
        version = await store.compare_and_swap("a", 0, b"x")
        assert await store.list("") == {"a": StoredItem(b"x", version)}
        await store.compare_and_swap("a", version, None)
        await heard_of(heard, 2)


async def test_a_token_that_is_void_is_replaced(etcd: LocalEtcd, settings: EtcdSettings) -> None:
    """Tokens live in etcd's memory: after a restart it does not know them any more."""
    async with opened(settings) as store:
        heard: list[ItemChange] = []
        store.watch("", heard.append)
        version = await store.compare_and_swap("b", 0, b"1")
        etcd.kill(1)
        await asyncio.to_thread(etcd.start, 1)
        await asyncio.to_thread(etcd.wait_healthy, 1)
        version = await store.compare_and_swap("b", version, b"2")
        assert await store.get("b") == StoredItem(b"2", version)
        await heard_of(heard, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"password": "a guess"}, "password"),
        ({"user": None, "password": None}, "user and a password"),
        ({"prefix": "clusters/theirs"}, "permission denied"),
    ],
)
async def test_who_may_not_is_told_so_in_one_line(
    settings: EtcdSettings, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(Unauthorized, match=said) as refused:
        await EtcdStore.open(replace(settings, **change))
    assert "\n" not in str(refused.value)


async def test_a_password_is_not_shown(settings: EtcdSettings) -> None:
    assert PASSWORD not in repr(settings)


# ---- TLS


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem; server.pem and client.pem with their keys; other.pem, a CA that signed neither."""
    directory = tmp_path_factory.mktemp("certificates")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(directory / "ca.pem")
    trustme.CA().cert_pem.write_to_path(directory / "other.pem")
    for name, identity in (("server", "127.0.0.1"), ("client", "vmr@example.org")):
        certificate = ca.issue_cert(identity)
        certificate.cert_chain_pems[0].write_to_path(directory / f"{name}.pem")
        certificate.private_key_pem.write_to_path(directory / f"{name}.key")
    return directory


@pytest.fixture(scope="session")
def secure(certificates: Path) -> Iterator[LocalEtcd]:
    arguments = [
        *("--cert-file", str(certificates / "server.pem")),
        *("--key-file", str(certificates / "server.key")),
        *("--trusted-ca-file", str(certificates / "ca.pem")),
        "--client-cert-auth",
    ]
    with LocalEtcd(arguments=arguments, scheme="https") as etcd:
        yield etcd


@pytest.fixture
def encrypted(secure: LocalEtcd, certificates: Path) -> EtcdSettings:
    return EtcdSettings(
        secure.endpoints,
        ca=str(certificates / "ca.pem"),
        cert=str(certificates / "client.pem"),
        key=str(certificates / "client.key"),
    )


async def test_both_sides_show_their_certificates(encrypted: EtcdSettings) -> None:
    async with opened(encrypted) as store:
        version = await store.compare_and_swap("a", 0, b"x")
        assert await store.get("a") == StoredItem(b"x", version)


async def test_an_etcd_that_our_ca_did_not_sign_is_not_used(
    encrypted: EtcdSettings, certificates: Path
) -> None:
    stranger = replace(encrypted, ca=str(certificates / "other.pem"), timeout_s=0.5)
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED") as refused:
        await EtcdStore.open(stranger)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("missing", [("cert", "key"), ("ca", "cert", "key")])
async def test_without_a_certificate_etcd_does_not_let_us_in(
    encrypted: EtcdSettings, missing: tuple[str, ...]
) -> None:
    without: dict[str, Any] = dict.fromkeys(missing)
    with pytest.raises(Unavailable):
        await EtcdStore.open(replace(encrypted, **without, timeout_s=0.5))


async def test_a_file_that_is_no_key_lets_nobody_in(
    encrypted: EtcdSettings, certificates: Path
) -> None:
    with pytest.raises(Unavailable):
        await EtcdStore.open(replace(encrypted, key=str(certificates / "ca.pem"), timeout_s=0.5))
