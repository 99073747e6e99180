"""The guard of a server: every request is judged before it is served."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from loomlog.core.audit import AuditTrail
from loomlog.core.permissions import AccessRules, Grant, Need, Verb, parse_permissions
from loomlog.core.principal import ANONYMOUS, Principal
from loomlog.core.usage import UNKNOWN
from loomlog.errors import Busy, LoomError, NotFound, PermissionDenied, Unauthorized
from loomlog.limits import IdentityLimits
from loomlog.wire import guard, tokens
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.access import Access
from loomlog.wire.guard import RECHECK_S, Guard
from loomlog.wire.permissions import BLOCK_WRITE, RULES, Rule, Target

ALICE = Principal("client", name="alice", cluster="c")
CAROL = Principal("operator", name="carol", cluster="c")
NODE = Principal("node", number=3, cluster="c")
VMR = Principal("metadata", number=1, cluster="c")
NOW_S = 1_800_000_000.0
FULL = memoryview(b"batch")
KEY = tokens.new_private_key()


class Names:
    """Stream 1 belongs to loglet 2 of log `orders`, whose name has to be fetched."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def loglet_of(self, stream: int) -> int | None:
        return 2 if stream == 1 else None

    def log_of(self, loglet: int) -> str | None:
        return self.names.get(loglet)

    async def learn(self, loglet: int) -> None:
        if loglet != 2:
            raise NotFound("no such loglet")
        self.names[2] = "orders"


class Peer:
    """A connection, as the guard sees it."""

    def __init__(
        self,
        principal: Principal = ANONYMOUS,
        *,
        token: str = "",
        role: str = "client",
        encrypted: bool = True,
        private: bool = True,
    ) -> None:
        self.principal, self.token, self.peer = principal, token, "192.0.2.1:999"
        self.is_encrypted, self.is_private = encrypted, private
        self.session: Any = None
        self.usage = UNKNOWN
        self.counted: list[tuple[int, int]] = []
        self.closed_with: LoomError | None = None
        self.greeted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.greeted.set_result(role)

    @property
    def closed(self) -> bool:
        return self.closed_with is not None

    def close(self, error: LoomError) -> None:
        self.closed_with = error

    def count(self, request_id: int, size: int) -> None:
        self.usage.begin(size)
        self.counted.append((request_id, size))


class Rig:
    """A guard that enforces some grants."""

    def __init__(self, *grants: Grant, enforced: bool = True, **most: int) -> None:
        self.now_s = NOW_S
        self.names = Names()
        self.trail = AuditTrail()
        limited = IdentityLimits(**most)
        self.guard = Guard(
            self.names,
            self.trail,
            lambda: self.now_s,
            identity_limits=limited,
        )
        self.access = Access(
            1, AccessRules(enforced, tuple(grants)), {1: tokens.public_key(KEY)}, frozenset()
        )
        self.guard.update(self.access)

    def change(self, **changes: Any) -> None:
        self.access = replace(self.access, version=self.access.version + 1, **changes)
        self.guard.update(self.access)

    async def ask(self, peer: Peer, frame: pb.Frame, payload: memoryview = FULL) -> None:
        kind = str(frame.WhichOneof("body"))
        waiting = self.guard.check(peer, kind, frame, payload)  # type: ignore[arg-type]
        if waiting is not None:
            await waiting
            assert self.guard.check(peer, kind, frame, payload) is None  # type: ignore[arg-type]


def frame_of(kind: str, sub_kind: int | None = None) -> pb.Frame:
    """Return a request about the log `orders`, or a register of that name."""
    frame = pb.Frame(id=1)
    body = getattr(frame, kind)
    body.SetInParent()
    fields = body.DESCRIPTOR.fields_by_name
    values = {
        "name": "orders",
        "log_stream_id": 1,
        "loglet_id": 2,
        "storage_node_id": NODE.number,
        "leader": VMR.number,
    }
    for name, value in values.items():
        if name in fields and isinstance(getattr(body, name), type(value)):
            setattr(body, name, value)
    if sub_kind is not None:
        body.kind = sub_kind
    return frame


def requests() -> list[tuple[str, Rule, pb.Frame, memoryview]]:
    found = []
    for kind, rules in RULES.items():
        single = [(None, rules)] if isinstance(rules, Rule) else list(rules.items())
        for sub_kind, rule in single:
            name = kind if sub_kind is None else f"{kind}-{sub_kind}"
            found.append((name, rule, frame_of(kind, sub_kind), FULL))
    return found


CASES = requests()


