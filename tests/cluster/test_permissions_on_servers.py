"""Permissions and tokens on real servers: enforced where each request is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest
from poll import until
from random_frames import KINDS, RandomFrames

from loomlog.archive.record import register_name
from loomlog.client.cluster import Cluster, connect
from loomlog.client.log import Log
from loomlog.client.transactions import transaction
from loomlog.core.permissions import Grant, Verb
from loomlog.errors import InvalidArgument, LoomError, NotFound, PermissionDenied
from loomlog.limits import IdentityLimits
from loomlog.net.address import split_address
from loomlog.net.endpoints import connect as connect_to
from loomlog.net.service import OnlyAnswers
from loomlog.testing import LocalCluster
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.permissions import ANYBODY, RULES

PROTOCOLS = ("ordered", "chained", "copyset")


class Site:
    """A cluster that enforces permissions, with one log of each protocol, and its operator."""

    def __init__(self, local: LocalCluster, operator: Cluster) -> None:
        self.local = local
        self.operator = operator
        self.clients: list[Cluster] = []

    async def client(self, *allow: str, append_timeout_s: float = 30.0) -> Cluster:
        """Return a client with a token that allows this; without one if that is nothing."""
        token = (await self.operator.create_token("user", allow)).text if allow else ""
        client = await connect(self.local.address, token=token, append_timeout_s=append_timeout_s)
        self.clients.append(client)
        return client


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    local = LocalCluster(nodes=2)
    async with local as anybody:
        for protocol in PROTOCOLS:
            log = await anybody.create_log(protocol, protocol=protocol, replicas=2)
            await log.append(b"first")
        token = (await anybody.create_token("root", ["*:*"])).text
        operator = await connect(local.address, token=token)
        await operator.enforce_access(True)
        made = Site(local, operator)
        yield made
        for client in (*made.clients, operator):
            await client.close()


async def first_value(log: Log) -> bytes:
    async with asyncio.timeout(20):
        async for entry in log.subscribe(1):
            return bytes(entry.value)
    raise AssertionError("the subscription ended")


async def test_tokens_allow_what_they_state_with_every_protocol(site: Site) -> None:
    writer = await site.client("append:*")
    reader = await site.client("read:*")
    other = await site.client("owner:elsewhere")
    for name in PROTOCOLS:
        position = (await writer.log(name).append(b"second")).position
        assert await first_value(reader.log(name)) == b"first"
        assert (await reader.log(name).read(position)).value == b"second"
        with pytest.raises(PermissionDenied, match=f"no permission read:{name}|read for this log"):
            await writer.log(name).read(position)
        with pytest.raises(PermissionDenied, match=rf"append:{name}|append for this log"):
            await reader.log(name).append(b"no")
        with pytest.raises(PermissionDenied):
            await other.log(name).append(b"no")
        with pytest.raises(PermissionDenied):
            await first_value(other.log(name))
    with pytest.raises(PermissionDenied, match="delete:ordered"):
        await writer.delete_log("ordered")
    assert [log.name for log in await reader.logs()] == sorted(PROTOCOLS)
    assert await other.logs() == []
    with pytest.raises(PermissionDenied, match="metrics"):
        await reader.status()
    counted = (await site.operator.status()).denials
    assert counted > 0


async def test_a_denial_names_the_permission_that_an_operation_needs(site: Site) -> None:
    """Operations first describe the log, which any permission for it allows."""
    stranger = await site.client("append:elsewhere")
    log = stranger.log("ordered")
    for operation, verb in (
        (log.trim(1), "trim"),
        (stranger.delete_log("ordered"), "delete"),
        (log.groups(), "checkpoint"),
        (log.queues(), "checkpoint"),
        (log.checkpoints(), "checkpoint"),
        (log.checkpoint("c").get(), "checkpoint"),
        (log.checkpoint("c").set(1), "checkpoint"),
        (log.tail(), "read"),
    ):
        with pytest.raises(PermissionDenied, match=f"no permission .*{verb}:ordered"):
            await operation
    for attempt in (log.append(b"x"), log.read(1), log.describe()):
        with pytest.raises(PermissionDenied, match=r"append, read, trim, .* or checkpoint for ord"):
            await attempt


async def test_grants_count_at_once_and_a_revoked_token_ends_its_subscription(site: Site) -> None:
    anybody = await site.client()
    with pytest.raises(PermissionDenied):
        await anybody.log("ordered").append(b"no")
    await site.operator.grant(Grant("anonymous", "writer", "ordered"))
    await anybody.log("ordered").append(b"yes")
    await site.operator.revoke(Grant("anonymous", "writer", "ordered"))
    with pytest.raises(PermissionDenied):
        await anybody.log("ordered").append(b"no")

    role = "role:writers"
    await site.operator.grant(Grant(role, "append", "ord*"), Grant("anonymous", role, "*"))
    await anybody.log("ordered").append(b"yes")
    await site.operator.remove_subject(role)
    with pytest.raises(PermissionDenied):
        await anybody.log("ordered").append(b"no")
    with pytest.raises(InvalidArgument, match="role:writers has no grants"):
        await site.operator.remove_subject(role)
    with pytest.raises(InvalidArgument, match="not that of a role"):
        await site.operator.create_token(role, ["append:ordered"])

    reader = await site.client("read:copyset")
    subscription = aiter(reader.log("copyset").subscribe(1))
    assert (await anext(subscription)).value == b"first"
    waiting = asyncio.ensure_future(anext(subscription))
    token = (await site.operator.access()).tokens[-1]
    assert token.allow == ("read:copyset",)
    await site.operator.revoke_tokens(token.id[:16])
    with pytest.raises(PermissionDenied, match="revoked"):
        async with asyncio.timeout(30):
            await waiting


async def test_what_transactions_need_and_their_readers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = ("ordered", "copyset")
    decisions = [f"{verb}:loomlog.transactions" for verb in ("create", "append", "read")]
    writer = await site.client("append:ordered", "append:copyset", *decisions)
    async with writer.transaction() as both:
        for name in logs:
            both.append(name, b"both")
    reader = await site.client("read:ordered", "read:copyset", "read:loomlog.transactions")
    for name in logs:
        at = both.positions[name][0].position
        assert (await reader.log(name).read(at)).value == b"both"
    assert (await writer.log("loomlog.transactions").describe()).segments[-1].replicas == 2
    decision = await reader.log("loomlog.transactions").read(1)
    assert (decision.value, decision.key, dict(decision.headers)) == (b"", None, {})

    async def dies(self: Any, cell: Any) -> bool:
        raise RuntimeError("the writer died")

    monkeypatch.setattr(transaction._Writer, "_write", dies)
    half = writer.transaction()
    half.append("ordered", b"half")
    with pytest.raises(RuntimeError):
        await half.commit()
    with pytest.raises(NotFound, match="was not completed"):
        await reader.log("ordered").read(both.positions["ordered"][0].position + 1)


async def test_only_who_may_trim_a_log_says_where_its_archive_is(site: Site) -> None:
    """Readers open what the register names, and believe it."""
    everything_else = [f"{verb}:*" for verb in Verb if verb is not Verb.TRIM]
    elsewhere = await site.client(*everything_else, "trim:chained")
    name = register_name("ordered")
    with pytest.raises(PermissionDenied, match="trim:ordered"):
        await elsewhere.register(name).swap(b"evil", 0)
    with pytest.raises(PermissionDenied):
        await (await site.client()).register(name).swap(b"evil", 0)
    assert await elsewhere.register(name).get() is None
    trimmer = await site.client("trim:ordered", "read:ordered")
    assert await trimmer.register(name).swap(b"an archive", 0)


async def test_nobody_locks_himself_out(site: Site) -> None:
    await site.operator.enforce_access(False)
    anybody = await site.client()
    with pytest.raises(InvalidArgument, match="could not change permissions afterwards"):
        await anybody.enforce_access(True)


async def test_a_restarted_node_judges_before_it_has_registered(site: Site) -> None:
    local = site.local
    await local.stop_node(1)
    await local.stop_metadata(1)
    starting = asyncio.ensure_future(local.start_node(1))
    try:
        await until(lambda: 1 in local.nodes and local.nodes[1]._guard.is_on)
    finally:
        await local.start_metadata(1)
        await starting
    writer = await site.client("append:ordered")
    await writer.log("ordered").append(b"again")


async def test_who_stands_in_for_the_metadata_repository_does_not_lift_the_rules(
    site: Site,
) -> None:
    """`loom metadata rebuild` answers registrations, and knows no rules."""
    node = site.local.nodes[1]
    rules = node._guard.access
    node._registered(pb.Registered(cluster_id="local"))
    assert node._guard.is_on
    assert node._guard.access == node._disks.known_access.current == rules


async def test_an_attacker_on_a_raw_connection_achieves_nothing(site: Site) -> None:
    """Send every kind of frame, about things that exist, to every server: without a token, with a
    forged one, and with one that allows something else."""
    before = await facts(site)
    addresses = [site.local.address, *(node.address for node in site.local.nodes.values())]
    token = (await site.operator.create_token("mallory", ["append:elsewhere"])).text
    for address in addresses:
        for credential in ("", "forged" + token[6:]):
            assert await attack(address, credential) == {PermissionDenied}
        assert await attack(address, token) <= {PermissionDenied, NotFound}
    assert await facts(site) == before
    for name in PROTOCOLS:
        assert await first_value(site.operator.log(name)) == b"first"


async def attack(address: str, token: str) -> set[type[BaseException] | None]:
    """Return the answered errors; None if a request was carried out."""
    frames = RandomFrames(7, ids=(1, 2, 3))
    outcomes: set[type[BaseException] | None] = set()
    connection = await connect_to(address, Codec("client", token=token), OnlyAnswers())
    try:
        for kind, number in product(KINDS, (1, 2, 3)):
            if RULES[kind] is ANYBODY:  # what they list is tested above
                continue
            frame = frames.about(kind, number, PROTOCOLS[number - 1])
            try:
                async with asyncio.timeout(10):
                    await connection.request(frame, [frames.payload()])
                outcomes.add(None)
            except (LoomError, TimeoutError) as error:
                outcomes.add(type(error))
    finally:
        connection.close()
    return outcomes


async def facts(site: Site) -> object:
    """Return the state that an attacker might have changed."""
    operator = site.operator
    logs = [
        (log.name, log.head, log.id, await operator.log(log.name).tail())
        for log in await operator.logs()
    ]
    access, status = await operator.access(), await operator.status()
    return logs, access.rules, [(node.id, node.alive, node.draining) for node in status.nodes]


async def test_a_flood_of_denials_hides_no_action_in_the_audit_log(site: Site) -> None:
    mallory, repository = await site.client("append:elsewhere"), site.local.metadata
    assert repository is not None
    repository.audit.take()
    flood = (mallory.delete_log("ordered") for _ in range(500))
    denied = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(error) for error in denied} == {PermissionDenied}
    await site.operator.create_log("another", replicas=2)
    entries = repository.audit.take()
    assert [entry.what[:10] for entry in entries if entry.who == "token root"] == ["create_log"]
    kept = sum(entry.who == "token user" for entry in entries)
    dropped = sum(entry.dropped for entry in entries)
    assert kept + dropped == 500
    lines = (await repository.metrics()).splitlines()
    [line] = [each for each in lines if each.startswith('loomlog_audit_dropped_total{server="vmr')]
    assert float(line.rpartition(" ")[2]) == dropped


async def test_the_lease_that_fences_a_swap_is_judged_too(site: Site) -> None:
    """A refusal names the holder of a lease."""
    everything = await site.client("register:*")
    assert await everything.acquire_lease("secret/lease", "its holder", 60.0)
    mine = await site.client("register:mine/*")
    version = await mine.register("mine/state").swap(b"1", 0)
    held = await mine.acquire_lease("mine/lease", "me", 60.0)
    for name in ("secret/lease", "secret/other"):
        lease = mine.held_lease(name, "me", 7)
        with pytest.raises(PermissionDenied, match=f"register:{name}") as denied:
            await mine.register("mine/state").swap(b"2", version, lease=lease)
        assert "its holder" not in str(denied.value)
    assert await mine.register("mine/state").swap(b"2", version, lease=held) > version


async def test_pages_of_a_metadata_repository_need_the_permission_metrics(site: Site) -> None:
    repository = site.local.metadata
    assert repository is not None
    await repository._listen_http("127.0.0.1:0")
    address = str(repository.http_address)
    monitor = (await site.operator.create_token("monitor", ["metrics:*"])).text
    for page, token, status in (
        ("/healthz", "", 200),
        ("/metrics", "", 403),
        ("/status", "nonsense", 403),
        ("/metrics", monitor, 200),
        ("/status", monitor, 200),
    ):
        assert await get(address, page, token) == status, (page, token)


async def get(address: str, page: str, token: str) -> int:
    reader, writer = await asyncio.open_connection(*split_address(address))
    asked = f"GET {page} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(asked.encode())
    async with asyncio.timeout(20):
        line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_what_one_name_uses_is_limited_and_counted(site: Site) -> None:
    """Requests and subscriptions of all its connections count together, with every protocol."""
    client = await site.client("append:*", "read:*", append_timeout_s=0.5)
    repository = site.local.metadata
    guards = [node._guard for node in site.local.nodes.values()]
    assert repository is not None
    for protocol in PROTOCOLS:
        log = client.log(protocol)
        await log.append(b"x")
        assert await first_value(log) == b"first"
    for guard in guards:
        guard._limits = guard._usages["token user"].limits = IdentityLimits(requests=0)
    for protocol in PROTOCOLS:
        with pytest.raises(LoomError, match="token user has 0 requests under way here"):
            await client.log(protocol).append(b"x")
    for guard in guards:
        guard._limits = guard._usages["token user"].limits = IdentityLimits()
    await client.log("ordered").append(b"x")
    refused = sum(guard.refusals["requests"] for guard in guards)
    assert refused

    async def counted() -> float:
        lines = (await repository.metrics()).splitlines()
        ours = [line for line in lines if line.startswith("loomlog_limit_refusals_total{")]
        of_nodes = [line for line in ours if 'limit="requests"' in line and "vsn-" in line]
        return sum(float(line.rpartition(" ")[2]) for line in of_nodes)

    while await counted() != refused:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_subscriptions_that_were_cancelled_do_not_count(site: Site) -> None:
    """A subscription does not count even if it had no entry to send, and so was never answered."""
    client = await site.client("create:*", "append:*", "read:*")
    log = await client.create_log("empty", replicas=2)
    guards = [node._guard for node in site.local.nodes.values()]

    def used() -> list[tuple[int, int]]:
        found = [guard._usages.get("token user") for guard in guards]
        return [(usage.requests, usage.subscriptions) for usage in found if usage is not None]

    for _ in range(3):
        reading = asyncio.ensure_future(first_value(log))
        await until(lambda: any(subscriptions for _, subscriptions in used()))
        reading.cancel()
        await until(lambda: bool(used()) and not any(map(any, used())))
