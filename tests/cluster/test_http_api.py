"""The HTTP API on a cluster of real processes."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from cli_rig import loom_up
from http_rig import Http
from poll import wait_until

from loomlog import connect_sync
from loomlog.console.api import ROUTES
from loomlog.console.route import Parameter, Route

PAGE = Path(__file__).parents[2] / "docs/http.md"
TOKEN = {"name": "ci", "allow": ["read:*"]}
_COUNT = iter(range(10_000))


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    data = tmp_path_factory.mktemp("http") / "data"
    with loom_up(data, "--sync", "none", "--console") as up:
        yield Http(up.console.rstrip("/"))


@pytest.fixture
def log(http: Http) -> str:
    name = f"log-{next(_COUNT)}"
    http.post("/v1/logs", {"name": name, "replicas": 2})
    return f"/v1/logs/{name}"


def test_append_read_and_follow(http: Http, log: str) -> None:
    records = [
        {"value": "one", "key": "k"},
        {"value": {"n": 2}, "timestamp": "2026-01-02T03:04:05Z"},
        {"value_base64": base64.b64encode(b"\xff\x00").decode()},
    ]
    appended = http.post(f"{log}/records", {"records": records})
    assert appended == {"first": 1, "last": 3, "count": 3, "repeated": False}
    binary = {"Content-Type": "application/octet-stream"}
    assert http.ask("POST", f"{log}/records?key=b", b"\x01\x02", binary).json["first"] == 4

    found = http.get(f"{log}/records?from=1&limit=3")
    assert (found["next"], found["tail"]) == (4, 4)
    assert [each.get("value") for each in found["records"]] == ["one", '{"n":2}', None]
    assert found["records"][0]["key"] == "k"
    assert found["records"][1]["timestamp"].startswith("2026-01-02T03:04:05")
    assert found["records"][2]["value_base64"] == "/wA="
    assert http.get(f"{log}/records?from=4")["next"] == 5
    assert http.get(f"{log}/records?from=99")["records"] == []
    assert [each["position"] for each in http.get(f"{log}/records?last=2")["records"]] == [3, 4]
    assert http.get(f"{log}/records?from=2026-01-01")["records"][0]["position"] == 1
    assert http.get(f"{log}/records/4")["key"] == "b"
    value = http.ask("GET", f"{log}/records/4/value")
    assert (value.body, value.headers["content-type"]) == (b"\x01\x02", "application/octet-stream")
    assert value.headers["content-disposition"].startswith("attachment")

    events = http.events(f"{log}/follow?from=3")
    assert [next(events)[2] for _ in range(2)] == ["3", "4"]
    http.post(f"{log}/records", {"records": [{"value": "new"}]})
    kind, entry, number = next(events)
    assert (kind, entry["value"], number) == ("entry", "new", "5")
    again = http.events(f"{log}/follow", **{"Last-Event-ID": "4"})
    assert next(again)[1]["value"] == "new"


def test_an_append_behind_an_expected_tail_only(http: Http, log: str) -> None:
    body = {"records": [{"value": "a"}, {"value": "b"}]}
    assert http.post(f"{log}/records?expected_tail=0", body)["last"] == 2
    refused = http.ask("POST", f"{log}/records?expected_tail=1", body)
    assert (refused.status, refused.json["error"]["kind"]) == (409, "Conflict")
    assert http.post(f"{log}/records?expected_tail=2", body)["last"] == 4
    both = http.ask(
        "POST", f"{log}/records?expected_tail=4", body, {"Idempotency-Key": "billing-7/1"}
    )
    assert (both.status, http.get(f"{log}/records")["tail"]) == (400, 4)


def test_a_transaction_appends_to_several_logs(http: Http) -> None:
    for name in ("orders", "audit"):
        http.post("/v1/logs", {"name": name, "replicas": 2})
    order = {"value": "12.50", "key": "ann", "headers": {"trace": "1"}}
    logs = {"orders": [order, {"value": "3.20"}], "audit": [{"value": "two orders"}]}
    assert http.post("/v1/transactions", {"logs": logs})["logs"] == {
        "orders": {"first": 1, "last": 2, "count": 2},
        "audit": {"first": 1, "last": 1, "count": 1},
    }
    assert http.get("/v1/logs/orders/records")["records"][0]["headers"] == {"trace": "1"}
    missing = http.ask("POST", "/v1/transactions", {"logs": {**logs, "nowhere": [order]}})
    assert missing.status == 404
    assert len(http.get("/v1/logs/audit/records")["records"]) == 1
    for bad, why in (
        ({}, "give"),
        ({"orders": []}, "logs.orders must be a list of records"),
        ({"orders": [{"key": "k"}]}, "logs.orders[0] has no value"),
    ):
        refused = http.ask("POST", "/v1/transactions", {"logs": bad})
        assert (refused.status, why in refused.json["error"]["message"]) == (400, True)


def test_headers_are_appended_and_read(http: Http, log: str) -> None:
    plain = {"value": "a", "headers": {"trace": "t-1", "raw": {"base64": "/wA="}}}
    assert http.post(f"{log}/records", {"records": [plain, {"value": "b"}]})["count"] == 2
    first, second = http.get(f"{log}/records?from=1")["records"]
    assert first["headers"] == plain["headers"]
    assert "headers" not in second
    key = {"Idempotency-Key": "headers/1"}
    assert http.ask("POST", f"{log}/records", {"records": [plain]}, key).json["first"] == 3
    assert http.get(f"{log}/records/3")["headers"]["trace"] == "t-1"
    for wrong in ("text", {"a": 1}, {"a": {"base64": "?"}}, {"a": {"other": ""}}):
        answer = http.ask("POST", f"{log}/records", {"records": [{"value": "x", "headers": wrong}]})
        assert answer.error == (400, "InvalidArgument")
    assert http.get(f"{log}/records?from=4")["records"] == []


def test_jobs_are_taken_acknowledged_and_handed_out_again(http: Http, log: str) -> None:
    queue = f"{log}/queues/jobs"
    assert http.post(f"{queue}/take", {}) == {"receipt": "", "jobs": []}
    http.post(f"{log}/records", {"records": [{"value": str(n)} for n in range(1, 6)]})
    first = http.post(f"{queue}/take", {"count": 3, "member": "worker"})
    assert [(job["value"], job["attempts"]) for job in first["jobs"]] == [
        ("1", 1),
        ("2", 1),
        ("3", 1),
    ]
    second = http.post(f"{queue}/take", {"count": 3, "attempts_max": 1})
    assert [job["position"] for job in second["jobs"]] == [4, 5]
    http.post(f"{queue}/ack", {"receipt": first["receipt"], "positions": [1, 3]})
    http.post(f"{queue}/retry", {"receipt": first["receipt"], "positions": [2]})
    (described,) = http.get(f"{log}/queues")["queues"]
    assert described == http.get(queue)
    assert (described["position"], described["members"]) == (5, ["worker", "http"])
    again = http.post(f"{queue}/take", {"count": 9})
    assert [(job["position"], job["attempts"]) for job in again["jobs"]] == [(2, 2)]
    http.post(f"{queue}/retry", {"receipt": again["receipt"], "positions": [2]})
    buried = http.post(f"{queue}/take", {"count": 9, "attempts_max": 1})
    assert buried == {"receipt": "", "jobs": []}, "it failed too often"
    dead = http.get(f"{log}.dead-letters/records?from=1")["records"]
    assert [letter["value"] for letter in dead] == ["2"]
    stranger = {"receipt": "9.9", "positions": [4]}
    assert http.ask("POST", f"{queue}/ack", stranger).error == (409, "Fenced")
    assert http.ask("DELETE", queue).error == (409, "Conflict")  # leases have not expired


def test_what_a_visit_leaves_is_handed_out_when_its_time_is_over(http: Http, log: str) -> None:
    queue = f"{log}/queues/short"
    http.post(f"{log}/records", {"records": [{"value": "a"}]})
    lost = http.post(f"{queue}/take", {"visibility_timeout_s": 1})
    assert len(lost["jobs"]) == 1
    found: list[tuple[int, int]] = []

    def is_free() -> bool:
        jobs = http.post(f"{queue}/take", {"count": 5})["jobs"]
        found.extend((job["position"], job["attempts"]) for job in jobs)
        return bool(found)

    wait_until(is_free)
    assert found == [(1, 2)]
    late = {"receipt": lost["receipt"], "positions": [1]}
    assert http.ask("POST", f"{queue}/ack", late).error == (409, "Fenced")


def test_leases_are_held_by_one_at_a_time(http: Http) -> None:
    mine = {"name": "app/leader", "holder": "a", "ttl_s": 60}
    held = http.post("/v1/leases", mine)
    assert held["acquired"]
    assert not http.post("/v1/leases", mine | {"holder": "b"})["acquired"]
    assert http.get("/v1/leases/app/leader")["holder"] == "a"
    assert [each["name"] for each in http.get("/v1/leases?prefix=app/")["leases"]] == ["app/leader"]
    named = {"name": "app/leader", "holder": "a", "epoch": held["epoch"]}
    assert http.post("/v1/leases/renew", named)["left_s"] > 30
    swap = {"expected": 0, "value": "x", "lease": "app/leader", "lease_epoch": held["epoch"]}
    assert http.ask("PUT", "/v1/registers/app/fenced", swap).status == 200
    http.post("/v1/leases/release", named)
    assert http.post("/v1/leases", mine | {"holder": "b"})["acquired"]
    assert http.ask("POST", "/v1/leases/renew", named).error == (409, "Fenced")
    late = swap | {"expected": 1}
    assert http.ask("PUT", "/v1/registers/app/fenced", late).error[1] in ("Fenced", "Conflict")
    assert http.ask("GET", "/v1/leases/none").error == (404, "NotFound")


def test_a_repeated_request_is_appended_once(http: Http, log: str) -> None:
    def send(number: int, value: str) -> tuple[int, dict[str, object]]:
        key = {"Idempotency-Key": f"billing-7/{number}"}
        answer = http.ask("POST", f"{log}/records", {"records": [{"value": value}] * 2}, key)
        return answer.status, answer.json

    assert send(4, "a") == (200, {"first": 1, "last": 2, "count": 2, "repeated": False})
    assert send(4, "a") == (200, {"first": 1, "last": 2, "count": 2, "repeated": True})
    assert send(7, "b")[1]["first"] == 3
    status, refused = send(4, "a")
    assert status == 409
    assert "is at 7 already" in str(refused)
    assert [each["value"] for each in http.get(f"{log}/records")["records"]] == ["a"] * 2 + [
        "b"
    ] * 2
    wrong = http.ask(
        "POST", f"{log}/records", {"records": [{"value": "c"}]}, {"Idempotency-Key": "x"}
    )
    assert wrong.error == (400, "InvalidArgument")


def test_invalid_requests_get_clear_errors_and_change_nothing(http: Http, log: str) -> None:
    json_type = {"Content-Type": "application/json"}
    records = f"{log}/records"
    for method, path, body, expected in (
        ("POST", records, {"records": []}, (400, "InvalidArgument")),
        ("POST", records, {"records": [{"value": "x"}, {}]}, (400, "InvalidArgument")),
        ("POST", records, {"records": [{"value": "x", "y": 1}]}, (400, "InvalidArgument")),
        ("POST", records, {"records": [{"value_base64": "?"}]}, (400, "InvalidArgument")),
        ("POST", records, {"records": [{"value": "a", "value_base64": "YQ=="}]}, (400, "Inv")),
        ("POST", records, {"records": [{"value": "\ud800"}]}, (400, "InvalidArgument")),
        ("POST", records, {"records": [{"value": float("nan")}]}, (400, "InvalidArgument")),
        ("POST", records, {"records": [{"value": [float("inf")]}]}, (400, "InvalidArgument")),
        ("POST", records, {"value": "x"}, (400, "InvalidArgument")),
        ("POST", "/v1/logs/nope/records", {"records": [{"value": "x"}]}, (404, "NotFound")),
        ("POST", "/v1/logs", {"name": "a b"}, (400, "InvalidArgument")),
        ("POST", "/v1/logs", {"name": "x", "replicas": "3"}, (400, "InvalidArgument")),
        ("POST", "/v1/logs", {"name": log.rpartition("/")[2]}, (409, "AlreadyExists")),
        ("POST", f"{log}/switch", {}, (400, "InvalidArgument")),
        ("POST", f"{log}/switch", {"protocol": "none"}, (400, "InvalidArgument")),
        ("POST", f"{log}/trim", {"position": 0}, (400, "InvalidArgument")),
        ("POST", "/v1/nodes/9/drain", {}, (404, "NotFound")),
        ("GET", f"{records}?from=x", None, (400, "InvalidArgument")),
        ("GET", f"{records}?from=1&last=1", None, (400, "InvalidArgument")),
        ("GET", f"{records}?limit=0", None, (400, "InvalidArgument")),
        ("POST", "/v1/tokens", TOKEN | {"expires": "99999999999999999d"}, (400, "Inv")),
        ("GET", "/v1/events?since=yesterday", None, (400, "InvalidArgument")),
        ("GET", "/v1/events?since=-1h", None, (400, "InvalidArgument")),
        ("GET", "/v1/events?since=9999999d", None, (400, "InvalidArgument")),
        ("GET", "/v1/events?after=-1", None, (400, "InvalidArgument")),
        ("GET", f"{records}/1", None, (404, "NotYetWritten")),
        ("PUT", f"{log}/retention", None, (400, "InvalidArgument")),
        ("PUT", f"{log}/retention", {}, (400, "InvalidArgument")),
        ("PUT", f"{log}/checkpoints/%ff", {"position": 1}, (400, "InvalidArgument")),
        ("POST", f"{log}/queues/%ff%fe/take", {}, (400, "InvalidArgument")),
        ("POST", f"{records}?key=%ff", {"records": [{"value": "x"}]}, (400, "InvalidArgument")),
        ("GET", "/v1/registers?prefix=%ff", None, (400, "InvalidArgument")),
        ("DELETE", f"{log}/checkpoints/nope", None, (404, "NotFound")),
        ("DELETE", "/v1/logs/nope/checkpoints/nope", None, (404, "NotFound")),
        ("GET", "/v1/nothing", None, (404, "NotFound")),
        ("GET", "/v1/logs/", None, (404, "NotFound")),
        ("DELETE", "/v1/status", None, (405, "InvalidArgument")),
    ):
        status, kind = http.ask(method, path, body).error
        assert status == expected[0], (method, path, body)
        assert kind.startswith(expected[1])
    for text in (b"{", b"[" * 100_000, b'{"records": [{"value": 1e400}]}'):
        assert http.ask("POST", records, text, json_type).error == (400, "InvalidArgument")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert http.ask("POST", records, b"a=b", form).error == (415, "WrongType")
    large = http.ask("POST", "/v1/logs", b'{"name": "%s"}' % (b"x" * 100_000), json_type)
    assert large.error == (413, "TooLarge")
    assert http.get(log)["tail"] == 0
    assert http.get(records) == {"records": [], "next": 1, "tail": 0}
    assert http.get(f"{log}/queues") == {"queues": []}
    assert http.get(log)["retention_s"] is None


def test_an_error_is_short_however_long_the_input(http: Http) -> None:
    name = "x" * 5000
    for path in (f"/v1/logs/{name}", f"/v1/leases/{name}", f"/v1/events?since={name}"):
        assert len(http.ask("GET", path).json["error"]["message"]) < 1000
    http.ask("DELETE", f"/v1/logs/{name}")
    for event in http.get("/v1/events?since=1h")["events"]:
        assert len(event["text"]) < 1000


def test_no_operation_takes_what_it_does_not_know(http: Http) -> None:
    before = http.get("/v1/status")
    for route in ROUTES:
        path = re.sub(r"{[^}]*}", "1", route.path)
        assert http.ask(route.method, f"{path}?nonsense=1").error == (400, "InvalidArgument"), path
        if route.method != "GET":
            answer = http.ask(route.method, path, {"nonsense": 1})
            assert answer.error == (400, "InvalidArgument"), path
            listed = http.ask(route.method, path, [1])
            assert listed.error == (400, "InvalidArgument"), path
        for parameter in route.of("query"):
            if parameter.schema.get("type") in ("integer", "boolean"):
                answer = http.ask(route.method, f"{path}?{parameter.name}=-x")
                assert answer.error == (400, "InvalidArgument"), (path, parameter.name)
    after = http.get("/v1/status")
    assert [log["name"] for log in after["logs"]] == [log["name"] for log in before["logs"]]
    assert http.ask("GET", "/healthz").body == b"ok\n"


VALID = {"string": "x", "integer": 1, "number": 1, "boolean": True, "array": [1], "object": {}}


def request_with(route: Route, large: Parameter, number: int) -> tuple[str, dict[str, Any]]:
    """Return the path and body of a request that is valid but for one number."""
    places: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}, "body": {}}
    for each in route.parameters:
        kind = each.schema.get("type", "string")
        if each is large:
            places[each.place][each.name] = [number] if kind == "array" else number
        elif each.required or each.place == "path":
            places[each.place][each.name] = VALID[kind]
    path = re.sub(r":\w+}", "}", route.path).format(**places["path"])
    return f"{path}?{urlencode(places['query'])}", places["body"]


def test_no_number_is_too_large_to_be_refused(http: Http) -> None:
    asked = 0
    for route in ROUTES:
        for large in filter(is_numeric, route.parameters):
            for number in (2**32, 2**63 - 1):
                if route.answer_type != "text/event-stream":
                    path, body = request_with(route, large, number)
                    answer = http.ask(route.method, path, body or None)
                    assert answer.status != 500, (route.method, path, body)
                    asked += 1
    assert asked > 50


def is_numeric(parameter: Parameter) -> bool:
    schema = parameter.schema
    return "integer" in (schema.get("type"), schema.get("items", {}).get("type"))


def test_pages_of_other_sites_change_nothing(http: Http, log: str) -> None:
    own = http.url.removeprefix("http://")
    body = {"records": [{"value": "x"}]}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
        {"Host": "evil.example:80", "Origin": "http://evil.example:80"},
    ):
        assert http.ask("POST", f"{log}/records", body, headers).error == (403, "ForeignOrigin")
    assert http.ask("GET", "/", headers={"Host": "evil.example"}).status == 403
    assert http.get(log)["tail"] == 0
    http.post(f"{log}/records", body, Origin=f"http://{own}", **{"Sec-Fetch-Site": "same-origin"})
    answer = http.ask("GET", "/v1/status")
    assert "access-control-allow-origin" not in answer.headers
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_logs_checkpoints_and_registers(http: Http, log: str) -> None:
    http.post(f"{log}/records", {"records": [{"value": str(n)} for n in range(10)]})
    assert http.ask("PUT", f"{log}/checkpoints/a", {"position": 4}).json["position"] == 4
    assert http.ask("PUT", f"{log}/checkpoints/a", {"position": 2}).json["position"] == 4
    assert http.ask("PUT", f"{log}/checkpoints/a", {"position": 99}).status == 400
    [checkpoint] = http.get(f"{log}/checkpoints")["checkpoints"]
    assert (checkpoint["position"], checkpoint["behind"]) == (4, 6)
    assert checkpoint in http.get("/v1/checkpoints")["checkpoints"]
    assert http.get(f"{log}/groups") == {"groups": []}
    assert http.ask("GET", f"{log}/groups/g").error == (404, "NotFound")
    assert http.ask("DELETE", f"{log}/checkpoints/a").status == 200
    assert http.ask("GET", f"{log}/checkpoints/a").error == (404, "NotFound")

    assert http.post(f"{log}/trim", {"position": 3})["head"] == 4
    assert http.ask("GET", f"{log}/records?from=1").error == (410, "Trimmed")
    http.post(f"{log}/switch", {"protocol": "chained"})
    http.post(f"{log}/records", {"records": [{"value": "after"}]})
    assert http.get(log)["protocol"] == "chained"
    assert http.ask("PUT", f"{log}/retention", {"retention": "7d"}).json["retention_s"] == 604800
    wanted = {"retention": "7d", "retention_bytes": "2G"}
    assert http.ask("PUT", f"{log}/retention", wanted).json["retention_bytes"] == 2 << 30
    forever = {"retention": None, "retention_bytes": None}
    assert http.ask("PUT", f"{log}/retention", forever).json["retention_s"] is None
    assert http.ask("DELETE", log).status == 200
    assert http.ask("GET", log).error == (404, "NotFound")

    register = "/v1/registers/app/state"
    version = http.ask("PUT", register, {"expected": 0, "value": "x"}).json["version"]
    assert http.ask("PUT", register, {"expected": 0, "value": "y"}).error == (409, "Conflict")
    assert http.get(register) == {"name": "app/state", "version": version, "value": "x"}
    assert [each["name"] for each in http.get("/v1/registers?prefix=app/")["registers"]]
    assert http.ask("DELETE", f"{register}?expected={version}").status == 200


def test_the_cluster_and_its_streams(http: Http, log: str) -> None:
    status = http.get("/v1/status")
    events = http.get("/v1/events?since=1h")["events"]
    assert events[0]["subject"] == "metadata repository 1"
    assert http.get(f"/v1/events?after={events[-1]['id'] + 1000}") == {"events": []}
    assert [node["id"] for node in http.get("/v1/nodes")["nodes"]] == [1, 2, 3]
    assert status["cluster_id"] == "local"
    assert not http.get("/v1/nodes/check?nodes=1")["stops"]
    [stream] = http.get(log)["streams"]
    path = f"/v1/streams/{stream['id']}"
    assert "seal" in http.post(f"{path}/seal")["done"]
    http.post(f"{path}/unseal")
    assert len(http.get(path)["replicas"]) == 2
    assert "moves" in http.get("/v1/rebalance")
    assert "begun" in http.post("/v1/rebalance")
    checks = {each["check"] for each in http.get("/v1/doctor")["findings"]}
    assert {"address", "disk", "version"} <= checks
    assert http.get("/v1/pipelines") == {"pipelines": []}
    assert http.ask("POST", "/v1/pipelines/nope/pause", {}).error == (404, "NotFound")
    assert not http.get("/v1/acl")["enforced"]
    assert http.get("/v1/tokens")["tokens"] == []
    assert http.post("/v1/nodes/3/drain")["done"]
    assert http.get("/v1/nodes/3")["draining"]
    http.post("/v1/nodes/3/undrain")
    assert len(http.get("/openapi.json")["paths"]) <= len(ROUTES)


PAGES = (
    "/",
    "/nodes",
    "/logs",
    "/logs?all=1",
    "/readers",
    "/pipelines",
    "/work",
    "/timeline",
    "/api",
)


def test_pages_show_the_cluster_and_escape_what_others_wrote(http: Http, log: str) -> None:
    name = log.rpartition("/")[2]
    evil = "<script>alert(1)</script>"
    http.post(f"{log}/records", {"records": [{"value": evil, "key": evil}, {"value": {"a": [1]}}]})
    http.ask("PUT", f"{log}/checkpoints/%3Cb%3E", {"position": 1})
    for path in (*PAGES, f"/logs/{name}", f"/logs/{name}?from=1&key=x", f"/logs/{name}?from=<b>"):
        answer = http.ask("GET", path)
        page = answer.body.decode()
        assert answer.status == 200, (path, page)
        assert evil not in page
        assert "<b>&gt;" not in page
        assert not re.search(r"\son\w+=|style=|javascript:", page), path
    page = http.ask("GET", f"/logs/{name}").body.decode()
    assert "&lt;script&gt;alert(1)" in page
    assert "&#34;a&#34;: [" in page
    assert http.ask("GET", "/logs/nope").status == 404
    for file in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        answer = http.ask("GET", file)
        assert answer.status == 200
        assert "immutable" in answer.headers["cache-control"]

    events = http.events("/live")
    while (event := next(events))[0] != "parts":
        pass
    assert set(event[1]) == {"live_health", "live_tables"}
    events = http.events("/live/pipelines")
    while (event := next(events))[0] != "parts":
        pass
    assert "No pipeline ever ran here" in event[1]["live_pipelines"]
    rows = http.events(f"/rows/{name}?from=3")
    http.post(f"{log}/records", {"records": [{"value": "arrives"}]})
    assert "arrives" in next(rows)[1]["html"]


def test_readers_are_shown_with_the_lag_of_each_shard(http: Http, log: str) -> None:
    http.post(f"{log}/records", {"records": [{"value": str(n)} for n in range(5)]})
    http.post(f"{log}/queues/resizer/take", {"count": 2})
    with connect_sync(http.get("/v1/status")["metadata_address"]) as cluster:
        handle = cluster.log(log.rpartition("/")[2])
        with handle.group("billing", shards=2, member="<b>ann") as group:
            for entry in group:
                if entry.position == 4:
                    break
            group.commit()

            def page_text() -> str:
                return re.sub(r"<[^>]*>", " ", http.ask("GET", "/readers").body.decode())

            wait_until(
                lambda: "Shards of billing" in page_text() and "resizer" in page_text()
            )  # the status has them
            page = page_text()
    shards = page[page.index("Shards of billing") : page.index("Work queues")].split()
    for shard in "01":
        assert " ".join([shard, "&lt;b&gt;ann", "4", "1"]) in " ".join(shards)
    assert re.search(r"resizer\s+log-\d+\s+\d+\s+2\s+0\s+2\s+3", page)


def test_readers_of_copyset_logs_are_shown_where_their_log_shows_them(http: Http) -> None:
    http.post("/v1/logs", {"name": "copies", "protocol": "copyset", "replicas": 2})
    last = http.post("/v1/logs/copies/records", {"records": [{"value": "a"}]})["last"]
    http.ask("PUT", "/v1/logs/copies/checkpoints/scan", {"position": last})
    page = http.ask("GET", "/readers").body.decode()
    assert page.count("e1n1<") == 2, "the checkpoint, and the last of the log"
    assert f"{last:,}" not in page


def test_the_commands_of_the_manual_do_what_it_says(http: Http, tmp_path: Path) -> None:
    story = "".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL))
    story = story.replace("http://127.0.0.1:7490", http.url)
    script = f"set -euo pipefail\n{story}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert '"first":1,"last":2' in done.stdout.replace(" ", "")
    assert '"repeated":true' in done.stdout.replace(" ", "")
    assert "event: entry" in done.stdout