async def is_denied(rig: Rig, principal: Principal, frame: pb.Frame, payload: memoryview) -> str:
    """Return why a request is denied; "" if it is allowed."""
    try:
        await rig.ask(Peer(principal), frame, payload)
    except PermissionDenied as error:
        return str(error)
    return ""


@pytest.mark.parametrize("verb", Verb)
async def test_each_request_is_allowed_by_its_verbs_alone(verb: Verb) -> None:
    for name, rule, frame, payload in CASES:
        rig = Rig(Grant("alice", verb, "orders"))
        needed = rule.verbs + (rule.lesser.verbs if rule.lesser else ())
        if rule.target in (Target.REGISTER, Target.REGISTER_CHANGE):
            needed = (Verb.REGISTER,)
        denied = await is_denied(rig, ALICE, frame, payload)
        assert bool(denied) != (rule.is_open or verb in needed), (name, denied)
        assert "\n" not in denied
        assert rig.guard.denials == bool(denied)
        for entry in rig.trail.take():
            assert (entry.who, entry.where) == ("client alice", "192.0.2.1:999")


@pytest.mark.parametrize("principal", [NODE, VMR], ids=str)
async def test_servers_need_their_own_certificates(principal: Principal) -> None:
    for name, rule, frame, payload in CASES:
        denied = await is_denied(Rig(), principal, frame, payload)
        assert bool(denied) != (rule.is_open or principal.kind in rule.servers), (name, denied)


@pytest.mark.parametrize("enforced", [True, False])
async def test_a_server_sends_only_what_names_itself(enforced: bool) -> None:
    others = {"node": replace(NODE, number=2), "metadata": replace(VMR, number=2)}
    named = [case for case in CASES if case[1].sender and case[1].sender.field]
    assert len(named) == 4
    for name, rule, frame, payload in named:
        rig, impostor = Rig(enforced=enforced), others[rule.servers[0]]
        with pytest.raises(Unauthorized, match=f"needs the certificate .* not that of {impostor}"):
            await rig.ask(Peer(impostor), frame, payload)
        assert rig.guard.denials == 1, name
        assert [entry.who for entry in rig.trail.take()] == [str(impostor)]


async def test_without_rules_certificates_still_tell_servers_from_others() -> None:
    for name, rule, frame, payload in CASES:
        denied = await is_denied(Rig(enforced=False), CAROL, frame, payload)
        is_of_servers = bool(rule.servers) and not rule.verbs
        assert ("only servers of this cluster" in denied) == is_of_servers, (name, denied)
        await Rig(enforced=False).ask(Peer(encrypted=False), frame, payload)  # as ever


async def test_a_denial_names_the_missing_permission() -> None:
    rig = Rig(Grant("alice", "read", "orders"), Grant("bob", "append", "bills"))
    bob = Peer(Principal("client", name="bob", cluster="c"))
    with pytest.raises(PermissionDenied, match="client alice has no permission delete:orders"):
        await rig.ask(Peer(ALICE), frame_of("delete_log"))
    with pytest.raises(PermissionDenied, match="has no permission append:orders"):
        await rig.ask(Peer(ALICE), frame_of("append"))
    with pytest.raises(PermissionDenied, match="append for this log") as denied:
        await rig.ask(bob, frame_of("append"))  # bob must not learn which log stream 1 is of
    assert "orders" not in str(denied.value)


async def test_who_fulfils_the_lesser_rule_alone_is_served_in_another_way() -> None:
    rig, peer = Rig(Grant("alice", "read", "orders")), Peer(ALICE)
    write, key = frame_of("chain_request", pb.ChainRequest.WRITE), (BLOCK_WRITE, 2)
    for _ in range(2):
        await rig.ask(peer, write)
        assert key in peer.session.lesser
        assert key not in peer.session.admitted
    rig.change(rules=rig.access.rules.with_grants([Grant("alice", "append", "orders")]))
    assert not peer.closed
    await rig.ask(peer, write)
    assert key not in peer.session.lesser
    rig.change(rules=AccessRules(True, (Grant("alice", "read", "orders"),)))
    assert isinstance(peer.closed_with, PermissionDenied)  # it lost the right to append
    with pytest.raises(PermissionDenied, match="append for this log"):
        await Rig(Grant("alice", "read", "bills")).ask(Peer(ALICE), write)


async def test_a_stream_that_is_not_here_is_not_found() -> None:
    rig = Rig(Grant("alice", "append", "*"))
    frame = pb.Frame(append=pb.Append(log_stream_id=99))
    with pytest.raises(NotFound):
        await rig.ask(Peer(ALICE), frame)


