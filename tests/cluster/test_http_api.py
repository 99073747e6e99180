"""The HTTP API on a cluster of real processes."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_rig import loom_up
from http_rig import Http

from loomlog.console.api import ROUTES

PAGE = Path(__file__).parents[2] / "docs/http.md"
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
        ("GET", f"{records}/1", None, (404, "NotYetWritten")),
        ("GET", "/v1/nothing", None, (404, "NotFound")),
        ("DELETE", "/v1/status", None, (405, "InvalidArgument")),
    ):
        status, kind = http.ask(method, path, body).error
        assert status == expected[0], (method, path, body)
        assert kind.startswith(expected[1])
    assert http.ask("POST", records, b"{", json_type).error == (400, "InvalidArgument")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert http.ask("POST", records, b"a=b", form).error == (415, "WrongType")
    large = http.ask("POST", "/v1/logs", b'{"name": "%s"}' % (b"x" * 100_000), json_type)
    assert large.error == (413, "TooLarge")
    assert http.get(log)["tail"] == 0
    assert http.get(records) == {"records": [], "next": 1, "tail": 0}


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
    rows = http.events(f"/rows/{name}?from=3")
    http.post(f"{log}/records", {"records": [{"value": "arrives"}]})
    assert "arrives" in next(rows)[1]["html"]


def test_the_commands_of_the_manual_do_what_it_says(http: Http, tmp_path: Path) -> None:
    [story] = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    story = story.replace("http://127.0.0.1:7490", http.url)
    script = f"set -euo pipefail\n{story}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert '"first":1,"last":2' in done.stdout.replace(" ", "")
    assert '"repeated":true' in done.stdout.replace(" ", "")
    assert "event: entry" in done.stdout