async def test_a_decision_is_kept_until_rules_change() -> None:
    rig, peer = Rig(Grant("alice", "append", "orders")), Peer(ALICE)
    await rig.ask(peer, frame_of("append"))
    rig.names.names.clear()  # nobody asks for the name again
    await rig.ask(peer, frame_of("append"))
    rig.names.names[2] = "orders"
    rig.change(rules=AccessRules(True, (Grant("alice", "read", "orders"),)))
    assert isinstance(peer.closed_with, PermissionDenied)
    again = Peer(ALICE)
    with pytest.raises(PermissionDenied):
        await rig.ask(again, frame_of("append"))


@pytest.mark.parametrize("lost", [0, 1], ids=["its-grant", "the-role"])
async def test_who_loses_a_role_or_whose_role_loses_a_grant_is_cut_off(lost: int) -> None:
    grants = (Grant("role:billing", "append", "orders"), Grant("alice", "role:billing", "*"))
    rig, peer = Rig(*grants), Peer(ALICE)
    await rig.ask(peer, frame_of("append"))
    rig.change(rules=rig.access.rules.without_grants([grants[lost]]))
    assert isinstance(peer.closed_with, PermissionDenied)
    with pytest.raises(PermissionDenied, match="client alice has no permission append"):
        await rig.ask(Peer(ALICE), frame_of("append"))
    assert [entry.who for entry in rig.trail.take()] == ["client alice"] * 2  # cut off, denied


async def test_a_change_that_takes_nothing_away_leaves_connections_open() -> None:
    rig, peer = Rig(Grant("alice", "append", "orders")), Peer(ALICE)
    await rig.ask(peer, frame_of("append"))
    rig.change(rules=rig.access.rules.with_grants([Grant("bob", "read", "*")]))
    assert not peer.closed
    await rig.ask(peer, frame_of("append"))


def token_for(*allow: str, lifetime_s: int = 600) -> tokens.NewToken:
    permissions = [each for text in allow for each in parse_permissions(text)]
    return tokens.sign(1, KEY, "billing", permissions, int(NOW_S) + lifetime_s)


async def test_a_token_gives_what_it_states_and_nothing_that_is_granted_to_its_name() -> None:
    rig = Rig(Grant("billing", "read", "orders"), Grant("*", "trim", "orders"))
    peer = Peer(CAROL, token=token_for("append:orders").text)
    await rig.ask(peer, frame_of("append"))
    for kind in ("read", "trim_log", "change_node"):
        with pytest.raises(PermissionDenied, match="token billing has no permission"):
            await rig.ask(peer, frame_of(kind))


async def test_with_tls_a_token_counts_even_without_rules() -> None:
    rig = Rig(enforced=False)
    await rig.ask(Peer(token=token_for("append:orders").text), frame_of("append"))
    for token, kind in ((token_for("append:orders").text, "delete_log"), ("junk", "append")):
        with pytest.raises(PermissionDenied):
            await rig.ask(Peer(token=token), frame_of(kind))
    sees: Any = rig.guard.sees
    assert not sees(Peer(token="junk"), Need((Verb.READ,), "orders"))
    assert sees(Peer(ALICE), Need((Verb.READ,), "orders"))


async def test_who_is_judged_no_longer_has_no_session_unless_a_token_counts() -> None:
    """Otherwise one server would ask of a client what another, which it reaches later, does not."""
    rig = Rig(Grant("alice", "append", "orders"))
    certified, plain = Peer(ALICE), Peer(token=token_for("*:*").text, encrypted=False)
    token = Peer(token=token_for("append:orders").text)
    for peer in (certified, plain, token):
        await rig.ask(peer, frame_of("append"))
        assert peer.session is not None
    rig.change(rules=AccessRules(enforced=False))
    assert (certified.session, plain.session) == (None, None)
    assert token.session is not None
    rig.change(rules=AccessRules(True, (Grant("alice", "append", "orders"),)))
    await rig.ask(certified, frame_of("append"))
    assert certified.session is not None


async def test_a_token_is_not_accepted_over_plain_tcp_from_elsewhere() -> None:
    peer = Peer(token=token_for("*:*").text, encrypted=False, private=False)
    with pytest.raises(PermissionDenied, match="over TLS and on the same machine only"):
        await Rig().ask(peer, frame_of("append"))


async def test_a_token_that_is_not_accepted_is_verified_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, peer, verified = Rig(), Peer(token="junk"), 0

    def verify(*arguments: Any) -> Any:
        nonlocal verified
        verified += 1
        return tokens.verify(*arguments)

    monkeypatch.setattr(guard, "verify", verify)
    for _ in range(10):
        with pytest.raises(PermissionDenied, match="not signed"):
            await rig.ask(peer, frame_of("append"))
    assert verified == 1


async def test_a_revoked_token_ends_its_connections() -> None:
    rig, token = Rig(), token_for("read:orders")
    peer = Peer(token=token.text, encrypted=False)
    await rig.ask(peer, frame_of("subscribe"))
    rig.change(revoked=frozenset({token.token_id}))
    assert peer.closed
    with pytest.raises(PermissionDenied, match="was revoked"):
        await rig.ask(Peer(token=token.text), frame_of("subscribe"))


async def test_a_token_alone_is_judged_at_the_greeting() -> None:
    rig: Any = Rig(enforced=False)
    with pytest.raises(PermissionDenied, match="not signed"):
        rig.guard.admit(Peer(token="junk"))
    [entry] = rig.trail.take()
    assert (entry.who, entry.what) == ("a token that is not accepted", "hello")
    token = token_for("read:orders")
    idle = Peer(token=token.text)  # it asks for nothing
    rig.guard.admit(idle)
    rig.change(revoked=frozenset({token.token_id}))
    assert idle.closed
    rig.guard.stop()


async def test_what_many_connections_share_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server does nothing else meanwhile."""
    rig, token, calls = Rig(), token_for("read:*").text, [0]
    peers = [Peer(token=token) for _ in range(5)]
    for peer in peers:
        await rig.ask(peer, frame_of("subscribe"))
    authorizer = tokens._authorizer

    def counted(*arguments: Any) -> Any:
        calls[0] += 1
        return authorizer(*arguments)

    monkeypatch.setattr(tokens, "_authorizer", counted)
    rig.change(revoked=frozenset({"another"}))
    assert calls == [2]  # to verify it, and for the one decision
    rig.change(revoked=frozenset({token_for("read:*").token_id}))
    assert not any(peer.closed for peer in peers)
    rig.now_s += 1000
    rig.guard._recheck_tokens()
    assert all(peer.closed for peer in peers)
    rig.guard.stop()


async def test_names_that_a_peer_makes_up_are_not_all_remembered() -> None:
    rig, peer = Rig(Grant("alice", "read", "*")), Peer(ALICE)
    for number in range(guard.ADMITTED_MAX + 10):
        await rig.ask(peer, pb.Frame(describe_log=pb.DescribeLog(name=f"log-{number}")))
    assert len(peer.session.admitted) == guard.ADMITTED_MAX
    await rig.ask(peer, frame_of("subscribe"))  # but what has to end with a grant is
    rig.change(rules=AccessRules(True, (Grant("alice", "read", "log-*"),)))
    assert peer.closed
    other = Peer(ALICE)
    await rig.ask(other, pb.Frame(describe_log=pb.DescribeLog(name="log-" + "x" * 1_000_000)))
    assert not other.session.admitted


async def test_an_expired_token_ends_its_connections() -> None:
    rig = Rig()
    peer = Peer(token=token_for("read:orders", lifetime_s=30).text)
    await rig.ask(peer, frame_of("subscribe"))
    rig.now_s += RECHECK_S
    rig.guard._recheck_tokens()  # the timer that `check` has started
    assert peer.closed
    rig.guard.stop()


async def test_without_tls_a_server_is_taken_at_its_word() -> None:
    await Rig().ask(Peer(role="vsn", encrypted=False), frame_of("replicate"))
    with pytest.raises(PermissionDenied):
        await Rig().ask(Peer(role="vsn"), frame_of("replicate"))  # with TLS it is not
    with pytest.raises(PermissionDenied):
        await Rig().ask(Peer(role="client", encrypted=False), frame_of("replicate"))


async def test_the_requests_of_a_name_count_together() -> None:
    for rig in (
        Rig(Grant("alice", "append", "orders"), requests=2),
        Rig(enforced=False, requests=2),  # a certificate is enough
    ):
        first, second = Peer(ALICE), Peer(ALICE)
        await rig.ask(first, frame_of("append"))
        await rig.ask(second, frame_of("append"))
        with pytest.raises(Busy, match="client alice has 2 requests under way here"):
            await rig.ask(second, frame_of("append"))
        await rig.ask(second, pb.Frame(ping=pb.Ping()))  # what is for anybody is not counted
        await rig.ask(Peer(CAROL), frame_of("append"))  # somebody else
        held = len(FULL) + frame_of("append").ByteSize()
        assert first.counted == second.counted == [(1, held)]
        assert rig.guard.refusals == {"requests": 1}


async def test_servers_are_not_limited() -> None:
    rig, peer = Rig(requests=1, connections=1), Peer(NODE)
    for _ in range(3):
        await rig.ask(peer, frame_of("replicate"))
        await rig.ask(Peer(NODE), frame_of("replicate"))
    assert not peer.counted


async def test_the_connections_of_a_name_are_limited() -> None:
    rig: Any = Rig(Grant("alice", "append", "orders"), connections=2)
    first, second, third = Peer(ALICE), Peer(ALICE), Peer(ALICE)
    await rig.ask(first, frame_of("append"))
    await rig.ask(second, frame_of("append"))
    with pytest.raises(Busy, match="client alice has 2 connections to this server"):
        await rig.ask(third, frame_of("append"))
    rig.change(rules=rig.access.rules.with_grants([Grant("bob", "read", "*")]))
    with pytest.raises(Busy):  # judged again, the others still count once each
        await rig.ask(third, frame_of("append"))
    rig.guard.closed(second)
    await rig.ask(third, frame_of("append"))
    await rig.ask(Peer(NODE), frame_of("replicate"))


async def test_idle_connections_count_from_their_greeting() -> None:
    rig: Any = Rig(connections=2)
    first, second = Peer(ALICE), Peer(ALICE)
    rig.guard.admit(first)
    rig.guard.admit(second)
    with pytest.raises(Busy, match="client alice has 2 connections to this server"):
        rig.guard.admit(Peer(ALICE))
    rig.guard.admit(Peer(NODE))
    rig.guard.admit(Peer(CAROL))
    rig.guard.closed(first)
    rig.guard.admit(Peer(ALICE))
    assert rig.guard.refusals == {"connections": 1}


async def test_lists_show_what_may_be_read() -> None:
    rig, peer = Rig(Grant("alice", "read", "orders")), Peer(ALICE)
    sees: Any = rig.guard.sees
    assert sees(peer, Need((Verb.READ,), "orders"))
    assert sees(peer, Need((Verb.READ,), "orders.staged"))
    assert not sees(peer, Need((Verb.READ,), "bills"))
    assert not sees(Peer(token="nonsense"), Need((Verb.READ,), "orders"))


async def test_a_lockout_is_foreseen() -> None:
    rig: Any = Rig(enforced=False)
    strict = replace(rig.access, rules=AccessRules(True))
    may_after = rig.guard.may_after
    assert may_after(Peer(CAROL), strict, Verb.METADATA)
    assert may_after(Peer(token=token_for("metadata:*").text), strict, Verb.METADATA)
    assert not may_after(Peer(ALICE), strict, Verb.METADATA)
    assert rig.guard.access == rig.access


async def test_operators_actions_are_noted() -> None:
    rig: Any = Rig(Grant("alice", "*", "*"))
    peer, frame = Peer(ALICE), frame_of("delete_log")
    await rig.ask(peer, frame)
    rig.guard.audit(peer, "delete_log", frame, "done")
    rig.guard.audit(peer, "get_status", frame_of("get_status"), "done")
    [entry] = rig.trail.take()
    assert (entry.who, entry.what, entry.outcome) == (
        "client alice",
        'delete_log name: "orders"',
        "done",
    )


def test_http_shows_metrics_to_those_who_may_see_them() -> None:
    """Whoever the HTTP server lets ask may, while no rules are enforced."""
    token, other = token_for("metrics:*").text, token_for("read:*").text
    where = "192.0.2.1:999"
    without = Rig(enforced=False)
    assert without.guard.permits_metrics(ALICE, "", where)
    assert without.guard.permits_metrics(ANONYMOUS, "", where)  # plain TCP
    for rig in (without, Rig(Grant("alice", "monitor", "*"))):
        permits = rig.guard.permits_metrics
        assert permits(ANONYMOUS, token, where)
        assert permits(ALICE, "", where)
        assert not permits(ANONYMOUS, other, where)
        assert not permits(ANONYMOUS, "junk", where)
    strict = Rig()
    assert not strict.guard.permits_metrics(ANONYMOUS, "", where)
    assert not strict.guard.permits_metrics(ALICE, "", where)
    assert strict.guard.permits_metrics(CAROL, "", where)
    assert strict.guard.denials == 2
    assert {entry.outcome for entry in strict.trail.take()} == {"denied: metrics"}
